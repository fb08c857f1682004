"""`headrace simulate`: runs a scenario on virtual time, and prints tables and small charts.

No server is started and no model loaded: a minute of traffic takes seconds. Shares are of the
offered requests; latencies are those of answered requests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.simulate.scaling import ScalingRecord
from deployments.tools.simulate.simulation import SimulateOptions, SimulationResult, prepare
from loadtests.results.summary import Group, Summary


def simulate(path: Path, options: SimulateOptions, *, as_json: bool) -> int:
    """Run the scenario, and what it is compared with; print the results. Returns the exit code.
    Raises ScenarioErrors, SettingsErrors and TraceError."""
    simulation = prepare(path, options)
    if simulation.left_out:
        print(f"not simulated: {', '.join(simulation.left_out)}", file=sys.stderr)
    with shown_progress("simulated") as note:

        def advance(now: float, requests: int) -> None:
            note(f"{now:.0f} s, {requests:,} requests", now / simulation.scenario.run_s)

        result = simulation.run(advance)
        fifo = simulation.run(advance, fifo=True) if options.fifo else None
    if as_json:
        also = {"fifo": fifo.as_json()} if fifo is not None else {}
        print(json.dumps({**result.as_json(), **also}))
    else:
        show(simulation.title, result)
        if fifo is not None:
            through = "through one queue, first in, first out"
            if fifo.summary.total().first.total:
                through = "straight to the engines, in turn"
            show_beside(f"the same {through}", fifo)
    return 0


_LEVELS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48


def chart(values: Sequence[float], top: float, width: int = _WIDTH) -> str:
    """Each value as a bar of 0 to 8 eighths; `top` is a full one. More than `width` values are
    averaged."""
    if not values or top <= 0.0:
        return ""
    count = min(width, len(values))
    bounds = [round(n * len(values) / count) for n in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    return "".join(_LEVELS[round(min(1.0, mean / top) * (len(_LEVELS) - 1))] for mean in means)


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


def show_beside(what: str, result: SimulationResult, console: Console | None = None) -> None:
    """Prints another run of the same scenario, for comparison, under the heading `what`."""
    console, summary = console or Console(), result.summary
    console.print(Text(what, style="bold"))
    console.print(_headline(result))
    console.print(_groups("tenant", summary.tenants().items()))
    if summary.total().first.total:
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


_MAX_SHOWN = 12


def show_scaling(scaling: ScalingRecord, console: Console) -> None:
    console.print(_scaling_facts(scaling))
    console.print(_replicas_over_time(scaling))
    console.print(_changes(scaling))
    more = len(scaling.changes) - _MAX_SHOWN
    if more > 0:
        console.print(Text(f"and {more:,} further changes, which --json lists"))


def _scaling_facts(scaling: ScalingRecord) -> Text:
    hot = [each.hot for each in scaling.moments] or [0]
    pooled = f", the pool's {scaling.pool_hours:.2f}" if scaling.pool_s else ""
    waits = scaling.to_capacity_s
    soon = "never ordered"
    if waits:
        soon = f"{median(waits):.0f} s after its order (median), at most {max(waits):.0f} s"
    return Text(
        f"replicas    {min(hot)} to {max(hot)} served; {scaling.replica_hours:.2f} replica-hours"
        f"{pooled}\n"
        f"changes     {len(scaling.changes):,}; {scaling.reversals:,} of them reversed the one "
        "before within ten minutes\n"
        f"capacity    {soon}"
    )


def _replicas_over_time(scaling: ScalingRecord) -> Table:
    moments = scaling.moments
    table = Table(box=None, pad_edge=False, show_header=False)
    most = float(max((max(each.target, each.hot) for each in moments), default=0))
    offered = [each.offered or 0.0 for each in moments]
    for name, values, top, unit in (
        ("asked for", [float(each.target) for each in moments], most, "replicas"),
        ("serving", [float(each.hot) for each in moments], most, "replicas"),
        ("pool", [float(each.pool_hot) for each in moments], most, "replicas"),
        ("offered", offered, max(offered, default=0.0), "s/s"),
    ):
        if any(values):
            table.add_row(name, Text(chart(values, top)), f"0 to {_number(top)} {unit}")
    return table


def _changes(scaling: ScalingRecord) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("at s", justify="right")
    table.add_column("replicas", justify="right")
    table.add_column("why")
    for each in scaling.changes[:_MAX_SHOWN]:
        table.add_row(f"{each.at_s:,.0f}", f"{each.before} to {each.target}", each.text)
    return table


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
