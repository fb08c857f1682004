"""Creates the autoscaler, and kills it when it hangs so that Ray restarts it.

It is asked once a second. Two answers in a row that take more than 2 s mean that it hangs, unless
it answers a third question: somebody else may have ended it meanwhile, and Ray kills whichever
process the actor has by then, also the next one. An actor that has not answered yet, or is
restarting, gets `STARTS_S`, because its imports take seconds on a busy machine. Nothing else waits
for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

ASKS_S = 1.0
ANSWER_S = 2.0
STARTS_S = 60.0
_MISSED = 2  # answers in a row
logger = logging.getLogger("headrace.registry")


@dataclass(slots=True)
class Watch:
    """What is known of the autoscaler's answers."""

    since: float  # when it last answered, was created, or went away
    answered: bool = False  # at least once since its last start
    missed: int = 0  # answers in a row

    def heard(self, now: float) -> None:
        """It has answered."""
        self.since, self.answered, self.missed = now, True, 0

    def away(self, now: float) -> None:
        """Ray says that it is not there: it is restarting."""
        if self.answered:
            self.since, self.answered, self.missed = now, False, 0

    def silent(self, now: float) -> bool:
        """It did not answer in time. Returns whether it seems to hang."""
        self.missed += 1
        hangs = self.answered and self.missed >= _MISSED
        if not hangs and (self.answered or now - self.since < STARTS_S):
            return False
        self.since, self.answered, self.missed = now, False, 0
        return True


async def keep_alive(make: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
    """Watch for ever, whatever goes wrong. `make` returns the actor's handle and creates the actor
    if there is none; it blocks and may raise."""
    actor, watch = None, Watch(clock())
    while True:
        try:
            if actor is None:
                actor = await asyncio.to_thread(make)
            if not await _answers(actor, watch, clock):
                actor = None
        except Exception as fault:
            logger.warning("no autoscaler can be made or ended: %r", fault)
            actor = None
        await asyncio.sleep(ASKS_S)


async def _answers(actor: Any, watch: Watch, clock: Callable[[], float]) -> bool:
    """Ask once, and kill an actor that hangs. Returns False if Ray says that it is away."""
    import ray

    said = await _asked(actor)
    if said is _Said.NOTHING and watch.silent(clock()):
        said = await _asked(actor)
        if said is _Said.NOTHING:
            logger.error("the autoscaler hangs and is started anew")
            ray.kill(actor, no_restart=False)
    if said is _Said.ANSWERED:
        watch.heard(clock())
    elif said is _Said.AWAY:
        watch.away(clock())
    return said is not _Said.AWAY


class _Said(Enum):
    ANSWERED = "answered"
    NOTHING = "nothing in time"
    AWAY = "Ray says that it is not there"


async def _asked(actor: Any) -> _Said:
    import ray

    try:
        async with asyncio.timeout(ANSWER_S):
            await actor.ping.remote()
    except TimeoutError:
        return _Said.NOTHING
    except ray.exceptions.RayError as gone:
        logger.debug("the autoscaler is away: %s", gone)
        return _Said.AWAY
    return _Said.ANSWERED
