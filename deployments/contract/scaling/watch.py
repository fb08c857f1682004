"""Makes the autoscaler, and ends it when it hangs, so that Ray starts it anew.

It is asked once a second; two answers in a row that do not come within 2 s mean that it hangs. One
that has not answered yet, or is being started anew, gets `STARTS_S`: its imports take seconds on a
busy machine. It is never waited for by anything but this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ASKS_S = 1.0
ANSWER_S = 2.0
STARTS_S = 60.0
_MISSED = 2
logger = logging.getLogger("headrace.registry")


@dataclass(slots=True)
class Watch:
    """`since`: when it was last heard of, or made. answered: at least once since then."""

    since: float
    answered: bool = False
    missed: int = 0

    def heard(self, now: float) -> None:
        self.since, self.answered, self.missed = now, True, 0

    def away(self, now: float) -> None:
        """Ray says that it is not there: it is being started anew."""
        if self.answered:
            self.since, self.answered, self.missed = now, False, 0

    def silent(self, now: float) -> bool:
        """It did not answer in time: whether it is to be ended."""
        self.missed += 1
        hangs = self.answered and self.missed >= _MISSED
        if not hangs and (self.answered or now - self.since < STARTS_S):
            return False
        self.since, self.answered, self.missed = now, False, 0
        return True


async def keep_alive(make: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
    """For ever. `make`: the actor's handle, made where there is none."""
    import ray

    actor, watch = make(), Watch(clock())
    while True:
        try:
            await asyncio.wait_for(actor.ping.remote(), ANSWER_S)
            watch.heard(clock())
        except TimeoutError:
            if watch.silent(clock()):
                logger.error("the autoscaler hangs and is started anew")
                ray.kill(actor, no_restart=False)
        except ray.exceptions.RayError as gone:
            logger.debug("the autoscaler is away: %s", gone)
            watch.away(clock())
            actor = _made(make, actor)
        await asyncio.sleep(ASKS_S)


def _made(make: Callable[[], Any], last: Any) -> Any:
    try:
        return make()
    except Exception as fault:
        logger.warning("no autoscaler can be made: %s", fault)
        return last
