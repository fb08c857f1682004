"""Ends a replica that takes more memory than it may, and says which batch it was at.

A limit of the kernel's ends the process without a word, or some other one. Looked at ten times a
second, while batches run: what the process has resident, and by how much it has grown since the
batch that runs began. That batch's rows are lost with the replica, run again alone, and a row that
does it twice is convicted, as any that ends replicas. What grows faster the kernel finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

from deployments.replica.device import DeviceWorker, Job

EVERY_S = 0.1
_MIB = 1 << 20


class MemoryLimit:
    """`limit_bytes`: resident, of the whole process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._job: Job | None = None
        self._before_bytes = 0
        self._last_bytes = 0

    def breach(self, resident_bytes: int, job: Job | None) -> str:
        """What is wrong, "" where nothing is; `job`: that runs."""
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
    """Runs beside the core until cancelled."""
    limit, process = MemoryLimit(limit_mib * _MIB), psutil.Process()
    while True:
        await asyncio.sleep(EVERY_S)
        reason = limit.breach(process.memory_info().rss, worker.running)
        if reason:
            on_breach(reason)
