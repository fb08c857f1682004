"""Faults of one process of a server, and what they cost those who ask meanwhile.

A process is killed, asked to end, or hangs for a while (SIGSTOP, then SIGCONT) under a load whose
every request is remembered. Nobody says `x-idempotent: false`: every request may run twice.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from served import Server

from tests.cluster.steady_load import Outcome, SteadyLoad

REPORT = "HEADRACE_CHAOS"  # environment: a file that every measured fault adds a line to
SLOW_S = 1.0
_SETTLE_S = 1.5

# How each is found; names are those that Ray gives its processes.
FOUND: dict[str, Callable[[Server], list[psutil.Process]]] = {
    "a gateway": lambda s: s.named("ray::ServeReplica:gateway"),
    "a replica": lambda s: s.named("ray::ServeReplica:model-steady:model"),
    "the model's anchor": lambda s: s.named("ray::ServeReplica:model-steady:anchor"),
    "the registry": lambda s: s.named("ray::RegistryActor"),
    "the autoscaler": lambda s: s.named("ray::AutoscalerActor"),
    "Serve's controller": lambda s: s.named("ray::ServeController"),
    "HAProxy's manager": lambda s: s.named("ray::HAProxyManager"),
    "HAProxy": lambda s: s.called("haproxy"),
}


@dataclass(frozen=True, slots=True)
class Load:
    """`callers` with a request under way each, `pause_s` between an answer and the next."""

    callers: int
    pause_s: float


LOADS = {"light": Load(4, 0.05), "peak": Load(24, 0.0)}


@dataclass(frozen=True, slots=True)
class Fault:
    """`number`: of a signal; a process that hangs goes on after `hangs_s`."""

    process: str
    number: signal.Signals
    load: str = "light"
    hangs_s: float = 0.0

    def __str__(self) -> str:
        hangs = f" for {self.hangs_s:g} s" if self.hangs_s else ""
        return f"{self.process}: {self.number.name}{hangs}, {self.load} load"


@dataclass(frozen=True, slots=True)
class FaultCost:
    """lost: requests whose connection ended without an answer; refused: those answered with an
    error. gap_s: the longest time in which nobody got an answer; longest_s: the longest that one
    took; slow_s: until answers took less than a second again, from the fault on."""

    fault: str
    answered: int
    lost: int
    refused: int
    gap_s: float
    longest_s: float
    slow_s: float
    reasons: tuple[str, ...]


def measured(server: Server, fault: Fault, lasts_s: float) -> FaultCost:
    """Callers go on for `lasts_s` after the fault, and after the hanging one goes on."""
    load = LOADS[fault.load]
    callers = SteadyLoad([server.url], "steady", callers=load.callers, pause_s=load.pause_s)
    with callers:
        time.sleep(_SETTLE_S)
        at = time.monotonic()
        strike(FOUND[fault.process](server)[0], fault)
        time.sleep(lasts_s + fault.hangs_s)
    cost = cost_of(str(fault), callers.outcomes, at)
    report(cost)
    return cost


def strike(process: psutil.Process, fault: Fault) -> None:
    """Returns at once; whoever hangs goes on by itself."""
    process.send_signal(fault.number)
    if fault.hangs_s:
        threading.Timer(fault.hangs_s, resume, [process]).start()


def resume(process: psutil.Process) -> None:
    """Unless it was ended meanwhile."""
    if process.is_running():
        process.resume()


def cost_of(fault: str, outcomes: Sequence[Outcome], at: float) -> FaultCost:
    after = [each for each in outcomes if each.ended_s >= at]
    failed = [each.reason for each in outcomes if each.reason]
    refused = [reason for reason in failed if reason[:1].isdigit()]
    answered = sorted(each.ended_s for each in after if not each.reason)
    late = [each.ended_s - at for each in after if each.took_s > SLOW_S]
    return FaultCost(
        fault,
        answered=len(outcomes) - len(failed),
        lost=len(failed) - len(refused),
        refused=len(refused),
        gap_s=max((b - a for a, b in zip([at, *answered], answered, strict=False)), default=0.0),
        longest_s=max((each.took_s for each in after), default=0.0),
        slow_s=max(late, default=0.0),
        reasons=tuple(sorted(set(failed))),
    )


def report(cost: FaultCost) -> None:
    """As a line of JSON, where the environment names a file."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")
