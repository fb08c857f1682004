"""Prints the autoscaling part of `headrace status`: each model's numbers of replicas and the reason
for them, how soon another replica would serve, and the shared pool.

A model whose number of replicas is fixed and reached has no lines. The data are the autoscaler's
own account (`deployments/control/scaling/decider.py`); times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
        f"{report['replica']}: {_residents(report)}, {report['free_bytes'] / _MIB:.0f} MiB free"
        for report in pool["reports"]
    ]
    serve = pool["serve"]
    cost = f"cost {pool['cost_hours']:.2f} replica hours, took {pool['saved_s']:.0f} s of work"
    return "; ".join([f"{serve['running']} of {pool['replicas']} replicas", *held, cost,
                      pool["text"]])  # fmt: skip


def _residents(report: Mapping[str, Any]) -> str:
    names = [r["model"] if r["serves"] else f"{r['model']} (not yet)" for r in report["residents"]]
    return ", ".join(names) or "nothing"
