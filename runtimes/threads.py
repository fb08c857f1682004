"""How many processors may this process use?

The smallest number that the scheduler's affinity mask and the control groups' CPU quotas allow,
rounded up, at least 1. A container with a quota of 2 on a host of 64 gets 2; libraries would start
64 threads by themselves, and be throttled for most of every period.

It reads files and caches nothing. Sources: Linux `cgroups(7)`; the kernel's admin guide on control
group v2 (`cpu.max`) and on CFS bandwidth control (`cpu.cfs_quota_us`).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def allowed_cpus(
    root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS, affinity: int | None = None
) -> int:
    """Processors to plan for, >= 1. `affinity` replaces the scheduler's own answer in tests."""
    count = _affinity() if affinity is None else affinity
    quotas = [_quota_v2(root / path / "cpu.max") for path in _paths(own, "")]
    for mount in ("cpu", "cpu,cpuacct"):
        quotas += [_quota_v1(root / mount / path) for path in _paths(own, "cpu")]
    return max(1, min([count, *(math.ceil(quota) for quota in quotas if quota)]))


def _affinity() -> int:
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


def _quota_v2(file: Path) -> float | None:
    words = " ".join(_lines(file)).split()
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = _lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    """Processors, or None where there is no limit (-1) or no number."""
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
