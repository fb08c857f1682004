"""Does Serve's controller hang, so that it has to be killed for Ray to restart it?

While it hangs, callers are still answered, but nothing is started, replaced or changed. SIGTERM
during calls of its own may make it hang for ever. Ray restarts a controller that has ended, and it
restores its state. The registry asks it once a second, and kills it on any node when either holds:
- It was silent for `HANGS_S`, or for three times its longest recent answer if that is longer (at
  most `STARTS_S`): its loop stands still while it goes through its replicas. Only seconds count in
  which the registry was on time and Ray reports the controller as running.
- The wall clock was set back. Until the clock has caught up, the controller checks no replica.
A pause follows each kill, twice as long as the last one (up to `MAX_PAUSE_S`), so that a fault that
a restart does not mend causes no endless restarts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import ray
from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from deployments.process import audit
from deployments.process.audit import AuditLine

LOOKS_S = 1.0  # between two questions, and how long one look waits for an answer
HANGS_S = 15.0
# Silence allowed, in multiples of the longest recent answer; to which share of itself each further
# answer lets that longest one decay.
_TIMES_BUSY, _KEEPS = 3.0, 0.999
STARTS_S = 60.0  # until its first answer once Ray reports it as running: it restores its state
SET_BACK_S = 10.0  # in which Serve checks each replica at least three times
PAUSE_S, MAX_PAUSE_S = 30.0, 960.0
_TOLD_S = 5.0  # of silence, before an operator is told
_ON_TIME_S = 3 * LOOKS_S  # between looks: one may wait for an answer and then as long again
_NEVER = float("-inf")
logger = logging.getLogger("headrace.registry")


class ProbeResult(Enum):
    """What one question to the controller has shown. AWAY: Ray reports it as not running."""

    ANSWERED = "answered"
    SILENT = "silent"
    AWAY = "away"


class ControllerWatch:
    """Decides from the looks when the controller must be killed.

    `now` is in seconds on the caller's monotonic clock, `wall_s` on its machine's wall clock.
    `silent_s`: for how long the controller has been silent while it ran.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._answered = False  # since its process last started
        self._longest_s = 0.0  # its longest recent answer, decayed
        self._looked_at: float | None = None
        self._furthest_s = _NEVER  # wall clock less monotonic clock, the maximum seen
        self._pause_s = PAUSE_S  # the next one
        self._not_before = _NEVER  # end of the pause after the last kill

    def look(self, result: ProbeResult, now: float, wall_s: float) -> str | None:
        """Take in one look. Returns why the controller must be killed, or None."""
        before, self._looked_at = self._looked_at, now
        if result is ProbeResult.SILENT:
            if before is not None and now - before <= _ON_TIME_S:
                self.silent_s += now - before
        elif result is ProbeResult.ANSWERED:
            self._longest_s = max(self.silent_s, _KEEPS * self._longest_s)
            self.silent_s, self._answered = 0.0, True
            if now >= self._not_before + MAX_PAUSE_S:
                self._pause_s = PAUSE_S
        else:
            self.silent_s, self._answered, self._furthest_s = 0.0, False, _NEVER
        # By how much the wall clock was set back since this controller's process started.
        ahead_s = wall_s - now
        self._furthest_s = max(self._furthest_s, ahead_s)
        behind_s = self._furthest_s - ahead_s
        # One that answered after its kill did restart well. If it hangs again within the pause, it
        # gets as long as one that starts.
        hangs_again = self._answered and self.silent_s >= STARTS_S  # it restarted well
        if now < self._not_before and not hangs_again:
            return None
        limit_s = STARTS_S
        if self._answered:
            limit_s = min(max(HANGS_S, _TIMES_BUSY * self._longest_s), STARTS_S)
        if self.silent_s >= limit_s:
            return f"it has not answered for {self.silent_s:.0f} s"
        if behind_s >= SET_BACK_S:
            return f"the clock was set back by {behind_s:.0f} s, for which its checks would wait"
        return None

    def ended(self, now: float) -> None:
        """The controller was killed: start over, and begin the pause."""
        self.silent_s, self._answered, self._furthest_s = 0.0, False, _NEVER
        self._not_before = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)


class ControllerActor:
    """Serve's controller of this cluster. Constructing one raises ValueError if Serve does not run.
    The private API of Ray that this uses is tested by tests/integration/test_ray_contract.py."""

    def __init__(self) -> None:
        self._actor: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)

    def ask(self) -> Awaitable[int]:
        """The id of the controller's process, once it answers. Raises what Ray raises."""
        asked: Awaitable[int] = self._actor.get_pid.remote()
        return asked

    def runs(self) -> bool:
        """Whether Ray reports it as running: neither starting nor gone."""
        return bool(self._actor._get_local_state() == ActorTableData.ALIVE)

    def end(self) -> None:
        """Kill it; Ray restarts it. If the process ignores this, its node sends it SIGKILL after
        5 s."""
        ray.kill(self._actor, no_restart=False)


class ControllerWatchdog:
    """Asks Serve's controller once a second and kills it when it hangs, and so each successor.

    Use it on one event loop's thread only. `find` gets the controller; it blocks and may raise, so
    it runs in a thread. `on_end` is called after each kill.
    """

    def __init__(
        self, on_end: Callable[[], None], find: Callable[[], ControllerActor] = ControllerActor
    ) -> None:
        self.watch = ControllerWatch()
        self._on_end = on_end
        self._find = find
        self._controller: ControllerActor | None = None
        self._answer: asyncio.Future[int] | None = None
        self._process = 0

    async def run(self) -> None:
        """Look for ever, whatever goes wrong."""
        while True:
            try:
                await self.look(time.monotonic, time.time)
            except Exception as fault:
                logger.warning("Serve's controller cannot be looked at or ended: %r", fault)
            if self._answer is None:
                await asyncio.sleep(LOOKS_S)

    def problem(self) -> str | None:
        """What an operator is told while the controller is silent; None while it answers."""
        if self.watch.silent_s < _TOLD_S:
            return None
        return (
            f"Serve's controller has not answered for {self.watch.silent_s:.0f} s: requests are "
            "served, and nothing is started, replaced or changed until it has been ended and is "
            "there again"
        )

    async def look(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """Look once, which takes up to `LOOKS_S`, and kill the controller if it must be."""
        result = await self._look()
        why = self.watch.look(result, clock(), wall())
        if why is None or self._controller is None:
            return
        self._controller.end()
        self.watch.ended(clock())
        logger.error("Serve's controller, process %d, is ended: %s", self._process, why)
        ended = f"process {self._process}"
        audit.record(AuditLine("the registry", "end", "Serve's controller", ended, detail=why))
        self._on_end()

    async def _look(self) -> ProbeResult:
        """Ask once, or wait on for the answer to the last question: a late answer counts too."""
        if self._controller is None:
            try:
                self._controller = await asyncio.to_thread(self._find)
            except ValueError:
                return ProbeResult.AWAY
        controller = self._controller
        answer = self._answer or asyncio.ensure_future(controller.ask())
        self._answer = answer
        if not (await asyncio.wait({answer}, timeout=LOOKS_S))[0]:
            return ProbeResult.SILENT if controller.runs() else ProbeResult.AWAY
        self._answer = None
        if answer.exception() is None:
            self._process = answer.result()
            return ProbeResult.ANSWERED
        if controller.runs():
            return ProbeResult.SILENT
        self._controller = None  # a restarted Serve has another
        return ProbeResult.AWAY
