"""Which prompt may run next, of those that were on a replica when that was lost and come again?

There is one permit, held until a first token, and had in the order in which they came: what ends a
replica mostly does so while its prompt is read, and a loss then has one cause. Nobody waits longer
than it says. For the event loop's thread alone; as many wait as the gateway has requests under way.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SuspectPermits:
    def __init__(self) -> None:
        self._holder: Permit | None = None
        self._waiting: deque[tuple[Permit, asyncio.Future[None]]] = deque()

    async def acquire(self, limit_s: float) -> Permit:
        """Returns once the one before has released it; after `limit_s` all the same."""
        permit = Permit(self)
        if self._holder is None:
            self._holder = permit
            return permit
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((permit, woken))
        try:
            async with asyncio.timeout(limit_s):
                await woken
        except TimeoutError:
            self._leave(permit)
        except asyncio.CancelledError:
            permit.release()
            raise
        return permit

    def end(self, permit: Permit) -> None:
        """Idempotent, and without effect on anybody else's."""
        self._leave(permit)
        if self._holder is not permit:
            return
        self._holder = None
        while self._waiting and self._holder is None:
            following, woken = self._waiting.popleft()
            if not woken.done():
                self._holder = following
                woken.set_result(None)

    def _leave(self, permit: Permit) -> None:
        self._waiting = deque(each for each in self._waiting if each[0] is not permit)


class Permit:
    """Of one suspect: released by its first token, or by whatever ends it."""

    def __init__(self, permits: SuspectPermits) -> None:
        self._permits = permits

    def release(self) -> None:
        self._permits.end(self)
