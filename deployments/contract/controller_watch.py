"""Does Serve's controller do its work no more, and is it ended, so that Ray starts it anew?

While it hangs callers are answered, and nothing is started, replaced or changed any more. One that
is asked to end (SIGTERM) with calls of its own under way may stay so for ever; once its process has
ended, Ray starts it again with all that it knew. So it is asked once a second, and ended when it
has said nothing for `HANGS_S`, or for three times as long as it lately took to answer: its loop
stands still while it looks through its replicas. Only seconds count in which whoever asks was on
time itself, and in which Ray holds the controller to run. It is ended, too, when the wall clock was
set back: until that is where it was it would look after no replica. After each end there is a
pause, twice as long as the last: what ending does not mend is not ended in a circle. One that
answered after its end was mended, and starts well: in a pause it gets as long as one that starts.

Asked by the registry, which may end actors anywhere: the same on one machine and on many.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

import ray
from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from deployments.contract import audit
from deployments.contract.audit import AuditLine

LOOKS_S = 1.0
HANGS_S = 15.0
_TIMES_BUSY, _KEEPS = 3.0, 0.999  # of the longest answer; what is left of it an answer later
STARTS_S = 60.0  # to its first answer, once Ray holds it to run: it reads what it knew
SET_BACK_S = 10.0  # in which Serve looks at each replica three times at least
PAUSE_S, MOST_PAUSE_S = 30.0, 960.0
_TOLD_S = 5.0
_ON_TIME_S = 3 * LOOKS_S  # from look to look: it may wait for an answer and then as long again
logger = logging.getLogger("headrace.registry")


class Sight(Enum):
    """What a look has shown. AWAY: as Ray says, it does not run now."""

    ANSWERED = "answered"
    SILENT = "silent"
    AWAY = "away"


class ControllerWatch:
    """`now`: seconds on the caller's monotonic clock; `wall_s`: of its machine's. `silent_s`: for
    how long it has said nothing while it ran."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._answered = False
        self._longest_s = 0.0
        self._looked_at: float | None = None
        self._furthest_s: float | None = None
        self._pause_s = PAUSE_S
        self._not_before = float("-inf")

    def look(self, sight: Sight, now: float, wall_s: float) -> str | None:
        """Why it is to be ended; None: it is not."""
        before, self._looked_at = self._looked_at, now
        if sight is Sight.SILENT:
            if before is not None and now - before <= _ON_TIME_S:
                self.silent_s += now - before
        elif sight is Sight.ANSWERED:
            self._longest_s = max(self.silent_s, _KEEPS * self._longest_s)
            self.silent_s, self._answered = 0.0, True
            if now >= self._not_before + MOST_PAUSE_S:
                self._pause_s = PAUSE_S
        else:
            self.silent_s, self._answered, self._furthest_s = 0.0, False, None
        behind_s = self._behind_s(wall_s - now)
        if now < self._not_before and not self._hangs_again():
            return None
        if self.silent_s >= self._limit_s():
            return f"it has not answered for {self.silent_s:.0f} s"
        if behind_s >= SET_BACK_S:
            return f"the clock was set back by {behind_s:.0f} s, for which its checks would wait"
        return None

    def ended(self, now: float) -> None:
        self.silent_s, self._answered, self._furthest_s = 0.0, False, None
        self._not_before = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    def _hangs_again(self) -> bool:
        """For good, after it was ended and had answered."""
        return self._answered and self.silent_s >= STARTS_S

    def _limit_s(self) -> float:
        """Of silence."""
        if not self._answered:
            return STARTS_S
        return min(max(HANGS_S, _TIMES_BUSY * self._longest_s), STARTS_S)

    def _behind_s(self, ahead_s: float) -> float:
        """Where the wall clock was since this controller began."""
        furthest_s = ahead_s if self._furthest_s is None else max(self._furthest_s, ahead_s)
        self._furthest_s = furthest_s
        return furthest_s - ahead_s


class Controller(Protocol):
    def ask(self) -> Awaitable[int]:
        """Its process's id, once it answers. Raises what Ray raises."""
        ...

    def runs(self) -> bool:
        """Whether Ray holds it to run: neither starting nor gone."""
        ...

    def end(self) -> None:
        """By force; Ray starts it again."""
        ...


class ServeController:
    """Raises ValueError where there is none. Held in place by
    tests/integration/test_ray_contract.py."""

    def __init__(self) -> None:
        self._actor: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)

    def ask(self) -> Awaitable[int]:
        asked: Awaitable[int] = self._actor.get_pid.remote()
        return asked

    def runs(self) -> bool:
        return bool(self._actor._get_local_state() == ActorTableData.ALIVE)

    def end(self) -> None:
        """A process that does not heed it gets SIGKILL from its node, after 5 s."""
        ray.kill(self._actor, no_restart=False)


class ControllerKeeper:
    """Looks after one controller after the other; for an event loop's thread alone. `find` blocks,
    and may raise. `on_end` is told of each that was ended."""

    def __init__(
        self, on_end: Callable[[], None], find: Callable[[], Controller] = ServeController
    ) -> None:
        self.watch = ControllerWatch()
        self._on_end = on_end
        self._find = find
        self._controller: Controller | None = None
        self._answer: asyncio.Future[int] | None = None
        self._process = 0

    async def run(self) -> None:
        """For ever, whatever goes wrong."""
        while True:
            try:
                await self.look(time.monotonic, time.time)
            except Exception as fault:
                logger.warning("Serve's controller cannot be looked at or ended: %r", fault)
            if self._answer is None:
                await asyncio.sleep(LOOKS_S)

    def problem(self) -> str | None:
        """What an operator is told while it says nothing."""
        if self.watch.silent_s < _TOLD_S:
            return None
        return (
            f"Serve's controller has not answered for {self.watch.silent_s:.0f} s: requests are "
            "served, and nothing is started, replaced or changed until it has been ended and is "
            "there again"
        )

    async def look(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """Once, for up to `LOOKS_S`."""
        sight = await self._look()
        if why := self.watch.look(sight, clock(), wall()):
            self._end(why, clock())

    async def _look(self) -> Sight:
        """One question at a time: an answer that takes long is one all the same."""
        if self._controller is None:
            try:
                self._controller = await asyncio.to_thread(self._find)
            except ValueError:
                return Sight.AWAY
        controller = self._controller
        answer = self._answer or asyncio.ensure_future(controller.ask())
        self._answer = answer
        if not (await asyncio.wait({answer}, timeout=LOOKS_S))[0]:
            return Sight.SILENT if controller.runs() else Sight.AWAY
        self._answer = None
        if answer.exception() is None:
            self._process = answer.result()
            return Sight.ANSWERED
        if controller.runs():
            return Sight.SILENT
        self._controller = None  # a new Serve has another
        return Sight.AWAY

    def _end(self, why: str, now: float) -> None:
        assert self._controller is not None  # else it were away
        self._controller.end()
        self.watch.ended(now)
        logger.error("Serve's controller, process %d, is ended: %s", self._process, why)
        line = AuditLine("the registry", "end", "Serve's controller", f"process {self._process}")
        audit.record(replace(line, detail=why))
        self._on_end()
