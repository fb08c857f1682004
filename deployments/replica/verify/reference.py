"""What a model is compared with, where nobody says.

The most trusted way to run the same artifact that is not the one to be judged: torch in fp32 for a
folder, ONNX Runtime in fp32 for an ONNX file. `RUNTIME` or `RUNTIME:PRECISION` names another.
Pooling that the settings ask of a graph backend rules torch out, which has the folder's own.
Another artifact may be named: of a graph that was quantised, the one it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deployments.settings.reference import PREFERRED, CannotVerify, named
from runtimes import catalog, source
from runtimes.source import SourceKind
from runtimes.types import RuntimeSettings

POOLING = ("pooling", "normalize", "embed_output")
GRAPH_OPTIONS = (*POOLING, "layout")
GRAPH_RUNTIMES = ("onnxruntime", "openvino")


def reference_for(
    candidate: RuntimeSettings, against: str | None = None, artifact: Path | None = None
) -> RuntimeSettings:
    """Settings of the reference: the candidate's own but for runtime, precision and options.

    `against`: "RUNTIME" or "RUNTIME:PRECISION", fp32 unless said; None chooses. `artifact`: what it
    runs, None for the candidate's. Raises `CannotVerify`, and `LoadError` for an unfit artifact.
    """
    place = artifact or candidate.source
    if place is None:
        raise CannotVerify(
            f"a {candidate.runtime} model has no artifact that a reference could run"
        )
    runtime, precision = named(against) if against else _chosen(candidate, place)
    wanted = replace(
        candidate,
        runtime=runtime,
        precision=precision,
        source=place,
        options=_options(candidate, runtime),
    )
    if _same(candidate, wanted):
        raise CannotVerify(
            f"{runtime} in {precision} is what is to be verified; name another with --against, or "
            "accept.against"
        )
    catalog.check(runtime, wanted.options, precision)
    return wanted


def runtime_label(settings: RuntimeSettings) -> str:
    """`openvino bf16`, as reports have it."""
    return f"{settings.runtime} {settings.precision}"


def _chosen(candidate: RuntimeSettings, place: Path) -> tuple[str, str]:
    kind = source.inspect(place, candidate.cache_dir).kind
    for runtime in _fit(candidate, kind):
        other = place != candidate.source
        is_candidate = (runtime, "fp32") == (candidate.runtime, candidate.precision)
        if catalog.available(runtime) is None and (other or not is_candidate):
            return runtime, "fp32"
    able = " and ".join(PREFERRED[kind])
    raise CannotVerify(
        f"{place.name} is run by {able} alone, which leaves nothing to compare "
        f"{runtime_label(candidate)} with: install another runtime, or "
        "name another artifact as the reference"
    )


def _fit(candidate: RuntimeSettings, kind: SourceKind) -> Iterator[str]:
    asks_pooling = any(candidate.options.get(name) is not None for name in POOLING)
    for runtime in PREFERRED[kind]:
        if runtime in GRAPH_RUNTIMES or not asks_pooling:
            yield runtime


def _options(candidate: RuntimeSettings, runtime: str) -> dict[str, object]:
    """What shapes the answer goes along, what tunes the backend does not."""
    if runtime not in GRAPH_RUNTIMES:
        return {}
    return {name: candidate.options[name] for name in GRAPH_OPTIONS if name in candidate.options}


def _same(candidate: RuntimeSettings, wanted: RuntimeSettings) -> bool:
    own = (candidate.runtime, candidate.precision, candidate.source)
    return own == (wanted.runtime, wanted.precision, wanted.source)
