"""Prints what `headrace status` shows: a server's models, replicas and queues.

The caller passes the snapshot, which is made from what gateways and replicas published. Times are
seconds; queues are counted in rows. This module fetches and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.tools.console.rollout_lines import rollout_line
from deployments.tools.console.scaling_lines import model_lines, pool_line

if TYPE_CHECKING:
    from deployments.control.registry.server_status import ModelStatus, StatusSnapshot

_MOST_TENANTS = 10
_WIDE = 100  # columns
# Short words, so that a line fits into 80 columns.
_HEADINGS = (
    "MODEL", "VERSION", "RUNTIME", "STATE",
    "REPL", "WAIT", "LATE", "OLDEST", "RUN", "BACKLOG", "DRIFT",
)  # fmt: skip
_FIRST_NUMBER = _HEADINGS.index("REPL")
_OF_REASON = {"failed": "cannot start", "starting": "is starting", "declared": "has no process"}


def as_json(snapshot: StatusSnapshot) -> str:
    return json.dumps(snapshot, indent=2)


def status_table(snapshot: StatusSnapshot, width: int) -> Table:
    """One line per model, at most `width` columns wide, from 80 on: a long name is cut, and a
    narrow table has no runtimes."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("MODEL", no_wrap=True, overflow="ellipsis")
    rows = [_cells(model) for model in snapshot["models"]]
    kept = [at for at, heading in enumerate(_HEADINGS) if width >= _WIDE or heading != "RUNTIME"]
    for at in kept[1:]:
        longest = max(len(_HEADINGS[at]), *(len(row[at]) for row in rows), 0)
        justify: Literal["left", "right"] = "left" if at < _FIRST_NUMBER else "right"
        table.add_column(_HEADINGS[at], justify=justify, no_wrap=True, min_width=longest)
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table


def show(snapshot: StatusSnapshot, console: Console | None = None) -> None:
    """Prints the table, and below it lines on models, scaling, rollouts and problems."""
    target = console or Console()
    target.print(_title(snapshot), soft_wrap=True)
    target.print(status_table(snapshot, target.width))
    scaling = snapshot.get("scaling")
    for model in snapshot["models"]:
        for line in _details(model):
            target.print(line)
        if scaling and model["name"] in scaling["models"]:
            for what, said in model_lines(scaling["models"][model["name"]]):
                target.print(_detail(model, what, [said]))
    for rollout in snapshot.get("rollouts", ()):
        target.print(Text(f"rollout {rollout_line(rollout)}"), soft_wrap=True)
    if scaling and scaling["pool"]:
        target.print(Text.assemble(("pool", "bold"), f" {pool_line(scaling['pool'])}"))
    if scaling is None and "scaling" in snapshot:
        target.print(Text("the autoscaler does not answer; numbers stay as they are", "yellow"))
    if snapshot["frozen"]:
        target.print(Text("controllers are frozen", style="yellow"))
    if snapshot["problem"]:
        target.print(Text(f"problem: {snapshot['problem']}", style="red"))


def _title(snapshot: StatusSnapshot) -> Text:
    parts = [snapshot["url"]]
    if "pid" in snapshot and "uptime_s" in snapshot:
        parts += [f"pid {snapshot['pid']}", f"up {_seconds(snapshot['uptime_s'])}"]
    gateways, silent = snapshot["gateways"], snapshot.get("silent", {})
    parts.append(f"{gateways} gateway{'' if gateways == 1 else 's'}")
    if silent:
        parts[-1] += f", {len(silent)} of them last seen {_seconds(max(silent.values()))} ago"
    return Text("  ".join(parts))


def _details(model: ModelStatus) -> Iterator[Text]:
    """Lines on a model: its start, waiting rows by length and tenant, engines, ejected replicas,
    profile."""
    if model["reason"]:
        yield _detail(model, _OF_REASON.get(model["state"], "has a replica that cannot start"),
                      [model["reason"]])  # fmt: skip
    if model["optional"] and model["state"] not in ("ready", "asleep"):
        yield _detail(model, "is optional", ["nothing waits for it"])
    if model["rows_by_bucket"]:
        rows = [f"{count} up to {edge}" for edge, count in model["rows_by_bucket"].items()]
        yield _detail(model, "waiting by length", rows)
    if model["rows_by_tenant"]:
        most = sorted(model["rows_by_tenant"].items(), key=lambda each: -each[1])
        rows = [f"{name} {count}" for name, count in most[:_MOST_TENANTS]]
        others = sum(count for _, count in most[_MOST_TENANTS:])
        yield _detail(model, "waiting by tenant", rows + ([f"others {others}"] if others else []))
    if model["engines"]:
        yield _detail(model, "generates", _engine_parts(model))
    if model["ejected"]:
        yield _detail(model, "slow replicas left out", model["ejected"])
    if model["profile"]:
        yield _detail(model, "costs", [model["profile"]])


def _engine_parts(model: ModelStatus) -> list[str]:
    loads = list(model["engines"].values())
    used = sum(load[2] for load in loads) / len(loads)
    return [
        f"{model['tokens_per_s']:.0f} tokens/s",
        f"{used:.0%} of the cache used",
        f"{sum(load[0] for load in loads):.0f} running",
        f"{sum(load[1] for load in loads):.0f} waiting in engines",
    ]


def _detail(model: ModelStatus, what: str, parts: Iterable[str]) -> Text:
    return Text.assemble((model["name"], "bold"), f" {what}: {', '.join(parts)}")


def _cells(model: ModelStatus) -> list[Text]:
    colour = {"ready": "green", "failed": "red"}.get(model["state"], "yellow")
    return [
        Text(model["name"], style="bold"),
        Text(model["version"]),
        Text(model["runtime"]),
        Text(model["state"], style=colour),
        Text(f"{model['replicas_ready']}/{model['replicas']}"),
        Text(str(model["waiting_rows"])),
        Text(str(model["late_rows"])),
        Text(_seconds(model["oldest_wait_s"])),
        Text(str(model["leases"])),
        Text(_seconds(model["backlog_s"])),
        Text(str(model["drift"]), style="red" if model["drift"] else ""),
    ]


def _seconds(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `5 min`, `2 h 10 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
