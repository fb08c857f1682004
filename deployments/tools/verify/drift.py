"""Where inside a graph do a candidate's values drift from its reference's, and what would cure it?

A tensor's error is the root mean square of the difference, over the root mean square of the
reference. A tensor drifts if its error is above ten roundings of the number format. An operation is
an origin of the drift if its output's error is several times that of all its inputs. The cure is to
keep an origin and its neighbours in fp32: values that overflow must reach the operation that scales
them back, and values that nearly cancel must arrive unrounded. Pure: two traces in, names out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from runtimes.layers import TracedTensor

ROUNDING: Mapping[str, float] = {
    "fp32": 1e-5,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 2.0**-7,
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
