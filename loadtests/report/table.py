"""Makes the tables of a run's results: by tenant, by length, by reason, and for streams.

The terminal and the page show the same tables. Shares are of the offered requests, so that refused
requests count. Latencies are those of answered requests, from when each was due to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, TenantLengthStats
from loadtests.results.report_table import Cell, Table, number

NOTHING = "–"


def lines(record: Record) -> list[str]:
    """The lines to print in a terminal; they are Markdown too."""
    found = [heading(record), "", verdict(record)]
    for table in tables(record):
        found += ["", table.caption, "", *aligned(table)]
    return found


def heading(record: Record) -> str:
    parts = [record.name, record.protocol, record.model, record.url, record.started]
    return ", ".join(part for part in parts if part)


def verdict(record: Record) -> str:
    """A sentence: whether the run counts, and the share of requests in time."""
    total = record.total()
    if record.client.behind:
        return f"This run does not count: {record.client.behind}."
    limit = _limit(record)
    rate = total.offered / record.seconds if record.seconds else 0.0
    return (
        f"The run counts. {share(total)} of {total.offered:,} offered requests were answered "
        f"{limit}; {number(rate)}/s were offered for {record.seconds:,.4g} s."
    )


def _limit(record: Record) -> str:
    parts = []
    if record.slo_ms is not None:
        parts.append(f"within {number(record.slo_ms)} ms")
    if record.ttft_ms is not None:
        parts.append(f"with a first token within {number(record.ttft_ms)} ms")
    if record.tpot_ms is not None:
        parts.append(f"with {number(record.tpot_ms)} ms or less a further token")
    return " and ".join(parts) or "in time"


def tables(record: Record) -> list[Table]:
    """The tables that are not empty."""
    found = [by_tenant(record), by_length(record)]
    if record.checks:
        found.append(checks(record))
    if record.total().first.total:
        found.append(streams(record))
    if record.total().reasons:
        found.append(reasons(record))
    if record.malformed:
        found.append(
            Table(
                "Malformed requests, by their answers",
                ("answer", "requests"),
                _items(record.malformed),
            )
        )
    found.append(client(record))
    return found


def by_tenant(record: Record) -> Table:
    rows = tuple(_row(name, cell) for name, cell in with_all(record).items())
    return Table("By tenant", _headers("tenant"), rows)


def by_length(record: Record) -> Table:
    cells = [(edge, cell) for edge, cell in record.by_length().items() if cell.offered]
    rows = tuple(_row(length_name(edge), cell) for edge, cell in cells)
    return Table("By length", _headers("length"), rows)


def checks(record: Record) -> Table:
    rows = tuple((claim, said, "yes" if held else "NO") for claim, said, held in record.checks)
    return Table("Promises", ("promise", "measured", "held"), rows)


def streams(record: Record) -> Table:
    """Times to the first token, and times per further token."""
    counts = ("tenant", "streams", "tokens out", "tokens/s")
    headers = (
        *counts,
        "first p50",
        "first p95",
        "first p99",
        "token p50",
        "token p95",
        "token p99",
    )
    cells = with_all(record).items()
    rows = tuple(_stream(name, cell, record.seconds) for name, cell in cells if cell.first.total)
    return Table("Streams, times in ms", headers, rows)


def reasons(record: Record) -> Table:
    """Unanswered requests by reason. Tenants are rows, since there may be many."""
    found = sorted(record.total().reasons.items(), key=lambda item: -item[1])
    kinds = [reason for reason, _ in found]
    rows: list[tuple[Cell, ...]] = [
        (name, *(cell.reasons.get(kind, 0) for kind in kinds))
        for name, cell in with_all(record).items()
    ]
    return Table("Not answered, by reason", ("tenant", *kinds), tuple(rows))


def client(record: Record) -> Table:
    seen = record.client
    headers = ("processes", "connections", "sent", "µs of CPU a request")
    row = (seen.processes, seen.connections, seen.sent, seen.cpu_us)
    lag = tuple(ms(seen.lag, percent) for percent in (50, 99, 100))
    return Table("The generator", (*headers, "lag p50 ms", "p99", "max"), ((*row, *lag),))


def with_all(record: Record) -> dict[str, TenantLengthStats]:
    """Results by tenant, and their sum if there are several."""
    tenants = record.by_tenant()
    return tenants if len(tenants) == 1 else tenants | {"all": record.total()}


# ---- cells ---------------------------------------------------------------------------------------


def _headers(noun: str) -> tuple[str, ...]:
    counts = (noun, "offered", "in time", "rejected", "failed", "retries")
    return (*counts, "p50 ms", "p90", "p95", "p99", "max", "wait p99")


def _items(counts: Mapping[str, int]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(sorted(counts.items(), key=lambda item: -item[1]))


def _row(name: str, cell: TenantLengthStats) -> tuple[Cell, ...]:
    counts = (cell.offered, share(cell), cell.rejected, failed(cell), cell.retries)
    times = tuple(ms(cell.latency, percent) for percent in (50, 90, 95, 99, 100))
    return (name, *counts, *times, ms(cell.wait, 99))


def _stream(name: str, cell: TenantLengthStats, seconds: float) -> tuple[Cell, ...]:
    rate = cell.tokens_out / seconds if seconds else None
    times = tuple(ms(of, p) for of in (cell.first, cell.per_token) for p in (50, 95, 99))
    return (name, cell.first.total, cell.tokens_out, rate, *times)


def length_name(edge: int) -> str:
    return f"up to {edge:,}"


def failed(cell: TenantLengthStats) -> int:
    """Requests that were neither answered nor rejected because of load or limits."""
    return max(0, sum(cell.reasons.values()) - cell.rejected)


def share(cell: TenantLengthStats) -> str:
    """The share of offered requests that were answered in time."""
    return percent(cell.in_slo / cell.offered) if cell.offered else NOTHING


def percent(part: float) -> str:
    """A share (0..1) as text; never rounded up to 100 %."""
    return "100 %" if part == 1.0 else f"{min(100.0 * part, 99.99):.2f} %"


def ms(histogram: LatencyHistogram, percent: float) -> float | None:
    """A percentile in milliseconds; 100: the longest."""
    if percent >= 100 and histogram.total:
        return histogram.max_s * 1e3
    found = histogram.percentile_s(percent)
    return None if found is None else found * 1e3


# ---- text ----------------------------------------------------------------------------------------


def aligned(table: Table) -> list[str]:
    """Markdown whose columns are aligned, numbers to the right."""
    rows = [table.headers, *([number(cell) for cell in row] for row in table.rows)]
    rows = [[_cell(text) for text in row] for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    sides = [_side(column) for column in zip(*table.rows, strict=True)] or ["<"] * len(widths)
    rule = ["-" * w if side == "<" else "-" * (w - 1) + ":" for w, side in _pairs(widths, sides)]
    padded = [
        [f"{text:{side}{w}}" for text, (w, side) in zip(row, _pairs(widths, sides), strict=True)]
        for row in rows
    ]
    return [f"| {' | '.join(row)} |" for row in [padded[0], rule, *padded[1:]]]


def _pairs(widths: Iterable[int], sides: Iterable[str]) -> list[tuple[int, str]]:
    return list(zip(widths, sides, strict=True))


def _side(column: Iterable[Cell]) -> str:
    return ">" if is_numeric(column) else "<"


def is_numeric(column: Iterable[Cell]) -> bool:
    """Whether all cells are numbers, or text of a number and its unit."""
    return all(not isinstance(c, str) or c == NOTHING or c.endswith(" %") for c in column)


def _cell(text: str) -> str:
    """Escapes a text. Names come from files and must not break a line or start a column."""
    return " ".join(text.split()).replace("|", "\\|")
