"""Faults of one process of a server: it is killed, asked to end, or hangs for a while.

What hangs is stopped, and goes on later (SIGSTOP, SIGCONT).
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import psutil
from fault_cost import Blow
from served import Server, describe

# How each is called (Ray gives its processes names), and how many there are.
FOUND = {
    "a gateway": ("ray::ServeReplica:gateway", 2),
    "a replica": ("ray::ServeReplica:model-steady:model", 2),
    "the model's anchor": ("ray::ServeReplica:model-steady:anchor", 1),
    "the registry": ("ray::RegistryActor", 1),
    "the autoscaler": ("ray::AutoscalerActor", 1),
    "Serve's controller": ("ray::ServeController", 1),
    "HAProxy's manager": ("ray::HAProxyManager", 1),
    "HAProxy": ("haproxy", 1),
}
STAND_IN = ".stand-in"
_ENDS = (signal.SIGKILL, signal.SIGTERM)


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


def blow(server: Server, fault: Fault, lasts_s: float) -> Blow:
    """Callers go on for `lasts_s` after the fault, and after the hanging one goes on."""
    struck = processes(server, fault.process)[0]
    without = {struck.pid} if fault.number in _ENDS else set[int]()
    return Blow(
        str(fault),
        lambda: strike(struck, fault),
        fault.load,
        lasts_s + fault.hangs_s,
        lambda: all_run(server, without),
    )


def processes(server: Server, name: str) -> list[psutil.Process]:
    """`name`: of FOUND; the newest first: a HAProxy that was replaced finishes what it has."""
    called = FOUND[name][0]
    found = server.called(called) if called == "haproxy" else server.named(called)
    return sorted(found, key=psutil.Process.create_time, reverse=True)


def all_run(server: Server, without: Collection[int] = ()) -> bool:
    """Whether all of FOUND are there, none of them `without` or stopped."""
    counts: Counter[str] = Counter()
    for process in server.processes():
        if process.pid not in without:
            counts.update(name for name, (called, _) in FOUND.items() if _runs_as(process, called))
    return all(counts[name] >= number for name, (_, number) in FOUND.items())


def _runs_as(process: psutil.Process, called: str) -> bool:
    try:
        said = describe(process)
        is_it = process.name() == called or said.startswith(called)
        # HAProxy's stand-in is there until Serve has its own again.
        return is_it and STAND_IN not in said and process.status() != psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def strike(process: psutil.Process, fault: Fault) -> None:
    """Returns at once; whoever hangs goes on by itself."""
    process.send_signal(fault.number)
    if fault.hangs_s:
        threading.Timer(fault.hangs_s, resume, [process]).start()


def resume(process: psutil.Process) -> None:
    """Unless it was ended meanwhile."""
    if process.is_running():
        process.resume()
