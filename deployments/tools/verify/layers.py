"""The search for the tensor that drifts first, and for what to keep in fp32 against it.

Traces the worst sample (or the longest) through candidate and reference, names the first tensor
that drifts and the operations whose error is their own, then builds the model with these in fp32
and verifies it again: a proposal is only as good as what it leads to. Tensors are laid side by side
by name, so the reference is the same backend in fp32, or another that runs the same ONNX graph,
which that of a folder is too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deployments.replica.verify.samples import Reading, Sample, batch_of
from deployments.replica.verify.verification import (
    GRAPH_RUNTIMES,
    VerificationOptions,
    VerificationReport,
    reference_for,
    runtime_label,
    samples_of,
    verify,
)
from deployments.settings.reference import CannotVerify
from deployments.tools.verify.drift import Drift, Drifts, around, drifts
from runtimes import catalog, layers, source
from runtimes.errors import LoadError
from runtimes.graph.dense import mask, pad
from runtimes.source import SourceKind
from runtimes.types import DTYPES, Limits, RuntimeSettings

KEEP = "keep_fp32"
SHARES = ((1, 1), (4, 2), (1_000_000, 3))  # (origins, steps around them) to try, in turn
MAX_SHOWN = 5

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Looked:
    """`reference`: whose tensors the candidate's were compared with. `sample`: which one, and its
    length. `keep`: operations to keep in fp32, empty where none would help. `healed`: the report
    with them kept, None where the backend has no such option or there is nothing to keep."""

    reference: str
    sample: tuple[int, int]
    drifts: Drifts
    keep: tuple[str, ...]
    healed: VerificationReport | None


def look(
    settings: RuntimeSettings,
    report: VerificationReport,
    options: VerificationOptions,
    reading: Reading,
) -> Looked:
    """`report`: of the candidate, which is closed by now. Raises `CannotVerify` where tensors
    cannot be laid side by side, and what loading raises."""
    quiet = replace(settings, progress=lambda phase, fraction: None)
    wanted = _side(quiet, options)
    limits, number, sample = _sample(quiet, report, options, reading)
    arrays = _arrays(limits, sample)
    reference = layers.trace(wanted, arrays)
    traced = layers.trace(quiet, arrays)
    found = drifts(reference, traced, quiet.precision)
    keep, healed = _healing(quiet, list(_proposals(found, traced)), options, reading)
    return Looked(runtime_label(wanted), (number, sample.length), found, keep, healed)


def lines(looked: Looked) -> list[str]:
    """What there is to say, a sentence a line."""
    found, (number, length) = looked.drifts, looked.sample
    head = (
        f"layers: {found.compared} tensors of sample {number} ({length} tokens) against "
        f"{looked.reference}, drift is a relative error above {found.allowed:.2g}"
    )
    if found.first is None:
        return [head, "  none drifts: the tolerances are tighter than this precision's rounding"]
    said_ = [head, f"  first: {_said(found.first)}"]
    said_ += [f"  origin: {_said(drift)}" for drift in found.origins[:MAX_SHOWN]]
    if not looked.keep:
        said_.append("  none of these can be kept in fp32 by a setting of this runtime")
    if looked.keep:
        said_.append(f"  to keep in fp32: options: {{{KEEP}: [{', '.join(looked.keep)}]}}")
    if looked.healed is not None:
        verdict = "accepted" if looked.healed.verdict.accepted else "still not accepted"
        said_.append(f"  with it the model is {verdict}")
    return said_


def _said(drift: Drift) -> str:
    made_by = f"{drift.kind} {drift.node}".strip()
    return (
        f"{drift.name} ({made_by}): error {drift.error:.3g}, "
        f"of its inputs {drift.input_error:.3g}; values up to {drift.largest:.4g}"
    )


def _side(settings: RuntimeSettings, options: VerificationOptions) -> RuntimeSettings:
    wanted = reference_for(settings, options.against, options.artifact)
    alike = wanted.runtime == settings.runtime
    both = {wanted.runtime, settings.runtime} <= set(GRAPH_RUNTIMES) and _is_onnx(wanted)
    if wanted.runtime in layers.RUNTIMES and (alike or both):
        return wanted
    plain = {KEEP, "calibration", "short_calibration"}
    kept = {name: value for name, value in settings.options.items() if name not in plain}
    own = replace(settings, precision="fp32", options=kept)
    if (settings.runtime, settings.precision) == ("openvino", "int8"):
        raise CannotVerify(
            "openvino int8 computes another graph than openvino fp32: look at the layers of "
            "onnxruntime int8, which quantises alike"
        )
    if settings.precision == "fp32" or settings.runtime not in layers.RUNTIMES:
        raise CannotVerify(
            f"the tensors of {runtime_label(settings)} and {runtime_label(wanted)} have no names "
            "in common; --layers compares onnxruntime and openvino on one ONNX graph, or one of "
            f"{', '.join(layers.RUNTIMES)} with itself in fp32"
        )
    return own


def _is_onnx(settings: RuntimeSettings) -> bool:
    """Whether both backends run one ONNX graph: stored as such, or built of a folder."""
    assert settings.source is not None
    return source.inspect(settings.source, settings.cache_dir).kind in (
        SourceKind.ONNX,
        SourceKind.HUGGING_FACE,
    )


def _sample(
    settings: RuntimeSettings,
    report: VerificationReport,
    options: VerificationOptions,
    reading: Reading,
) -> tuple[Limits, int, Sample]:
    """The sample in which the first broken tolerance is broken most, else the longest."""
    candidate = catalog.create(settings)
    candidate.load()
    try:
        limits, samples = samples_of(settings, candidate, options, reading)
    finally:
        candidate.close()
    worst = [breach.sample[0] for breach in report.verdict.breaches if breach.sample]
    number = worst[0] if worst else max(range(len(samples)), key=lambda at: samples[at].length)
    return limits, number, samples[number]


def _arrays(limits: Limits, sample: Sample) -> dict[str, Array]:
    """Dense inputs of one row, those that may be left out made as a runtime makes them."""
    batch = batch_of(limits, [sample])
    arrays = {name: np.array(pad(ragged)) for name, ragged in batch.inputs.items()}
    for spec in limits.inputs:
        if spec.name in arrays:
            continue
        ones = mask(batch.lengths, sample.length)
        made = ones if spec.name == limits.mask_input else np.zeros_like(ones)
        arrays[spec.name] = made.astype(DTYPES[spec.datatype])
    return arrays


def _proposals(found: Drifts, traced: list[layers.TracedTensor]) -> Iterator[tuple[str, ...]]:
    """The worst origin with its neighbours, then more origins and wider around them."""
    for count, steps in SHARES:
        nodes = [node for drift in found.origins[:count] for node in around(drift, traced, steps)]
        if named := tuple(dict.fromkeys(node for node in nodes if node)):
            yield named


def _healing(
    settings: RuntimeSettings,
    proposals: list[tuple[str, ...]],
    options: VerificationOptions,
    reading: Reading,
) -> tuple[tuple[str, ...], VerificationReport | None]:
    """The first proposal with which the model is accepted, else the last; with its report."""
    tried: tuple[str, ...] = ()
    report = None
    if settings.precision == "fp32":  # what drifts then is the artifact's own
        return tried, report
    for nodes in proposals:
        tried = tuple(dict.fromkeys((*settings.options.get(KEEP, ()), *nodes)))
        try:
            report = _verified(settings, tried, options, reading)
        except LoadError:
            return tried, None
        if report.verdict.accepted:
            break
    return tried, report


def _verified(
    settings: RuntimeSettings, keep: tuple[str, ...], options: VerificationOptions, reading: Reading
) -> VerificationReport:
    kept = replace(settings, options={**settings.options, KEEP: list(keep)})
    candidate = catalog.create(kept)
    candidate.load()
    try:
        return verify(kept, candidate, options, reading)
    finally:
        candidate.close()
