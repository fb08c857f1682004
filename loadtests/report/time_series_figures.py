"""Draws a run over time: rates, requests under way, percentiles and refusals.

Seconds are joined into spans until there are at most `MAX_SPANS`. A span's rates are means. Its
percentiles and its requests under way are those of its worst second, since percentiles cannot be
averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.report import scale
from loadtests.report.plots import Axis, Figure, Series, lines
from loadtests.results.record import Second
from loadtests.results.report_table import Table, number

MAX_SPANS = 120
Values = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """The points in time of a diagram."""

    at_s: Sequence[float]  # when each point's time begins
    every_s: float  # the time that each point stands for


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """`seconds` joined seconds from `at_s` on. Rates are a second. Percentiles are None if nothing
    was answered."""

    at_s: int
    seconds: int
    offered: float
    answered: float
    in_slo: float
    rejected: float
    failed: float
    under_way: int
    p50_ms: float | None
    p99_ms: float | None


def spans(seconds: Sequence[Second]) -> list[TimeSpan]:
    width = max(1, -(-len(seconds) // MAX_SPANS))
    return [_span(at, width, seconds[at : at + width]) for at in range(0, len(seconds), width)]


def grid_of(spans: Sequence[TimeSpan]) -> TimeGrid:
    return TimeGrid([span.at_s for span in spans], float(spans[0].seconds))


def _span(at_s: int, width: int, part: Sequence[Second]) -> TimeSpan:
    return TimeSpan(
        at_s,
        width,
        offered=mean(second.offered for second in part),
        answered=mean(second.answered for second in part),
        in_slo=mean(second.in_slo for second in part),
        rejected=mean(second.rejected for second in part),
        failed=mean(second.failed for second in part),
        under_way=max(second.under_way for second in part),
        p50_ms=_worst(second.p50_ms for second in part),
        p99_ms=_worst(second.p99_ms for second in part),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def over_time(spans: Sequence[TimeSpan]) -> Iterator[Figure]:
    grid = grid_of(spans)
    rates = {
        "offered": [span.offered for span in spans],
        "answered": [span.answered for span in spans],
        "in time": [span.in_slo for span in spans],
    }
    yield over("Rate", "Requests a second", grid, rates)
    under_way = {"under way": [span.under_way for span in spans]}
    yield over("Under way", "Sent and not ended: queues and devices", grid, under_way)
    times = {"p50 ms": [span.p50_ms for span in spans], "p99 ms": [span.p99_ms for span in spans]}
    says = "Milliseconds, by when requests were meant to be sent"
    yield over("Percentiles over time", says, grid, times, log=True)
    lost = {
        "rejected": [span.rejected for span in spans],
        "failed": [span.failed for span in spans],
    }
    if any(any(values) for values in lost.values()):
        yield over("Not answered, over time", "Requests a second", grid, lost)


def over(title: str, says: str, grid: TimeGrid, values: Values, *, log: bool = False) -> Figure:
    """A diagram over time. `says` has no full stop, because the span of a point is appended."""
    series = [
        Series(
            name, [(at, v) for at, v in zip(grid.at_s, row, strict=True) if v is not None], _at_s
        )
        for name, row in values.items()
    ]
    heights = [height for each in series for _, height in each.points]
    y = Axis("", scale.logarithmic(heights) if log else scale.linear(heights))
    x = Axis("s", scale.Scale(0.0, grid.at_s[-1] + grid.every_s))
    cells = tuple(zip(grid.at_s, *values.values(), strict=True))
    table = Table("", ("s", *values), cells)
    joined = f"; each point stands for {grid.every_s:g} s" if grid.every_s > 1 else ""
    return Figure(title, f"{says}{joined}.", lines(title, series, x, y), table, tuple(values))


def _at_s(x: float, y: float) -> str:
    return f"{x:g} s: {number(y)}"
