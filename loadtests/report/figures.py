"""Draws the pictures of a run: latencies, rates, batches, refusals, streams, the generator.

Of many tenants, only the busiest are drawn; the tables have all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadtests.report import scale
from loadtests.report.latency_figures import (
    distribution,
    of_histograms,
    percent_text,
    percentiles,
)
from loadtests.report.plots import Axis, Figure, bars
from loadtests.report.table import length_name
from loadtests.report.time_series_figures import over_time, spans
from loadtests.results.record import Record, TenantLengthStats
from loadtests.results.report_table import Table

MAX_SERIES = 8
MAX_BARS = 40


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
