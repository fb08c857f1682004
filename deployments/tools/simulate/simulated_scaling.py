"""Prints how the number of replicas changed in a simulated run, in a terminal.

Times are virtual seconds. `capacity`: from the order of a replica until it serves.
"""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.tools.console.charts import chart
from deployments.tools.simulate.scaling_record import ScalingRecord

_MAX_SHOWN = 12


def show_scaling(scaling: ScalingRecord, console: Console) -> None:
    console.print(_facts(scaling))
    console.print(_over_time(scaling))
    console.print(_changes(scaling))
    more = len(scaling.changes) - _MAX_SHOWN
    if more > 0:
        console.print(Text(f"and {more:,} further changes, which --json lists"))


def _facts(scaling: ScalingRecord) -> Text:
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


def _over_time(scaling: ScalingRecord) -> Table:
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
