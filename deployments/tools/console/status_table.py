"""Prints what `headrace status` shows: a server's models, replicas, queues, scaling and rollouts.

The caller passes the snapshot, which is made from what gateways and replicas published, and the
autoscaler's own account (`deployments/control/scaling/decider.py`). Times are seconds; queues are
counted in rows. This module fetches and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from deployments.contract.rollout.account import RolloutAccount, VersionAccount
    from deployments.control.registry.server_status import ModelStatus, StatusSnapshot

_MAX_TENANTS = 10
_MAX_DEVICES = 4
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
    """Lines on a model: its start, waiting rows by length and tenant, engines, GPUs, ejected
    and lost replicas, profile."""
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
        rows = [f"{name} {count}" for name, count in most[:_MAX_TENANTS]]
        others = sum(count for _, count in most[_MAX_TENANTS:])
        yield _detail(model, "waiting by tenant", rows + ([f"others {others}"] if others else []))
    if model["engines"]:
        yield _detail(model, "generates", _engine_parts(model))
    if model["device_memory_bytes"]:
        yield _detail(model, "on GPUs", _memory_parts(model))
    if model["ejected"]:
        yield _detail(model, "slow replicas left out", model["ejected"])
    for replica, (ago_s, why) in model["ended"].items():
        yield _detail(model, f"lost {replica} {_seconds(ago_s)} ago", [why])
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


def _memory_parts(model: ModelStatus) -> list[str]:
    """The fullest devices first."""
    told = model["device_memory_bytes"].items()
    held = sorted(told, key=lambda each: (each[1]["total"] or 0) - (each[1]["used"] or 0))
    parts = [_memory_text(replica, memory) for replica, memory in held[:_MAX_DEVICES]]
    more = len(held) - len(parts)
    return parts + ([f"{more} more"] if more else [])


def _memory_text(replica: str, memory: Mapping[str, int | None]) -> str:
    own, used, total = ((memory[of] or 0) >> 20 for of in ("own", "used", "total"))
    has = "" if memory["own"] is None else f"has {own:,}, "
    return f"{replica} {has}{used:,} of {total:,} MiB used"


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


# ---- rollouts -----------------------------------------------------------------------------------

_NAME, _PHASE = 12, 9


def rollout_line(account: RolloutAccount) -> str:
    """The line; its first columns have fixed widths, so that lines align."""
    parts = [f"{account['model']:<{_NAME}} {account['phase']:<{_PHASE}} {_step(account)}"]
    parts.append(f"new {_counts(account['canary'])}, live {_counts(account['live'])}")
    if account["copies"]["answered"] or account["copies"]["failed"]:
        parts.append(f"copies {_counts(account['copies'])}")
    if account["compared"]:
        parts.append(f"{account['agreed']} of {account['compared']} rows agree")
    if account["why"]:
        parts.append(account["why"])
    return "  ".join(parts)


def progress_key(account: RolloutAccount) -> tuple[str, int]:
    """A key that changes whenever a new line is worth printing."""
    return account["phase"], account["step"]


def _step(account: RolloutAccount) -> str:
    held = f"{min(account['held_s'], account['hold_s']):.0f} of {account['hold_s']:g} s"
    if account["phase"] != "step":
        held = ""
    return f"step {account['step']}/{account['steps']} {account['share']:>4.0%} {held:<12}"


def _counts(version: VersionAccount) -> str:
    median = version["median_ms"]
    told = f", p50 {median:.3g} ms" if median is not None else ""
    return f"{version['answered']} answered, {version['failed']} failed{told}"


# ---- scaling ------------------------------------------------------------------------------------

_MIB = 1 << 20
_SHOWN_S = 0.05


def model_lines(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The subject and the text of each line."""
    groups = [_numbers(group) for group in model["groups"]]
    settled = all(g["running"] == g["target"] for g in model["groups"])
    if model["reason"] == "fixed" and settled:
        return
    done = ", shown and not done" if model["observed"] else ""
    yield "replicas", f"{'; '.join(groups)} ({model['reason']}{done})"
    yield "why", model["text"]
    if model["pinned"]:
        said = ", ".join(f"{g} {n}" if g else str(n) for g, n in model["pinned"].items())
        yield "set by hand", f"{said}; `headrace scale {model['model']} auto` ends it"
    for group in model["groups"]:
        if group["unplaced_s"]:
            yield "waits for a place", f"{group['unplaced_s']:.0f} s, for {group['missing']}"
    yield "demand", _demand(model)
    yield "a new replica serves", f"in {model['time_to_capacity_s']:.1f} s{_ladder(model)}"


def _numbers(group: Mapping[str, Any]) -> str:
    name = f"{group['name']}: " if group["name"] else ""
    also = [
        f"{group[what]} {what}" for what in ("starting", "draining") if group[what]
    ]  # fmt: skip
    wanted = f", {group['wanted']} wanted" if group["wanted"] != group["target"] else ""
    return ", ".join([f"{name}{group['running']} of {group['target']}{wanted}", *also])


def _demand(model: Mapping[str, Any]) -> str:
    parts = [f"{model['offered_s']:.2f} busy replicas offered", f"{model['planned_s']:.2f} planned"]
    if model["forecast_trusted"]:
        parts.append(f"{model['forecast_s']:.2f} forecast")
    return ", ".join(parts)


def _ladder(model: Mapping[str, Any]) -> str:
    return "".join(
        f"; {state} {step['median_s']:.1f} s ({_phases(step['phases'])})"
        for state, step in model["states"].items()
    )


def _phases(phases: Any) -> str:
    told = [f"{name} {seconds:.1f}" for name, seconds in phases if seconds >= _SHOWN_S]
    return ", ".join(told) or "at once"


def pool_line(pool: Mapping[str, Any]) -> str:
    held = [
        f"{report['replica']}: {_residents(report)}, {free / _MIB:.0f} MiB free"
        for report in pool["reports"]
        for free in (max(0, report["free_bytes"]),)
    ]
    serve = pool["serve"]
    cost = f"cost {pool['cost_hours']:.2f} replica hours, took {pool['saved_s']:.0f} s of work"
    return "; ".join([f"{serve['running']} of {pool['replicas']} replicas", *held, cost,
                      pool["text"]])  # fmt: skip


def _residents(report: Mapping[str, Any]) -> str:
    names = [r["model"] if r["serves"] else f"{r['model']} (not yet)" for r in report["residents"]]
    names.extend(
        f"{kept['model']} ({'asleep' if kept['wake_s'] else 'warm'})"
        for kept in report.get("kept", ())
    )
    return ", ".join(names) or "nothing"
