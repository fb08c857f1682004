"""What is a model compared with, if the settings do not say?

With the most trusted other way to run the same artifact: torch in fp32 for a folder, ONNX Runtime
in fp32 for an ONNX file. `RUNTIME` or `RUNTIME:PRECISION` names another way. If the settings ask a
graph backend for pooling, torch is ruled out, because it does the folder's own pooling. Another
artifact may be named: for a quantised graph, the one that it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deployments.settings.reference import PREFERRED, CannotVerify, parse_reference
from runtimes import catalog, source
from runtimes.source import SourceKind
from runtimes.types import RuntimeSettings

POOLING = ("pooling", "normalize", "embed_output")
GRAPH_OPTIONS = (*POOLING, "layout")
GRAPH_RUNTIMES = ("onnxruntime", "openvino")


def reference_for(
    candidate: RuntimeSettings, against: str | None = None, artifact: Path | None = None
) -> RuntimeSettings:
    """The reference's settings: the candidate's, except for runtime, precision and options.

    `against`: "RUNTIME" or "RUNTIME:PRECISION", by default in fp32; None: chosen here. `artifact`:
    what the reference runs; None: the candidate's artifact. Raises `CannotVerify`, and `LoadError`
    for an unfit artifact.
    """
    place = artifact or candidate.source
    if place is None:
        raise CannotVerify(
            f"a {candidate.runtime} model has no artifact that a reference could run"
        )
    runtime, precision = parse_reference(against) if against else _chosen(candidate, place)
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
    """As reports write it: `openvino bf16`."""
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
    """The candidate's options that shape answers, without those that tune its backend."""
    if runtime not in GRAPH_RUNTIMES:
        return {}
    return {name: candidate.options[name] for name in GRAPH_OPTIONS if name in candidate.options}


def _same(candidate: RuntimeSettings, wanted: RuntimeSettings) -> bool:
    own = (candidate.runtime, candidate.precision, candidate.source)
    return own == (wanted.runtime, wanted.precision, wanted.source)
