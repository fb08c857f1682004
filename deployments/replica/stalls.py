"""Has an engine that generates stopped making steps?

A step is held against a prediction, as a batch is (`HangLimits`): the longest of the engine's
recent steps, and the prompts that it has yet to read, at what their gateways take them to cost. So
a fast engine is found soon, and one that reads a long prompt in one step has the time for it. While
either is not known, only `max_s` counts. Like the event loop's own watch, it counts only seconds
in which it was itself on time: a process that was stopped has not shown that its engine hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from deployments.process.loop_watch import Heartbeat
from deployments.replica.hang_limits import HangLimits
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
        reason = detector.look(
            load.steps, time.perf_counter(), busy=core.inflight > 0, unread_s=core.unread_s
        )
        if reason:
            on_stall(reason)
