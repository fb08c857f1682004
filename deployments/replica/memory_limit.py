"""Ends a replica that takes more memory than it may, and says which batch was running.

The kernel's own limit kills a process without a message, or kills another process. This one checks
ten times a second: the process's resident memory, and its growth since the running batch began. The
rows of that batch are lost with the replica and run again alone. A row that does this twice is
quarantined, like any row that ends replicas. What grows faster is left to the kernel. A process
that holds several models has one limit for all of them; while it loads one, no batch is blamed for
the growth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

from deployments.replica.device import Job

EVERY_S = 0.1
_MIB = 1 << 20
Running = tuple[Job | None, str]  # the batch on the device; its model, where there are several


class MemoryLimit:
    """`limit_bytes`: resident memory of the whole process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._job: Job | None = None
        self._before_bytes = 0
        self._last_bytes = 0

    def pass_over(self, resident_bytes: int, job: Job | None) -> None:
        """Growth until now is not the batch's."""
        self._job, self._before_bytes, self._last_bytes = job, resident_bytes, resident_bytes

    def breach(self, resident_bytes: int, job: Job | None, model: str = "") -> str:
        """What is wrong, or "". `job`, `model`: see `Running`."""
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
            f"{job.batch.rows} rows of up to {int(job.batch.lengths.max())} tokens "
            f"{f'of model {model} ' if model else ''}began "
            f"(gateway {job.staged.gateway}, lease {job.staged.lease_id})"
        )


async def watch_memory(
    running: Callable[[], Running],
    limit_mib: int,
    on_breach: Callable[[str], None],
    loads: Callable[[], bool] = lambda: False,
) -> None:
    """Check for ever, until cancelled. `on_breach` gets the reason. `loads`: a model is being
    loaded; then nothing is a breach."""
    limit, process = MemoryLimit(limit_mib * _MIB), psutil.Process()
    while True:
        await asyncio.sleep(EVERY_S)
        resident_bytes, (job, model) = process.memory_info().rss, running()
        if loads():
            limit.pass_over(resident_bytes, job)
        elif reason := limit.breach(resident_bytes, job, model):
            on_breach(reason)
