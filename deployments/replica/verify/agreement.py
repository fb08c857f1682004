"""How far do two runs of the same samples agree, output by output and length by length?

Errors are gathered for each output in each length bucket, and every stated tolerance must hold in
every bucket. So an error at the long end, where there are few rows, is not averaged away by the
many short ones. A bound that is not stated is not checked; if none is stated, the largest absolute
and the largest relative error may be 1e-3. A measure that cannot be taken at all is a breach.

Absolute errors are in the output's own unit. Relative errors are relative to the element itself, or
to the row's root mean square if that is larger, so that a value near zero does not condemn a good
row. A value that is NaN or infinite on one side only has an infinite error.

Pure: arrays in, a verdict out. Nothing here knows who ran them, and on what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Place = tuple[int, int]  # a sample: its number and its length
DEFAULT_ERROR = 1e-3
AT_LEAST = frozenset({"cosine", "top1"})  # bounds from below; all others are from above


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Bounds, None where nothing is asked."""

    max_abs: float | None = None  # largest absolute error
    mean_abs: float | None = None
    max_rel: float | None = None  # largest relative error
    mean_rel: float | None = None
    cosine: float | None = None  # least, of any row
    top1: float | None = None  # least share of equal choices, 0..1

    def stated(self) -> dict[str, float]:
        """Bounds by measure; the defaults if none is stated."""
        given = {name: bound for name, bound in asdict(self).items() if bound is not None}
        return given or {"max_abs": DEFAULT_ERROR, "max_rel": DEFAULT_ERROR}


MEASURES = tuple(each.name for each in fields(Tolerances))


@dataclass(frozen=True, slots=True)
class Interval:
    """The lengths in a bucket, both ends included. `longest` 0: rows have no length."""

    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"{self.shortest}-{self.longest}" if self.longest else "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """One output in one bucket."""

    output: str
    interval: Interval
    rows: int
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    cosine: float | None  # least of any row; None: the output has none
    top1: float | None  # None: the output has no choices
    odd: int = 0  # elements that are finite on one side only
    note: str = ""
    # By measure, the sample where it was worst.
    worst: Mapping[str, Place] = field(default_factory=dict)

    def of(self, measure: str) -> float | None:
        value: float | None = getattr(self, measure)
        return value


@dataclass(frozen=True, slots=True)
class Breach:
    """A tolerance that does not hold. `measured` None: it cannot be measured."""

    output: str
    interval: Interval
    measure: str
    measured: float | None
    allowed: float
    sample: Place | None = None
    note: str = ""

    def sentence(self) -> str:
        if self.measured is None:
            return f"{self.measure} is asked for ({self.allowed:g}), {self.note}"
        rows = f", rows of {self.interval} tokens" if self.interval.longest else ""
        least = "at least" if self.measure in AT_LEAST else "at most"
        said = f"output {self.output}{rows}: {self.measure} is {self.measured:.4g}, "
        said += f"allowed {least} {self.allowed:g}"
        if self.sample is not None:
            length = f", {self.sample[1]} tokens" if self.interval.longest else ""
            said += f" (worst in sample {self.sample[0]}{length})"
        return f"{said}; {self.note}" if self.note else said


@dataclass(frozen=True, slots=True)
class AgreementVerdict:
    """`measured`: by output, then by bucket, shortest first. `samples`: how many were run."""

    measured: tuple[Measured, ...]
    breaches: tuple[Breach, ...]
    samples: int

    @property
    def accepted(self) -> bool:
        return not self.breaches


@dataclass(frozen=True, slots=True)
class RowDifference:
    """How far one row of one output differs."""

    elements: int
    max_abs: float
    sum_abs: float
    max_rel: float
    sum_rel: float
    cosine: float | None = None  # of the flattened rows; None: no vectors of real numbers
    asked: int = 0  # choices between classes (along the last axis) in the row
    hits: int = 0  # choices that are equal
    odd: int = 0  # elements that are finite on one side only
    note: str = ""  # what numbers cannot say


class ErrorStatistics:
    """Takes in rows as they come; `verdict` judges them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Interval], list[tuple[Place, RowDifference]]] = {}

    def add(
        self, output: str, interval: Interval, sample: Place, reference: Array, candidate: Array
    ) -> None:
        """Take in one row of one output."""
        found = self._rows.setdefault((output, interval), [])
        found.append((sample, row_difference(reference, candidate)))

    def verdict(self, tolerances: Tolerances) -> AgreementVerdict:
        order = list(dict.fromkeys(output for output, _ in self._rows))
        places = sorted(self._rows, key=lambda place: (order.index(place[0]), place[1].longest))
        measured = tuple(_measured(*place, self._rows[place]) for place in places)
        bounds = tolerances.stated()
        breaches = tuple(breach for each in measured for breach in _breaches(each, bounds))
        samples = {number for rows in self._rows.values() for (number, _), _ in rows}
        return AgreementVerdict(measured, (*breaches, *_unmeasured(measured, bounds)), len(samples))


# Of a row, by measure: how bad it is; None if it has none.
_BADNESS: Mapping[str, Callable[[RowDifference], float | None]] = {
    "max_abs": lambda row: row.max_abs,
    "max_rel": lambda row: row.max_rel,
    "cosine": lambda row: None if row.cosine is None else -row.cosine,
    "top1": lambda row: row.asked - row.hits if row.asked else None,
}


