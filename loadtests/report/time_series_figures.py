"""How is a run's course drawn? Rates, what is under way, percentiles and refusals over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadtests.report import scale
from loadtests.report.figure import Figure
from loadtests.report.plots import Axis, Series, lines
from loadtests.report.time_series import Span
from loadtests.results.report_table import Table, number

Values = Mapping[str, Sequence[float | None]]


def over_time(course: Sequence[Span]) -> Iterator[Figure]:
    rates = {
        "offered": [span.offered for span in course],
        "answered": [span.answered for span in course],
        "in time": [span.in_slo for span in course],
    }
    yield over("Rate", "Requests a second", course, rates)
    under_way = {"under way": [span.under_way for span in course]}
    yield over("Under way", "Sent and not ended: queues and devices", course, under_way)
    times = {"p50 ms": [span.p50_ms for span in course], "p99 ms": [span.p99_ms for span in course]}
    says = "Milliseconds, by when requests were meant to be sent"
    yield over("Percentiles over time", says, course, times, log=True)
    lost = {
        "rejected": [span.rejected for span in course],
        "failed": [span.failed for span in course],
    }
    if any(any(values) for values in lost.values()):
        yield over("Not answered, over time", "Requests a second", course, lost)


def over(
    title: str, says: str, course: Sequence[Span], values: Values, *, log: bool = False
) -> Figure:
    """`says` goes without its full stop: what a point stands for is added."""
    series = [
        Series(
            name, [(s.at_s, v) for s, v in zip(course, row, strict=True) if v is not None], _at_s
        )
        for name, row in values.items()
    ]
    heights = [height for each in series for _, height in each.points]
    y = Axis("", scale.logarithmic(heights) if log else scale.linear(heights))
    x = Axis("s", scale.Scale(0.0, float(course[-1].at_s + course[-1].seconds)))
    cells = tuple((span.at_s, *row) for span, *row in zip(course, *values.values(), strict=True))
    table = Table("", ("s", *values), cells)
    joined = f"; each point stands for {course[0].seconds} s" if course[0].seconds > 1 else ""
    return Figure(title, f"{says}{joined}.", lines(title, series, x, y), table, tuple(values))


def _at_s(x: float, y: float) -> str:
    return f"{x:g} s: {number(y)}"
