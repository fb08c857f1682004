"""Injects faults into a running server's processes, one after the other: kill, terminate or stop.

Each fault is a process and a signal; a seed decides their order. Kill and terminate strike the
youngest process of a name. Stop (SIGSTOP, then SIGCONT after `STOPPED_S`, which is shorter than any
watchdog's limit) strikes the oldest, so that one process of each name may live throughout. The next
fault comes when everything that the last one took is back, or after `BACK_S`. Times are those of
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

from loadtests.benches.launched import RunningServer
from loadtests.benches.processes import marked

STOPPED_S = 3.0
BACK_S = 150.0
GONE_S = 60.0
_LOOKS_S, _GONE_LOOKS_S = 1.0, 0.05
_STAND_IN = ".stand-in"  # answers until Serve has its own HAProxy again


@dataclass(frozen=True, slots=True)
class Struck:
    """`title`: of the process; `number`: how many there are at least; `ends`: whose requests end
    with it, by the names of their callers (nothing else may be lost); `port`: whether nobody can
    connect until it is back, too."""

    name: str
    title: str
    number: int = 1
    ends: frozenset[str] = frozenset()
    port: bool = False

    def is_it(self, title: str) -> bool:
        return re.search(self.title, title) is not None and _STAND_IN not in title


def server_processes(
    models: Sequence[Struck],
    gateways: int,
    *,
    streams: frozenset[str] = frozenset(),
    everybody: frozenset[str] = frozenset(),
) -> tuple[Struck, ...]:
    """`models`: those of their own; `streams`, `everybody`: callers whose requests end with a
    gateway, and with HAProxy."""
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
    """gone_s: when the process was there no more, or went on; back_s: seconds until all were there
    again, infinite where they were not in time. pid: of what was struck."""

    fault: ProcessFault
    at_s: float
    gone_s: float
    back_s: float = float("inf")
    pid: int = 0

    @property
    def ends(self) -> bool:
        """Whether the process was to end."""
        return self.fault.signal != signal.SIGSTOP


def schedule(
    struck: Sequence[Struck], rng: random.Random, signals: Sequence[signal.Signals] | None = None
) -> list[ProcessFault]:
    """Every process by every signal, in random order."""
    kinds = signals or (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
    faults = [ProcessFault(each, kind) for each in struck for kind in kinds]
    rng.shuffle(faults)
    return faults


def titled(running: RunningServer) -> Iterator[tuple[psutil.Process, str]]:
    """All processes of the server that are not stopped, with their titles."""
    for process in marked(running.mark):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_STOPPED:
                yield process, " ".join(process.cmdline()) or process.name()


def missing(
    running: RunningServer, struck: Sequence[Struck], without: Collection[int] = ()
) -> list[str]:
    """Names of which there are fewer than there should be, processes `without` not counted."""
    counts: Counter[str] = Counter()
    for process, title in titled(running):
        if process.pid not in without:
            counts.update(each.name for each in struck if each.is_it(title))
    return [each.name for each in struck if counts[each.name] < each.number]


def strike(running: RunningServer, fault: ProcessFault, over: threading.Event) -> Injected | None:
    """Returns when the process is gone, or goes on; None where there is none of that name."""
    found = [process for process, title in titled(running) if fault.struck.is_it(title)]
    found.sort(key=lambda process: process.create_time())
    if not found:
        return None
    # Of HAProxy an older one only ends its last connections.
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
    """A zombie is gone."""
    deadline = time.monotonic() + GONE_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return
        time.sleep(_GONE_LOOKS_S)


def wait_until_back(
    running: RunningServer, injected: Injected, struck: Sequence[Struck], over: threading.Event
) -> None:
    """Sets `back_s`, where all are back within BACK_S; what was to end does not count."""
    without = {injected.pid} if injected.ends else set[int]()
    while (passed_s := time.monotonic() - injected.at_s) < BACK_S and not over.is_set():
        if not missing(running, struck, without):
            injected.back_s = passed_s
            return
        over.wait(_LOOKS_S)
