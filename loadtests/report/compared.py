"""Compares two runs: as tables, and on a page with the curves of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path

from loadtests.report import page
from loadtests.report.figures import busiest, distribution, grid_of, over, percentiles, spans
from loadtests.report.html import facts
from loadtests.report.plots import Figure
from loadtests.report.table import aligned, length_name, percent, verdict
from loadtests.results.compare import Comparison, Difference
from loadtests.results.record import Record, TenantLengthStats
from loadtests.results.report_table import Table, number

METHOD = (
    "Beside each change stands its interval of 99 %: of shares by Newcombe's method, of "
    "percentiles by their ranks. Every {:.3g} requests of A and {:.3g} of B count as one, since "
    "neighbours in a queue are alike. A change is within noise if 'no change' lies in its "
    "interval. Runs of different days can differ by more than that: repeat them, in turn."
)


def lines(found: Comparison) -> list[str]:
    said = [f"A: {verdict(found.a)}", f"B: {verdict(found.b)}", ""]
    said += [f"Warning: {each}." for each in found.warnings]
    for table in tables(found):
        said += ["", table.caption, "", *aligned(table)]
    return [*said, "", method(found)]


def write(found: Comparison, path: Path) -> None:
    """Writes the page; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(found), encoding="utf-8")


def html(found: Comparison) -> str:
    return page.page(f"{found.a.name}: two runs", _parts(found))


def _parts(found: Comparison) -> Iterator[str]:
    a, b = found.a, found.b
    title = a.name if a.name == b.name else f"{a.name} and {b.name}"
    yield page.header(f"{title}: two runs beside each other", a.about, {})
    for name, record in (("A", a), ("B", b)):
        yield page.notice(f"{name}: {verdict(record)}", good=not record.client.behind)
    for each in found.warnings:
        yield page.notice(f"Warning: {each}.", good=False)
    yield page.section("The runs", [page.table(_facts(a, b))])
    yield page.section("What changed", [*map(page.table, tables(found)), page.words(method(found))])
    yield page.section("Pictures", [page.figure(each) for each in _figures(a, b)], "figures")


def method(found: Comparison) -> str:
    return METHOD.format(*found.inflations)


def tables(found: Comparison) -> list[Table]:
    return [
        rates(found.a, found.b),
        _table("By tenant", "tenant", found.tenants),
        _table("By length", "length", found.lengths),
    ]


def rates(a: Record, b: Record) -> Table:
    """Rates of both whole runs, without those that neither run has."""
    pairs = [(name, of(a), of(b)) for name, of in _RATES.items()]
    rows = [(name, x, y, y / x if x and y else None) for name, x, y in pairs if x or y]
    return Table("Rates", ("what", "A", "B", "B over A"), tuple(rows))


def _a_second(count: Callable[[TenantLengthStats], int]) -> Callable[[Record], float | None]:
    return lambda record: count(record.total()) / record.seconds if record.seconds else None


_RATES: dict[str, Callable[[Record], float | None]] = {
    "offered/s": _a_second(lambda cell: cell.offered),
    "answered/s": _a_second(lambda cell: cell.latency.total),
    "in time/s": _a_second(lambda cell: cell.in_slo),
    "rejected/s": _a_second(lambda cell: cell.rejected),
    "tokens back/s": _a_second(lambda cell: cell.tokens_out),
    "padding, share": lambda record: record.padding,
}


def _table(caption: str, noun: str, differences: Sequence[Difference]) -> Table:
    rows = tuple(
        (
            each.part,
            each.what,
            _value(each, each.a),
            _value(each, each.b),
            _change(each),
            each.verdict,
        )
        for each in differences
    )
    return Table(caption, (noun, "what", "A", "B", "change, 99 % interval", "verdict"), rows)


def _value(each: Difference, value: float | None) -> str:
    return percent(value) if each.is_share and value is not None else number(value)


def _change(each: Difference) -> str:
    change = each.change
    if change is None:
        return "–"
    if each.is_share:
        low, value, high = (100 * at for at in (change.low, change.value, change.high))
        return f"{value:+.2f} points ({low:+.2f} to {high:+.2f})"
    if change.high == inf:
        return f"× {change.value:.3f} ({change.low:.3f} or more)" if change.low else "–"
    return f"× {change.value:.3f} ({change.low:.3f} to {change.high:.3f})"


def _facts(a: Record, b: Record) -> Table:
    one, other = facts(a), facts(b)
    rows = tuple((name, one[name] or "–", other[name] or "–") for name in one)
    return Table("", ("", "A", "B"), rows)


# ---- pictures ------------------------------------------------------------------------------------


def _figures(a: Record, b: Record) -> Iterator[Figure]:
    slo_ms = a.slo_ms if a.slo_ms == b.slo_ms else None
    whole = {"A": a.total(), "B": b.total()}
    yield distribution("Latency of all", whole, slo_ms)
    yield percentiles("Percentiles of all", whole, slo_ms)
    yield from _over_time(a, b)
    for name, pair in _pairs(a.by_tenant(), b.by_tenant()):
        yield distribution(f"Latency of {name}", pair, slo_ms)
    lengths = [{length_name(e): cell for e, cell in r.by_length().items()} for r in (a, b)]
    for name, pair in _pairs(*lengths):
        yield distribution(f"Latency of length {name}", pair, slo_ms)


def _pairs(
    a: dict[str, TenantLengthStats], b: dict[str, TenantLengthStats]
) -> Iterator[tuple[str, dict[str, TenantLengthStats]]]:
    for name, cell in busiest(a).items():
        if name in b:
            yield name, {"A": cell, "B": b[name]}


def _over_time(a: Record, b: Record) -> Iterator[Figure]:
    if not a.time_series or len(a.time_series) != len(b.time_series):
        return
    one, other = spans(a.time_series), spans(b.time_series)
    grid = grid_of(one)
    in_time = {"A": [s.in_slo for s in one], "B": [s.in_slo for s in other]}
    yield over("Rate in time", "Requests a second", grid, in_time)
    p99 = {"A": [s.p99_ms for s in one], "B": [s.p99_ms for s in other]}
    yield over("p99 over time", "Milliseconds", grid, p99, log=True)
