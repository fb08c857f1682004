"""Do two runs of the same samples agree, output by output and length by length?

Errors are gathered for each output in each length bucket, so that damage at the long end, where few
rows are, is not averaged away by the many short ones; every stated tolerance holds in every bucket.
A bound that is not stated is not asked for; with none stated, the largest absolute and the largest
relative error may be 1e-3. What cannot be measured at all is no agreement.

Pure: arrays in, a verdict out. Who ran them, and on what, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from deployments.replica.verify.row_error import RowError, row_error

DEFAULT_ERROR = 1e-3
AT_LEAST = frozenset({"cosine", "top1"})  # the others are allowed at most


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Largest and mean error allowed, absolute and relative; least cosine of a row; least share of
    equal choices, 0..1. None: not asked for."""

    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    mean_rel: float | None = None
    cosine: float | None = None
    top1: float | None = None

    def stated(self) -> dict[str, float]:
        """Measure to bound; the default where none is stated."""
        given = {name: bound for name, bound in asdict(self).items() if bound is not None}
        return given or {"max_abs": DEFAULT_ERROR, "max_rel": DEFAULT_ERROR}


MEASURES = tuple(each.name for each in fields(Tolerances))


@dataclass(frozen=True, slots=True)
class Interval:
    """Lengths of a bucket, both ends included; `longest` 0: rows have no length."""

    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"{self.shortest}-{self.longest}" if self.longest else "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """One output in one bucket. cosine, top1: None where the output has none. `worst`: measure to
    the sample (its number, its length) where it was worst. `odd`: elements finite on one side."""

    output: str
    interval: Interval
    rows: int
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    cosine: float | None
    top1: float | None
    odd: int = 0
    note: str = ""
    worst: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, measure: str) -> float | None:
        value: float | None = getattr(self, measure)
        return value


@dataclass(frozen=True, slots=True)
class Breach:
    """A tolerance that does not hold; `measured` None: it cannot be measured."""

    output: str
    interval: Interval
    measure: str
    measured: float | None
    allowed: float
    sample: tuple[int, int] | None = None
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
class Verdict:
    """`measured`: by output, then bucket, shortest first. `samples`: how many rows were run."""

    measured: tuple[Measured, ...]
    breaches: tuple[Breach, ...]
    samples: int

    @property
    def accepted(self) -> bool:
        return not self.breaches


@dataclass(slots=True)
class _Sum:
    rows: int = 0
    elements: int = 0
    sum_abs: float = 0.0
    sum_rel: float = 0.0
    asked: int = 0
    hits: int = 0
    odd: int = 0
    note: str = ""
    worst: dict[str, tuple[float, tuple[int, int]]] = field(default_factory=dict)

    def add(self, error: RowError, sample: tuple[int, int]) -> None:
        self.rows += 1
        self.elements += error.elements
        self.sum_abs += error.sum_abs
        self.sum_rel += error.sum_rel
        self.asked += error.asked
        self.hits += error.hits
        self.odd += error.odd
        self.note = self.note or error.note
        self._keep("max_abs", error.max_abs, sample)
        self._keep("max_rel", error.max_rel, sample)
        if error.cosine is not None:
            self._keep("cosine", -error.cosine, sample)
        if error.asked:
            self._keep("top1", error.asked - error.hits, sample)

    def _keep(self, measure: str, badness: float, sample: tuple[int, int]) -> None:
        if measure not in self.worst or badness > self.worst[measure][0]:
            self.worst[measure] = badness, sample


class Gathered:
    """Takes rows as they come; `verdict` judges what it has got."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Interval], _Sum] = {}
        self._samples: set[int] = set()

    def add(
        self,
        output: str,
        interval: Interval,
        sample: tuple[int, int],
        reference: np.ndarray[Any, Any],
        candidate: np.ndarray[Any, Any],
    ) -> None:
        """One row of one output; `sample`: its number and its length."""
        self._samples.add(sample[0])
        found = self._sums.setdefault((output, interval), _Sum())
        found.add(row_error(reference, candidate), sample)

    def verdict(self, tolerances: Tolerances) -> Verdict:
        order = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in self._sums))}
        places = sorted(self._sums, key=lambda place: (order[place[0]], place[1].longest))
        measured = tuple(_measured(*place, self._sums[place]) for place in places)
        bounds = tolerances.stated()
        breaches = tuple(breach for each in measured for breach in _breaches(each, bounds))
        return Verdict(measured, (*breaches, *_unmeasured(measured, bounds)), len(self._samples))


def _measured(output: str, interval: Interval, found: _Sum) -> Measured:
    worst = {name: sample for name, (_, sample) in found.worst.items()}
    elements = max(1, found.elements)
    return Measured(
        output=output,
        interval=interval,
        rows=found.rows,
        max_abs=found.worst["max_abs"][0],
        mean_abs=found.sum_abs / elements,
        max_rel=found.worst["max_rel"][0],
        mean_rel=found.sum_rel / elements,
        cosine=-found.worst["cosine"][0] if "cosine" in found.worst else None,
        top1=found.hits / found.asked if found.asked else None,
        odd=found.odd,
        note=found.note,
        worst=worst,
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
