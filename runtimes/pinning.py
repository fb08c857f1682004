"""The processors that a replica keeps to, beside the others of its host.

`cores`: as many processors as it has threads, its own alone; `numa`: all of one NUMA node, the one
that the fewest replicas keep to. Replicas find each other by file locks in a folder that they
share, so that two never take the same core and a dead one frees its own. Nothing is taken where
too few are free: a replica that shares a core with another would slow both.

Only the calling thread is bound, with the threads that it starts later; the process's others are
left alone. Linux only. Source: `sched_setaffinity(2)`, `flock(2)`, sysfs's `cpulist`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from runtimes.errors import LoadError

Pin = Literal["cores", "numa", "off"]
NODES = Path("/sys/devices/system/node")


class ProcessorClaim:
    """Processors held until `release`, or until the process ends."""

    def __init__(self, cpus: frozenset[int], held: Sequence[int]) -> None:
        self.cpus = cpus
        self._held = list(held)

    def bind(self) -> None:
        """The calling thread runs on these from now on."""
        os.sched_setaffinity(0, self.cpus)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """The calling thread and those that it starts meanwhile; it is free again after."""
        before = os.sched_getaffinity(0)
        self.bind()
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())


def claim(pin: Pin, threads: int, folder: Path, nodes: Path = NODES) -> ProcessorClaim | None:
    """None for `off`. Raises `LoadError` where too few processors are free."""
    if pin == "off":
        return None
    if not hasattr(os, "sched_setaffinity"):
        raise LoadError(f"option 'pin' is {pin}, which this system cannot; set it to off")
    folder.mkdir(parents=True, exist_ok=True)
    allowed = os.sched_getaffinity(0)
    with _alone(folder):
        if pin == "cores":
            return _cores(threads, numa_nodes(allowed, nodes), folder)
        return _node(numa_nodes(allowed, nodes), folder)


def numa_nodes(allowed: set[int], nodes: Path = NODES) -> dict[int, tuple[int, ...]]:
    """The allowed processors of each node, nodes without any left out; one node where the system
    tells of none."""
    found = {}
    for file in sorted(nodes.glob("node[0-9]*/cpulist")):
        cpus = tuple(sorted(allowed & set(listed(file.read_text()))))
        if cpus:
            found[int(file.parent.name.removeprefix("node"))] = cpus
    return found or {0: tuple(sorted(allowed))}


def listed(text: str) -> Iterator[int]:
    """The numbers of "0-3,8,10-11"."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _cores(threads: int, nodes: dict[int, tuple[int, ...]], folder: Path) -> ProcessorClaim:
    """All from one node where it has enough, the fewest nodes otherwise."""
    free = {node: _free(cpus, folder) for node, cpus in nodes.items()}
    count = sum(map(len, free.values()))
    if count < threads:
        for descriptor in (held for own in free.values() for held in own.values()):
            os.close(descriptor)
        allowed = sum(map(len, nodes.values()))
        raise LoadError(
            f"option 'pin' is cores, but of {allowed} processors {count} are free for {threads} "
            "threads: set replicas.threads so that all replicas of the host fit, or pin to off"
        )
    enough = [own for own in free.values() if len(own) >= threads]
    order = [min(enough, key=len)] if enough else sorted(free.values(), key=len, reverse=True)
    taken = [cpu for own in order for cpu in own][:threads]
    locks = {cpu: held for own in free.values() for cpu, held in own.items()}
    for cpu in locks.keys() - taken:
        os.close(locks[cpu])
    return ProcessorClaim(frozenset(taken), [locks[cpu] for cpu in taken])


def _free(cpus: Sequence[int], folder: Path) -> dict[int, int]:
    """Locks on the processors that nobody else has locked."""
    locks = {cpu: _lock(folder / f"cpu-{cpu}.lock") for cpu in cpus}
    return {cpu: held for cpu, held in locks.items() if held is not None}


def _node(nodes: dict[int, tuple[int, ...]], folder: Path) -> ProcessorClaim:
    """The node with the most processors for each replica that keeps to it, this one included."""
    places = {node: _place(node, folder) for node in nodes}
    best = max(nodes, key=lambda node: (len(nodes[node]) / (places[node][0] + 1), -node))
    for node, (_, descriptor) in places.items():
        if node != best:
            os.close(descriptor)
    return ProcessorClaim(frozenset(nodes[best]), [places[best][1]])


def _place(node: int, folder: Path) -> tuple[int, int]:
    """How many keep to the node, counted up to the first free place, and a lock on that."""
    place = 0
    while (held := _lock(folder / f"node-{node}-{place}.lock")) is None:
        place += 1
    return place, held


def _lock(file: Path) -> int | None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "choosing.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
