"""Finds the tensor inside a model that drifts first from its reference, and what to keep in fp32.

Traces the worst sample (or the longest) through candidate and reference. A tensor's error is the
root mean square of the difference, over that of the reference; it drifts if the error is above ten
roundings of the number format. An operation is an origin of the drift if its output's error is
several times that of all its inputs. The cure is to keep an origin and its neighbours in fp32:
values that overflow must reach the operation that scales them back, and values that nearly cancel
must arrive unrounded. The model is built so and verified again. Tensors are matched by name, so the
reference is the same backend in fp32, or another that runs the same ONNX graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
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
from runtimes import catalog, layers, source
from runtimes.errors import LoadError
from runtimes.graph.dense import mask, pad
from runtimes.layers import TracedTensor
from runtimes.source import SourceKind
from runtimes.types import DTYPES, Limits, RuntimeSettings

ROUNDING: Mapping[str, float] = {
    "fp32": 1e-5,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 2.0**-7,
    "fp8": 2.0**-4,
}
ROUNDINGS = 10
WORSE = 4.0  # times the error of its inputs: from there on the error is the operation's own

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Drift:
    """One tensor's error."""

    name: str
    node: str  # the operation that made it
    kind: str
    error: float  # relative; inf if values are finite on one side only
    input_error: float  # the largest error among the operation's inputs
    largest: float  # the reference's largest absolute value


@dataclass(frozen=True, slots=True)
class Drifts:
    """The drifts of a candidate."""

    compared: int  # tensors that both traces have
    allowed: float  # the error that is rounding alone
    first: Drift | None  # the first above `allowed`, in the order of computation
    origins: tuple[Drift, ...]  # the worst first


def drifts(
    reference: Sequence[TracedTensor], candidate: Sequence[TracedTensor], precision: str
) -> Drifts:
    """Over the tensors of a name and shape that both have."""
    wanted = {layer.name: layer for layer in reference}
    ordered = [layer for layer in candidate if _comparable(wanted.get(layer.name), layer)]
    errors = {layer.name: tensor_error(wanted[layer.name].value, layer.value) for layer in ordered}
    feeds = {layer.name: layer.inputs for layer in candidate}
    found = [
        Drift(
            layer.name,
            layer.node,
            layer.kind,
            errors[layer.name],
            _input_error(layer.name, feeds, errors),
            _largest(wanted[layer.name].value),
        )
        for layer in ordered
    ]
    allowed = ROUNDINGS * ROUNDING[precision]
    beyond = [drift for drift in found if drift.error > allowed]
    own = [
        drift
        for drift in beyond
        if drift.error > WORSE * drift.input_error or drift.input_error == 0.0
    ]
    worst_first = sorted(own, key=lambda drift: -drift.error)
    return Drifts(len(found), allowed, beyond[0] if beyond else None, tuple(worst_first))


def tensor_error(reference: Array, candidate: Array) -> float:
    """Relative root mean square of the difference."""
    left, right = reference.astype(np.float64), candidate.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = np.where(same, 0.0, left - right)
    if not np.isfinite(wrong).all():
        return inf
    size = float(np.sqrt(np.mean(np.square(np.where(np.isfinite(left), left, 0.0)))))
    error = float(np.sqrt(np.mean(np.square(wrong))))
    return error / size if size else (inf if error else 0.0)


def _comparable(left: TracedTensor | None, right: TracedTensor) -> bool:
    return left is not None and left.value.shape == right.value.shape and right.value.size > 0


def _input_error(
    name: str, feeds: Mapping[str, tuple[str, ...]], errors: Mapping[str, float]
) -> float:
    """The worst error among the nearest tensors before it that were compared."""
    worst, waiting, seen = 0.0, list(feeds.get(name, ())), {name}
    while waiting:
        before = waiting.pop()
        if before in seen:
            continue
        seen.add(before)
        if before in errors:
            worst = max(worst, errors[before])
        else:
            waiting += feeds.get(before, ())
    return worst


def around(drift: Drift, candidate: Sequence[TracedTensor], steps: int) -> tuple[str, ...]:
    """Its operation and those at most so many steps before or behind it, the nearest first."""
    found, fresh = {drift.name: drift.node}, {drift.name}
    for _ in range(steps):
        before = {name for layer in candidate if layer.name in fresh for name in layer.inputs}
        behind = {layer.name for layer in candidate if fresh & set(layer.inputs)}
        fresh = (before | behind) - found.keys()
        found |= {layer.name: layer.node for layer in candidate if layer.name in fresh}
    return tuple(dict.fromkeys(found.values()))


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


KEEP = "keep_fp32"
SHARES = ((1, 1), (4, 2), (1_000_000, 3))  # (origins, steps around them) to try, in turn
MAX_SHOWN = 5


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


def _proposals(found: Drifts, traced: list[TracedTensor]) -> Iterator[tuple[str, ...]]:
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
