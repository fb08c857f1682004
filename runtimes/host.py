"""What of this host may a model use: how many processors, which of them, and memory that stays.

`allowed_cpus`: the smallest number that the scheduler's affinity mask and the control groups' CPU
quotas allow. Libraries would start a thread for each of the host's, and be throttled.

`claim`: `cores` keeps as many processors as there are threads, its own alone; `numa` all of one
NUMA node, the one that the fewest replicas keep to. Replicas find each other by file locks, so a
dead one frees its own. Nothing is taken where too few are free. Only the calling thread is bound.

`LockedFile` keeps a file's pages in memory with `mlock(2)`. Linux only. Sources: `cgroups(7)`, the
kernel's guides on `cpu.max` and `cpu.cfs_quota_us`; `sched_setaffinity(2)`, `flock(2)`, sysfs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from runtimes.errors import LoadError

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
_MOUNTS, _QUOTA = ("cpu", "cpu,cpuacct"), ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # version 1


def allowed_cpus(
    root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS, affinity: int | None = None
) -> int:
    """Processors to plan for, >= 1. `affinity` replaces the scheduler's own answer in tests."""
    count = own_processors() if affinity is None else affinity
    quotas = [" ".join(_lines(root / path / "cpu.max")).split() for path in _paths(own, "")]
    quotas += [
        [each for name in _QUOTA for each in _lines(root / mount / path / name)[:1]]
        for mount in _MOUNTS
        for path in _paths(own, "cpu")
    ]
    found = (_ratio(*words) for words in quotas if len(words) == 2)
    return max(1, min([count, *(math.ceil(quota) for quota in found if quota)]))


def own_processors() -> int:
    """Processors that the scheduler may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity mask


def _paths(own: Path, controller: str) -> list[str]:
    """Our control group and all above it, as paths below the mount; [""] is the mount itself.

    Inside a container the file names a path that the mount does not show: the mount is then ours.
    """
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            return ["/".join(parts[:end]) for end in range(len(parts) + 1)]
    return [""]


def _ratio(quota: str, period: str) -> float | None:
    """Processors, or None where there is no limit (-1, max) or no number."""
    try:
        micros, every = int(quota), int(period)
    except ValueError:
        return None
    return micros / every if micros > 0 and every > 0 else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


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
    with (folder / "choosing.lock").open("a") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
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


MIB = 1 << 20


class LockedFile:
    """A file's pages, in memory until `release`."""

    def __init__(self, file: Path) -> None:
        """Raises `LoadError`."""
        self.size_bytes = file.stat().st_size
        self._map: mmap.mmap | None = None
        if not self.size_bytes:
            return
        with file.open("rb") as opened:
            # Shared and read only, so that its pages are the file's own: locking a private mapping
            # that may be written copies each of them first.
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            _mlock(self._map, self.size_bytes, file)
        except LoadError:
            self.release()
            raise

    def release(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()


def _mlock(mapped: mmap.mmap, size: int, file: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    start = np.frombuffer(mapped, np.uint8)  # ctypes points at nothing that is read only
    try:
        address = ctypes.c_void_p(start.ctypes.data)
        if library.mlock(address, ctypes.c_size_t(size)) == 0:
            return
        code = ctypes.get_errno()
    finally:
        del start  # or the mapping could not be closed
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    bound = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / MIB:.0f} MiB"
    raise LoadError(
        f"option 'mlock': {file.name} cannot be kept in memory ({os.strerror(code)}): it is "
        f"{size / MIB:.0f} MiB and RLIMIT_MEMLOCK is {bound}; raise it (ulimit -l, LimitMEMLOCK=, "
        "or the container's memlock) or set mlock to false"
    )
