"""Prints the result of a simulated run in a terminal: tables and small charts.

Shares are of the offered requests. Latencies are those of answered requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.tools.console.charts import chart
from deployments.tools.simulate.simulated_scaling import show_scaling
from deployments.tools.simulate.simulation import SimulationResult
from loadtests.results.summary import Group, Summary


def show(
    title: str,
    result: SimulationResult,
    console: Console | None = None,
) -> None:
    console, summary = console or Console(), result.summary
    console.print(Text(title, style="bold"))
    console.print(_headline(result))
    console.print(_groups("tenant", summary.tenants().items()))
    buckets = [(f"up to {edge}", group) for edge, group in summary.buckets().items()]
    console.print(_groups("length", buckets))
    if summary.total().first.total:
        console.print(_tokens("tenant", summary.tenants().items()))
        console.print(_tokens("prompt", buckets))
    console.print(_facts(result))
    console.print(_over_time(summary))
    if result.scaling is not None:
        show_scaling(result.scaling, console)
    if any(result.left_over.values()):
        console.print(Text(f"left over, which is a fault: {result.left_over}", style="bold red"))


def show_fifo(result: SimulationResult, console: Console | None = None) -> None:
    """Prints the run of the same scenario without the dispatcher, for comparison."""
    console, summary = console or Console(), result.summary
    generates = summary.total().first.total
    way = (
        "straight to the engines, in turn"
        if generates
        else "through one queue, first in, first out"
    )
    console.print(Text(f"the same {way}", style="bold"))
    console.print(_headline(result))
    console.print(_groups("tenant", summary.tenants().items()))
    if generates:
        console.print(_tokens("tenant", summary.tenants().items()))
    else:
        buckets = [(f"up to {edge}", group) for edge, group in summary.buckets().items()]
        console.print(_groups("length", buckets))


def _headline(result: SimulationResult) -> Text:
    summary = result.summary
    total = summary.total()
    seconds = summary.time_series.end_s - summary.time_series.begin_s
    share = total.in_slo_share
    verdict = "goodput" if share >= result.slo_share else "not goodput"
    return Text(
        f"{total.offered:,} requests, {total.offered / seconds:,.1f}/s for {seconds:,.0f} s; "
        f"{share:.2%} in time, {verdict} ({result.slo_share * 100:g}%)"
    )


def _groups(noun: str, groups: Iterable[tuple[str, Group]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(noun)
    for name in ("offered", "in time", "rejected", "p50 ms", "p90 ms", "p99 ms", "wait p99"):
        table.add_column(name, justify="right")
    for name, group in groups:
        if group.offered:
            times = [group.latency.percentile_s(percent) for percent in (50, 90, 99)]
            cells = [_ms(each) for each in (*times, group.wait.percentile_s(99))]
            share = f"{group.in_slo_share:.2%}"
            table.add_row(name, f"{group.offered:,}", share, f"{group.rejected:,}", *cells)
    return table


def _tokens(noun: str, groups: Iterable[tuple[str, Group]]) -> Table:
    """A table of generations' latencies: time to the first token, time per further token."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(noun)
    for name in ("first p50 ms", "first p90", "first p99", "a token p50 ms", "a token p99"):
        table.add_column(name, justify="right")
    for name, group in groups:
        if group.first.total:
            first = [group.first.percentile_s(percent) for percent in (50, 90, 99)]
            each = [group.per_token.percentile_s(percent) for percent in (50, 99)]
            table.add_row(name, *map(_ms, (*first, *each)))
    return table


def _facts(result: SimulationResult) -> Text:
    summary = result.summary
    work, jain = summary.work, summary.fairness.min_jain
    fair = "–" if jain is None else f"{jain:.4f}"
    rows = work.rows / work.batches if work.batches else 0.0
    reasons = summary.total().reasons.most_common()
    unanswered = ", ".join(f"{count:,} {reason}" for reason, count in reasons) or "none"
    busy = f"replicas    {result.utilisation:.1%} busy\n"
    if summary.total().first.total:  # generation has no batches, padding or copies to report
        return Text(f"{busy}unanswered  {unanswered}; tries after the first {summary.retries:,}")
    return Text(
        f"batches     {rows:.1f} rows on average, the longest {_ms(work.longest_s)} ms\n"
        f"padding     {work.padding_ratio:.1%}\n"
        f"{busy}"
        f"fairness    {fair} (Jain's index, the worst 10 s)\n"
        f"copies      {work.hedge_ratio:.2%} of batches, {work.extra_work:.2%} more work, "
        f"{sum(core.hedges_won for core in result.cores):,} of them first\n"
        f"unanswered  {unanswered}; tries after the first {summary.retries:,}"
    )


def _over_time(summary: Summary) -> Table:
    """Two charts over the measured time: the share in time, and requests under way."""
    moments = summary.time_series.moments
    shares = [
        sum(moment.in_slo.values()) / max(1, sum(moment.offered.values())) for moment in moments
    ]
    under_way = [float(sum(moment.under_way.values())) for moment in moments]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("in time", Text(chart(shares, 1.0)), "0 to 100 %")
    top = max(under_way, default=0.0)
    table.add_row("under way", Text(chart(under_way, top)), f"0 to {top:,.0f} requests")
    return table


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.1f}"
