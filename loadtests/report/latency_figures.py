"""Draws latencies: as curves of the share that was answered within a time, and as percentiles."""

from __future__ import annotations

from collections.abc import Mapping

from loadtests.report import scale
from loadtests.report.plots import Axis, Figure, MarkRow, Point, Series, lines, rows
from loadtests.report.table import ms
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import TenantLengthStats
from loadtests.results.report_table import Table, number

PERCENTS = (50.0, 90.0, 99.0)


def distribution(
    title: str, cells: Mapping[str, TenantLengthStats], slo_ms: float | None
) -> Figure:
    """Curves by tenant or length. Shares are of the offered requests, so unanswered ones keep a
    curve below 100 %."""
    offered = {name: cell.offered for name, cell in cells.items()}
    found = {name: cell.latency for name, cell in cells.items()}
    says = "Share of offered requests answered within so many milliseconds."
    return of_histograms(title, says, found, offered, _promise(slo_ms))


def percentiles(title: str, cells: Mapping[str, TenantLengthStats], slo_ms: float | None) -> Figure:
    found = {name: cell.latency for name, cell in cells.items() if cell.latency.total}
    values = {name: [ms(each, p) or 0.0 for p in (*PERCENTS, 100)] for name, each in found.items()}
    names = (*(f"p{percent:g}" for percent in PERCENTS), "longest")
    marks = [
        MarkRow(
            name,
            [(value, f"{what} {number(value)} ms") for what, value in zip(names, row, strict=True)],
        )
        for name, row in values.items()
    ]
    everything = [value for row in values.values() for value in row]
    x = Axis("ms", scale.logarithmic([*everything, slo_ms or 0.0]), mark=_promise(slo_ms))
    table = Table(
        "", ("", *(f"{name} ms" for name in names)), tuple((n, *r) for n, r in values.items())
    )
    says = "Of answered requests, from when each was meant to be sent."
    return Figure(title, says, rows(title, marks, x), table, names, shapes=True)


def of_histograms(
    title: str,
    says: str,
    found: Mapping[str, LatencyHistogram],
    offered: Mapping[str, int],
    mark: tuple[float, str] | None = None,
) -> Figure:
    curves = {name: curve(each, offered[name]) for name, each in found.items() if each.total}
    x = Axis("ms", scale.logarithmic(px for each in curves.values() for px, _ in each), mark=mark)
    y = Axis("", scale.Scale(0.0, 1.0), percent_text)
    series = [Series(name, points, _within) for name, points in curves.items()]
    percents = (50, 90, 95, 99, 99.9)
    table = Table(
        "",
        ("", *(f"p{percent:g} ms" for percent in percents)),
        tuple((name, *(ms(found[name], percent) for percent in percents)) for name in curves),
    )
    return Figure(title, says, lines(title, series, x, y), table, tuple(curves))


def curve(histogram: LatencyHistogram, offered: int) -> list[Point]:
    """Points (ms, share of the offered requests that took at most so long)."""
    part = histogram.total / max(offered, histogram.total)
    return [(seconds * 1e3, share * part) for seconds, share in histogram.cumulative()]


def _promise(slo_ms: float | None) -> tuple[float, str] | None:
    return None if slo_ms is None else (slo_ms, f"SLO {number(slo_ms)} ms")


def percent_text(value: float) -> str:
    return f"{value * 100:.4g} %"


def _within(x: float, y: float) -> str:
    return f"{number(x)} ms: {y:.2%}"
