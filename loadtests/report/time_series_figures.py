"""Draws a run over time: Rates, what is under way, percentiles and refusals over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadtests.report import scale
from loadtests.report.figure import Figure
from loadtests.report.plots import Axis, Series, lines
from loadtests.report.time_series import TimeSpan
from loadtests.results.report_table import Table, number

Values = Mapping[str, Sequence[float | None]]


def over_time(spans: Sequence[TimeSpan]) -> Iterator[Figure]:
    rates = {
        "offered": [span.offered for span in spans],
        "answered": [span.answered for span in spans],
        "in time": [span.in_slo for span in spans],
    }
    yield over("Rate", "Requests a second", spans, rates)
    under_way = {"under way": [span.under_way for span in spans]}
    yield over("Under way", "Sent and not ended: queues and devices", spans, under_way)
    times = {"p50 ms": [span.p50_ms for span in spans], "p99 ms": [span.p99_ms for span in spans]}
    says = "Milliseconds, by when requests were meant to be sent"
    yield over("Percentiles over time", says, spans, times, log=True)
    lost = {
        "rejected": [span.rejected for span in spans],
        "failed": [span.failed for span in spans],
    }
    if any(any(values) for values in lost.values()):
        yield over("Not answered, over time", "Requests a second", spans, lost)


def over(
    title: str, says: str, spans: Sequence[TimeSpan], values: Values, *, log: bool = False
) -> Figure:
    """`says` goes without its full stop: what a point stands for is added."""
    series = [
        Series(name, [(s.at_s, v) for s, v in zip(spans, row, strict=True) if v is not None], _at_s)
        for name, row in values.items()
    ]
    heights = [height for each in series for _, height in each.points]
    y = Axis("", scale.logarithmic(heights) if log else scale.linear(heights))
    x = Axis("s", scale.Scale(0.0, float(spans[-1].at_s + spans[-1].seconds)))
    cells = tuple((span.at_s, *row) for span, *row in zip(spans, *values.values(), strict=True))
    table = Table("", ("s", *values), cells)
    joined = f"; each point stands for {spans[0].seconds} s" if spans[0].seconds > 1 else ""
    return Figure(title, f"{says}{joined}.", lines(title, series, x, y), table, tuple(values))


def _at_s(x: float, y: float) -> str:
    return f"{x:g} s: {number(y)}"
