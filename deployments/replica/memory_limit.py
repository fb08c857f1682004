"""Ends a replica that takes more memory than it may, and says which batch was running.

The kernel's own limit kills a process without a message, or kills another process. This one checks
ten times a second: the process's resident memory, and its growth since the running batch began. The
rows of that batch are lost with the replica and run again alone. A row that does this twice is
convicted, like any row that ends replicas. What grows faster is left to the kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

from deployments.replica.device import DeviceWorker, Job

EVERY_S = 0.1
_MIB = 1 << 20


class MemoryLimit:
    """`limit_bytes`: resident memory of the whole process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._job: Job | None = None
        self._before_bytes = 0
        self._last_bytes = 0

    def breach(self, resident_bytes: int, job: Job | None) -> str:
        """What is wrong, or "". `job`: the running one."""
        if job is not self._job:
            self._job, self._before_bytes = job, self._last_bytes or resident_bytes
        self._last_bytes = resident_bytes
        if resident_bytes <= self._limit_bytes:
            return ""
        took = f"{resident_bytes / _MIB:.0f} MiB resident, {self._limit_bytes / _MIB:.0f} allowed"
        if job is None:
            return f"{took} (memory_limit_mib), and no batch runs"
        grown_mib = (resident_bytes - self._before_bytes) / _MIB
        return (
            f"{took} (memory_limit_mib); {grown_mib:.0f} MiB of it since a batch of "
            f"{job.batch.rows} rows of up to {int(job.batch.lengths.max())} tokens began "
            f"(gateway {job.staged.gateway}, lease {job.staged.lease_id})"
        )


async def watch_memory(
    worker: DeviceWorker, limit_mib: int, on_breach: Callable[[str], None]
) -> None:
    """Check for ever, until cancelled. `on_breach` gets the reason."""
    limit, process = MemoryLimit(limit_mib * _MIB), psutil.Process()
    while True:
        await asyncio.sleep(EVERY_S)
        reason = limit.breach(process.memory_info().rss, worker.running)
        if reason:
            on_breach(reason)
