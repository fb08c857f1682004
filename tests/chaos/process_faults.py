"""Faults of one process of a server: it is killed, asked to end, or hangs for a while.

What hangs is stopped, and goes on later (SIGSTOP, SIGCONT).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection
from dataclasses import dataclass

import psutil
from fault_cost import Blow
from served import Server, describe

from loadtests.benches.process_faults import Struck, server_processes

_OF_THE_MODEL = (
    Struck("a replica", r"^ray::ServeReplica:model-steady:model", 2),
    Struck("the model's anchor", r"^ray::ServeReplica:model-steady:anchor"),
)
FOUND = {each.name: each for each in server_processes(_OF_THE_MODEL, gateways=2)}
_BESIDE = (
    Struck("the command line", r" -m deployments\.cli serve "),
    Struck("the host", r" -m deployments\.control\.supervisor\.host_process "),
    Struck("Ray's dashboard", r"/ray/dashboard/dashboard\.py "),
    Struck("the dashboard's part for Serve", r"^ray-dashboard-ServeHead"),
    Struck("Ray's DashboardAgent", r"^ray::DashboardAgent"),
    Struck("Ray's RuntimeEnvAgent", r"^ray::RuntimeEnvAgent"),
)
# No request comes to these.
BESIDE = {each.name: each for each in _BESIDE}
# With the end of these ends the server. One of Ray's agents takes the raylet with it.
ENDS_SERVER = ("the command line", "the host", "Ray's DashboardAgent", "Ray's RuntimeEnvAgent")
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
    """Callers go on for `lasts_s` after the fault, and after the hanging one goes on, and until all
    of FOUND are there."""
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
    """`name`: of FOUND or BESIDE; the newest first: a HAProxy that was replaced finishes what it
    has."""
    struck = (FOUND | BESIDE)[name]
    found = [p for p in server.processes() if struck.is_it(describe(p))]
    return sorted(found, key=psutil.Process.create_time, reverse=True)


def all_run(server: Server, without: Collection[int] = ()) -> bool:
    """Whether all of FOUND are there, none of them `without` or stopped."""
    titles = [describe(p) for p in server.processes() if p.pid not in without and _goes_on(p)]
    counts = {each: sum(map(each.is_it, titles)) for each in FOUND.values()}
    return all(count >= each.number for each, count in counts.items())


def _goes_on(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_STOPPED
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
