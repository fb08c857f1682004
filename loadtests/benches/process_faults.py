"""Injects faults into a running server's processes, one after another: SIGKILL, SIGTERM or SIGSTOP.

A fault is a process and a signal; a seed decides their order. SIGKILL and SIGTERM go to the newest
process of a kind. SIGSTOP, followed by SIGCONT after `STOPPED_S` (which is shorter than any
watchdog's limit), goes to the oldest, so that one process of each kind can live throughout. The
next fault is injected when all processes are back, or after `BACK_S`. Times are those of
`time.monotonic`.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from loadtests.benches.server import RunningServer, marked, title_of

STOPPED_S = 3.0
BACK_S = 150.0
GONE_S = 60.0
_LOOKS_S, _GONE_LOOKS_S = 1.0, 0.05
_STAND_IN = ".stand-in"  # the HAProxy that answers until Serve has started its own again


@dataclass(frozen=True, slots=True)
class Struck:
    """A kind of process that faults hit."""

    name: str
    title: str  # part of the process's title
    number: int = 1  # how many there are, at least
    ends: frozenset[str] = frozenset()  # callers whose requests may be lost with the process
    port: bool = False  # whether, besides, nobody can connect until the process is back

    def is_it(self, title: str) -> bool:
        return re.search(self.title, title) is not None and _STAND_IN not in title


def server_processes(
    models: Sequence[Struck],
    gateways: int,
    *,
    streams: frozenset[str] = frozenset(),
    everybody: frozenset[str] = frozenset(),
) -> tuple[Struck, ...]:
    """All kinds of processes of a server.

    `models`: the models' own processes. `streams`: callers whose requests may be lost with a
    gateway. `everybody`: callers whose requests may be lost with HAProxy.
    """
    return (
        Struck("a gateway", r"^ray::ServeReplica:gateway:", gateways, streams),
        *models,
        Struck("the registry", r"^ray::RegistryActor"),
        Struck("the autoscaler", r"^ray::AutoscalerActor"),
        Struck("Serve's controller", r"^ray::ServeController"),
        Struck("HAProxy's manager", r"^ray::HAProxyManager", 1, everybody, port=True),
        Struck("HAProxy", r"^\S*haproxy .*haproxy\.cfg", 1, everybody, port=True),
    )


@dataclass(frozen=True, slots=True)
class ProcessFault:
    struck: Struck
    signal: signal.Signals

    def __str__(self) -> str:
        stops = f" for {STOPPED_S:g} s" if self.signal == signal.SIGSTOP else ""
        return f"{self.struck.name}: {self.signal.name}{stops}"


@dataclass(slots=True)
class Injected:
    """A fault that was injected."""

    fault: ProcessFault
    at_s: float
    gone_s: float  # when the process had ended, or (after SIGSTOP) continued
    back_s: float = float("inf")  # seconds until all processes were back; infinite: not in time
    pid: int = 0  # of the process

    @property
    def ends(self) -> bool:
        """Whether the fault ends the process."""
        return self.fault.signal != signal.SIGSTOP


def schedule(
    struck: Sequence[Struck], rng: random.Random, signals: Sequence[signal.Signals] | None = None
) -> list[ProcessFault]:
    """A fault for each kind of process and signal, in random order."""
    kinds = signals or (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
    faults = [ProcessFault(each, kind) for each in struck for kind in kinds]
    rng.shuffle(faults)
    return faults


def titled(running: RunningServer) -> Iterator[tuple[psutil.Process, str]]:
    """The server's processes that are not stopped by a signal, with their titles."""
    for process in marked(running.mark):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_STOPPED:
                yield process, title_of(process)


def missing(
    running: RunningServer, struck: Sequence[Struck], without: Collection[int] = ()
) -> list[str]:
    """Names of the kinds with too few processes. Processes with an id in `without` do not count."""
    counts: Counter[str] = Counter()
    for process, title in titled(running):
        if process.pid not in without:
            counts.update(each.name for each in struck if each.is_it(title))
    return [each.name for each in struck if counts[each.name] < each.number]


def strike(running: RunningServer, fault: ProcessFault, over: threading.Event) -> Injected | None:
    """Injects a fault and returns when the process has ended, or continues; None if there is no
    process of that kind."""
    found = [process for process, title in titled(running) if fault.struck.is_it(title)]
    found.sort(key=lambda process: process.create_time())
    if not found:
        return None
    # Of several HAProxies, the older ones only finish their last connections.
    oldest = fault.signal == signal.SIGSTOP and not fault.struck.port
    process = found[0] if oldest else found[-1]
    at_s = time.monotonic()
    with suppress(psutil.NoSuchProcess):
        process.send_signal(fault.signal)
        if fault.signal == signal.SIGSTOP:
            over.wait(STOPPED_S)
            process.resume()
        else:
            _wait_until_gone(process)
    return Injected(fault, at_s, time.monotonic(), pid=process.pid)


def _wait_until_gone(process: psutil.Process) -> None:
    """Waits until the process has ended; a zombie has."""
    deadline = time.monotonic() + GONE_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return
        time.sleep(_GONE_LOOKS_S)


def wait_until_back(
    running: RunningServer, injected: Injected, struck: Sequence[Struck], over: threading.Event
) -> None:
    """Sets `back_s` if all processes are back within BACK_S; the one that was to end does not
    count."""
    without = {injected.pid} if injected.ends else set[int]()
    while (passed_s := time.monotonic() - injected.at_s) < BACK_S and not over.is_set():
        if not missing(running, struck, without):
            injected.back_s = passed_s
            return
        over.wait(_LOOKS_S)
