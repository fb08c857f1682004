"""Ends a replica whose engine makes no step any more, or that takes more memory than it may.

A step of an engine is held against a prediction, as a batch is (`HangLimits`): the longest of the
engine's recent steps, and the prompts that it has yet to read, at what their gateways take them to
cost. While either is not known, only `max_s` counts, and only seconds in which the check itself was
on time: a process that was stopped has not shown that its engine hangs.

The kernel's own memory limit kills a process without a message. This one checks ten times a second
and says which batch was running; the batch's rows run again alone, and a row that does this twice
is quarantined. What grows faster is left to the kernel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil

from deployments.process.loop_watch import Heartbeat
from deployments.replica.device import DeviceWorker, HangLimits, Job
from deployments.replica.stream_core import StreamCore
from runtimes.errors import Unhealthy

_TRUSTED_STEPS = 100  # before so many, kernels may still be compiled
_HALF_LIFE_S = 60.0  # in which a step's time comes to count half


class StallDetector:
    """`every_s`: seconds between two looks."""

    def __init__(self, limits: HangLimits, every_s: float) -> None:
        self._limits = limits
        self._every_s = every_s
        self._made = 0  # steps seen
        self._longest_s = 0.0  # of recent steps
        self._idle()

    def _idle(self) -> None:
        self._heartbeat = Heartbeat(self._every_s)
        self._steps, self._stepped_at = -1, 0.0

    def look(self, steps: int, now: float, *, busy: bool, unread_s: float | None) -> str:
        """What is wrong, or "". `steps`: how many the engine has made so far; `busy`: it has
        requests; `unread_s`: see `StreamCore`."""
        if not busy:
            self._idle()
            return ""
        if steps != self._steps:
            self._stepped(steps, now)
        still_s, limit_s = self._heartbeat.look(steps, now), self.limit_s(unread_s)
        if still_s <= limit_s:
            return ""
        return (
            f"the engine has made no step for {still_s:.1f} s, {limit_s:.1f} s allowed "
            "(hang_limit_s, hang_factor)"
        )

    def limit_s(self, unread_s: float | None) -> float:
        """Seconds that a step may take now."""
        if unread_s is None or self._made < _TRUSTED_STEPS:
            return self._limits.max_s
        return self._limits.of(self._longest_s + unread_s)

    def _stepped(self, steps: int, now: float) -> None:
        """Between two looks the mean counts: a longer step among them took less than `every_s`."""
        if self._steps >= 0:
            passed_s, made = now - self._stepped_at, steps - self._steps
            faded_s = self._longest_s * 0.5 ** (passed_s / _HALF_LIFE_S)
            self._longest_s = max(faded_s, passed_s / made)
            self._made += made
        self._steps, self._stepped_at = steps, now


async def watch_stalls(
    core: StreamCore, limits: HangLimits, on_stall: Callable[[str], None], every_s: float
) -> None:
    """Check for ever, until cancelled. `on_stall` gets the reason."""
    detector = StallDetector(limits, every_s)
    while True:
        await asyncio.sleep(every_s)
        try:
            load = await core.health()
        except Unhealthy:
            continue  # the core has called `on_death`
        waiting = 0 if load.adapters is None else load.adapters.waiting
        # While an adapter is loaded the engine may make no step, for longer than any step takes.
        unread_s = None if waiting else core.unread_s
        reason = detector.look(
            load.steps, time.perf_counter(), busy=core.begun > waiting, unread_s=unread_s
        )
        if reason:
            on_stall(reason)


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


async def watch_hangs(worker: DeviceWorker, every_s: float) -> None:
    """Check for hangs for ever, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        worker.check_hang()
