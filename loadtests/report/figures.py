"""Draws the pictures of a run: latencies, rates, batches, refusals, streams, the generator.

Of many tenants, only the busiest are drawn; the tables have all of them. Over time, seconds are
joined into spans until there are at most `MAX_SPANS`. A span's rates are means. Its percentiles
and its requests under way are those of its worst second, since percentiles cannot be averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.report import scale
from loadtests.report.plots import Axis, Figure, MarkRow, Point, Series, bars, lines, rows
from loadtests.report.table import length_name, ms
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, Second, TenantLengthStats
from loadtests.results.report_table import Table, number

MAX_SERIES = 8
MAX_BARS = 40
MAX_SPANS = 120
PERCENTS = (50.0, 90.0, 99.0)
Values = Mapping[str, Sequence[float | None]]


def figures(record: Record) -> Iterator[Figure]:
    """All figures of a run, the most important first."""
    tenants, lengths = busiest(record.by_tenant()), by_length(record)
    yield distribution("Latency by tenant", tenants, record.slo_ms)
    yield distribution("Latency by length", lengths, record.slo_ms)
    yield percentiles("Percentiles by tenant", tenants, record.slo_ms)
    yield percentiles("Percentiles by length", lengths, record.slo_ms)
    if record.time_series:
        yield from over_time(spans(record.time_series))
    if record.batch_sizes:
        yield batches(record)
    if reasons := record.total().reasons:
        yield refusals(reasons)
    if record.total().first.total:
        yield from streams(tenants)
    if record.client.lag.total:
        yield lag(record)


# ---- latencies ---------------------------------------------------------------------------------


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


# ---- over time ---------------------------------------------------------------------------------


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


# ---- what batches held, what was refused ---------------------------------------------------------


def batches(record: Record) -> Figure:
    found = binned(record.batch_sizes)
    answers = sum(found.values())
    padding = (
        ""
        if record.padding is None
        else f" Padding was {percent_text(round(record.padding, 2))} of what was run."
    )
    points = [
        (name, count / answers, f"batches of {name}: {count:,} answers")
        for name, count in found.items()
    ]
    y = Axis("", scale.linear(height for _, height, _ in points), percent_text)
    svg = bars("Batch sizes", points, "rows in the batch", y)
    table = Table("", ("rows in the batch", "answers"), tuple(found.items()))
    return Figure("Batch sizes", f"Share of answers by the batch they ran in.{padding}", svg, table)


def binned(sizes: Mapping[int, int]) -> dict[str, int]:
    """Counts by size; for many sizes, by intervals wide enough that there are few. Empty sizes in
    between are included."""
    least, most = min(sizes), max(sizes)
    width = -(-(most - least + 1) // MAX_BARS)
    found: dict[str, int] = {}
    for low in range(least, most + 1, width):
        name = str(low) if width == 1 else f"{low}–{low + width - 1}"
        found[name] = sum(sizes.get(size, 0) for size in range(low, low + width))
    return found


def refusals(reasons: Mapping[str, int]) -> Figure:
    found = sorted(reasons.items(), key=lambda item: -item[1])
    shown = [
        *found[: MAX_SERIES - 1],
        ("others", sum(count for _, count in found[MAX_SERIES - 1 :])),
    ]
    points = [(name, count, f"{name}: {count:,}") for name, count in shown if count]
    y = Axis("", scale.linear(height for _, height, _ in points))
    svg = bars("Not answered, by reason", points, "status, or what went wrong", y)
    table = Table("", ("reason", "requests"), tuple(found))
    return Figure(
        "Not answered, by reason", "Requests in the whole of the measured time.", svg, table
    )


# ---- streams, the generator ----------------------------------------------------------------------


def streams(tenants: Mapping[str, TenantLengthStats]) -> Iterator[Figure]:
    first = {name: cell.first for name, cell in tenants.items()}
    after = {name: cell.per_token for name, cell in tenants.items()}
    for title, says, found in (
        ("First token", "Share of streams whose first token came within so many ms.", first),
        ("Time per token", "Share of streams by their mean ms a token after the first.", after),
    ):
        yield of_histograms(title, says, found, {name: each.total for name, each in found.items()})


def lag(record: Record) -> Figure:
    seen = record.client.lag
    says = "How late requests left this machine: the generator's own part of every latency."
    return of_histograms("The generator's lag", says, {"lag": seen}, {"lag": seen.total})


# ---- who is drawn --------------------------------------------------------------------------------


def busiest(cells: Mapping[str, TenantLengthStats]) -> dict[str, TenantLengthStats]:
    """The tenants with the most requests, as many as there are colours, in their own order; none
    without requests."""
    called = {name: cell for name, cell in cells.items() if cell.offered}
    kept = sorted(called, key=lambda name: -called[name].offered)[:MAX_SERIES]
    return {name: cell for name, cell in called.items() if name in kept}


def by_length(record: Record) -> dict[str, TenantLengthStats]:
    return busiest({length_name(edge): cell for edge, cell in record.by_length().items()})