def _measured(
    output: str, interval: Interval, found: Sequence[tuple[Place, RowDifference]]
) -> Measured:
    rows = [row for _, row in found]
    elements, asked = max(1, sum(row.elements for row in rows)), sum(row.asked for row in rows)
    worst: dict[str, tuple[float, Place]] = {}
    for measure, badness in _BADNESS.items():
        judged = [(bad, place) for place, row in found if (bad := badness(row)) is not None]
        if judged:
            worst[measure] = max(judged, key=lambda pair: pair[0])
    return Measured(
        output=output,
        interval=interval,
        rows=len(rows),
        max_abs=worst["max_abs"][0],
        mean_abs=sum(row.sum_abs for row in rows) / elements,
        max_rel=worst["max_rel"][0],
        mean_rel=sum(row.sum_rel for row in rows) / elements,
        cosine=-worst["cosine"][0] if "cosine" in worst else None,
        top1=sum(row.hits for row in rows) / asked if asked else None,
        odd=sum(row.odd for row in rows),
        note=next((row.note for row in rows if row.note), ""),
        worst={measure: place for measure, (_, place) in worst.items()},
    )


def _breaches(found: Measured, bounds: Mapping[str, float]) -> Iterator[Breach]:
    odd = f"{found.odd} values are not finite on one side alone" if found.odd else ""
    for measure, allowed in bounds.items():
        value = found.of(measure)
        if value is None:
            continue
        held = value >= allowed if measure in AT_LEAST else value <= allowed
        if not held:
            sample = found.worst.get(measure)
            note = "; ".join(filter(None, (found.note, odd)))
            yield Breach(found.output, found.interval, measure, value, allowed, sample, note)


def _unmeasured(measured: tuple[Measured, ...], bounds: Mapping[str, float]) -> Iterator[Breach]:
    if not measured:
        nothing = "nothing was compared: reference and candidate have no output in common"
        yield Breach("", Interval(0, 0), "agreement", None, 0.0, None, nothing)
        return
    for measure, allowed in bounds.items():
        if all(each.of(measure) is None for each in measured):
            nobody = "no output of real numbers has it"
            yield Breach("", Interval(0, 0), measure, None, allowed, None, nobody)


def row_difference(reference: Array, candidate: Array) -> RowDifference:
    """Both rows in the output's shape without the batch axis. Texts are equal or not."""
    if reference.shape != candidate.shape:
        note = f"has the shape {list(candidate.shape)} for {list(reference.shape)}"
        return RowDifference(1, inf, inf, inf, inf, 0.0, asked=1, note=note)
    if reference.dtype.kind == "O":
        unlike = np.atleast_1d(reference != candidate).astype(np.float64)
        return _of(unlike, unlike)
    # bfloat16 is not one of numpy's own types.
    real = reference.dtype.kind in "fV" or "float" in reference.dtype.name
    # A row may be a single number.
    left, right = (np.atleast_1d(side.astype(np.float64)) for side in (reference, candidate))
    errors = _absolute(left, right)
    found = _of(errors, _relative(errors, left))
    if not real or not left.size:
        return found
    asked, hits = _choices(left, right)
    odd = int(np.count_nonzero(np.isfinite(left) != np.isfinite(right)))
    return replace(found, cosine=_cosine(left, right), asked=asked, hits=hits, odd=odd)


def _of(errors: Array, relative: Array) -> RowDifference:
    if not errors.size:
        return RowDifference(0, 0.0, 0.0, 0.0, 0.0)
    absolute = float(errors.max()), float(errors.sum())
    return RowDifference(errors.size, *absolute, float(relative.max()), float(relative.sum()))


def _absolute(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        errors: Array = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    errors[np.isnan(errors)] = inf
    errors[same] = 0.0
    return errors


def _relative(errors: Array, left: Array) -> Array:
    finite = np.where(np.isfinite(left), left, 0.0)
    size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    floor = np.maximum(np.abs(finite), size)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: Array = np.where(errors == 0.0, 0.0, errors / floor)
    return relative


def _cosine(left: Array, right: Array) -> float:
    """1 for two rows of zeros; 0 if only one is, or if a number is not finite."""
    left, right = left.reshape(-1), right.reshape(-1)
    if np.array_equal(left, right, equal_nan=True):
        return 1.0
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return 0.0
    # Scaled first: squares of numbers near the largest float would overflow.
    left = left / (np.abs(left).max() or 1.0)
    right = right / (np.abs(right).max() or 1.0)
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.clip(left @ right / norms, -1.0, 1.0)) if norms else 0.0


def _choices(left: Array, right: Array) -> tuple[int, int]:
    """Numbers of choices, and of equal ones. The candidate's choice counts as equal if it is as
    good by the reference's values."""
    if left.ndim == 0 or left.shape[-1] < 2:
        return 0, 0
    left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
    known = ~np.isnan(left).any(axis=1) & ~np.isnan(right).any(axis=1)
    chosen = np.take_along_axis(left, right.argmax(axis=1, keepdims=True), axis=1)[:, 0]
    hits = known & (chosen >= left.max(axis=1))
    return len(left), int(np.count_nonzero(hits))
