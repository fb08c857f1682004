"""Which pictures does a run have? Latencies, rates, batches, refusals, streams, the generator.

A figure is a picture with its legend, what it says in a sentence, and the same numbers as a table
for those who cannot see it. Many tenants: the busiest are drawn, all are in the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtests.report import scale
from loadtests.report.course import Span, spans
from loadtests.report.plots import Axis, Point, Row, Series, bars, lines, rows
from loadtests.report.table import length_name, ms
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Cell, Record
from loadtests.results.report_table import Table, number

MOST_SERIES = 8
PERCENTS = (50.0, 90.0, 99.0)
MOST_BARS = 40


@dataclass(frozen=True, slots=True)
class Figure:
    """`legend`: what each series or mark is, in its order; `shapes`: marks rather than lines."""

    title: str
    says: str
    svg: str
    table: Table
    legend: tuple[str, ...] = ()
    shapes: bool = False


def figures(record: Record) -> Iterator[Figure]:
    """In the order in which they are asked about."""
    tenants, lengths = busiest(record.by_tenant()), by_length(record)
    yield distribution("Latency by tenant", tenants, record.slo_ms)
    yield distribution("Latency by length", lengths, record.slo_ms)
    yield percentiles("Percentiles by tenant", tenants, record.slo_ms)
    yield percentiles("Percentiles by length", lengths, record.slo_ms)
    if record.course:
        yield from over_time(spans(record.course))
    if record.batch_sizes:
        yield batches(record)
    if reasons := record.total().reasons:
        yield refusals(reasons)
    if record.total().first.total:
        yield from streams(tenants)
    if record.client.lag.total:
        yield lag(record)


# ---- latencies -----------------------------------------------------------------------------------


def distribution(title: str, cells: Mapping[str, Cell], slo_ms: float | None) -> Figure:
    """Shares are of what was offered: what was not answered keeps a curve below 100 %."""
    offered = {name: cell.offered for name, cell in cells.items()}
    found = {name: cell.latency for name, cell in cells.items()}
    says = "Share of offered requests answered within so many milliseconds."
    return _distribution(title, says, found, offered, _promise(slo_ms))


def percentiles(title: str, cells: Mapping[str, Cell], slo_ms: float | None) -> Figure:
    found = {name: cell.latency for name, cell in cells.items() if cell.latency.total}
    values = {name: [ms(each, p) or 0.0 for p in (*PERCENTS, 100)] for name, each in found.items()}
    names = (*(f"p{percent:g}" for percent in PERCENTS), "longest")
    marks = [
        Row(
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


def _distribution(
    title: str,
    says: str,
    found: Mapping[str, LatencyHistogram],
    offered: Mapping[str, int],
    mark: tuple[float, str] | None = None,
) -> Figure:
    curves = {name: curve(each, offered[name]) for name, each in found.items() if each.total}
    x = Axis("ms", scale.logarithmic(px for each in curves.values() for px, _ in each), mark=mark)
    y = Axis("", scale.Scale(0.0, 1.0), _percent)
    series = [Series(name, points, _within) for name, points in curves.items()]
    percents = (50, 90, 95, 99, 99.9)
    table = Table(
        "",
        ("", *(f"p{percent:g} ms" for percent in percents)),
        tuple((name, *(ms(found[name], percent) for percent in percents)) for name in curves),
    )
    return Figure(title, says, lines(title, series, x, y), table, tuple(curves))


def curve(histogram: LatencyHistogram, offered: int) -> list[Point]:
    """(ms, share of what was offered that took at most that)."""
    part = histogram.total / max(offered, histogram.total)
    return [(seconds * 1e3, share * part) for seconds, share in histogram.cumulative()]


def _promise(slo_ms: float | None) -> tuple[float, str] | None:
    return None if slo_ms is None else (slo_ms, f"SLO {number(slo_ms)} ms")


# ---- over time -----------------------------------------------------------------------------------


def over_time(course: Sequence[Span]) -> Iterator[Figure]:
    rates = {
        "offered": [span.offered for span in course],
        "answered": [span.answered for span in course],
        "in time": [span.in_slo for span in course],
    }
    each = "" if course[0].seconds == 1 else f"; each point stands for {course[0].seconds} s"
    yield _course("Rate", f"Requests a second{each}.", course, rates)
    waiting: dict[str, list[float]] = {"under way": [span.under_way for span in course]}
    yield _course("Under way", f"Sent and not ended: queues and devices{each}.", course, waiting)
    worst = "" if not each else f"{each}, of whose seconds the worst"
    times = {"p50 ms": [span.p50_ms for span in course], "p99 ms": [span.p99_ms for span in course]}
    says = f"Milliseconds, by when requests were meant to be sent{worst}."
    yield _course("Percentiles over time", says, course, times, log=True)
    lost = {
        "rejected": [span.rejected for span in course],
        "failed": [span.failed for span in course],
    }
    if any(any(values) for values in lost.values()):
        yield _course("Not answered, over time", f"Requests a second{each}.", course, lost)


def _course(
    title: str,
    says: str,
    course: Sequence[Span],
    values: Mapping[str, Sequence[float | None]],
    *,
    log: bool = False,
) -> Figure:
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
    return Figure(title, says, lines(title, series, x, y), table, tuple(values))


# ---- what batches held, what was refused ---------------------------------------------------------


def batches(record: Record) -> Figure:
    found = binned(record.batch_sizes)
    answers = sum(found.values())
    padding = (
        ""
        if record.padding is None
        else f" Padding was {_percent(round(record.padding, 2))} of what was run."
    )
    points = [
        (name, count / answers, f"batches of {name}: {count:,} answers")
        for name, count in found.items()
    ]
    y = Axis("", scale.linear(height for _, height, _ in points), _percent)
    svg = bars("Batch sizes", points, "rows in the batch", y)
    table = Table("", ("rows in the batch", "answers"), tuple(found.items()))
    return Figure("Batch sizes", f"Share of answers by the batch they ran in.{padding}", svg, table)


def binned(sizes: Mapping[int, int]) -> dict[str, int]:
    """Counts by size, or by as wide an interval of sizes as keeps them few; gaps are shown."""
    least, most = min(sizes), max(sizes)
    width = -(-(most - least + 1) // MOST_BARS)
    found: dict[str, int] = {}
    for low in range(least, most + 1, width):
        name = str(low) if width == 1 else f"{low}–{low + width - 1}"
        found[name] = sum(sizes.get(size, 0) for size in range(low, low + width))
    return found


def refusals(reasons: Mapping[str, int]) -> Figure:
    found = sorted(reasons.items(), key=lambda item: -item[1])
    shown = [
        *found[: MOST_SERIES - 1],
        ("others", sum(count for _, count in found[MOST_SERIES - 1 :])),
    ]
    points = [(name, count, f"{name}: {count:,}") for name, count in shown if count]
    y = Axis("", scale.linear(height for _, height, _ in points))
    svg = bars("Not answered, by reason", points, "status, or what went wrong", y)
    table = Table("", ("reason", "requests"), tuple(found))
    return Figure(
        "Not answered, by reason", "Requests in the whole of the measured time.", svg, table
    )


# ---- streams, the generator ----------------------------------------------------------------------


def streams(tenants: Mapping[str, Cell]) -> Iterator[Figure]:
    first = {name: cell.first for name, cell in tenants.items()}
    after = {name: cell.per_token for name, cell in tenants.items()}
    for title, says, found in (
        ("First token", "Share of streams whose first token came within so many ms.", first),
        ("Time per token", "Share of streams by their mean ms a token after the first.", after),
    ):
        yield _distribution(title, says, found, {name: each.total for name, each in found.items()})


def lag(record: Record) -> Figure:
    seen = record.client.lag
    says = "How late requests left this machine: the generator's own part of every latency."
    return _distribution("The generator's lag", says, {"lag": seen}, {"lag": seen.total})


# ---- who is drawn --------------------------------------------------------------------------------


def busiest(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """As many as can be told apart, in their own order; without those that asked for nothing."""
    called = {name: cell for name, cell in cells.items() if cell.offered}
    kept = sorted(called, key=lambda name: -called[name].offered)[:MOST_SERIES]
    return {name: cell for name, cell in called.items() if name in kept}


def by_length(record: Record) -> dict[str, Cell]:
    return busiest({length_name(edge): cell for edge, cell in record.by_length().items()})


def _percent(value: float) -> str:
    return f"{value * 100:.4g} %"


def _within(x: float, y: float) -> str:
    return f"{number(x)} ms: {y:.2%}"


def _at_s(x: float, y: float) -> str:
    return f"{x:g} s: {number(y)}"
