"""Whose turn is it, of prompts that were on a replica when that was lost and come again?

One at a time until its first token, in the order in which they came: what ends a replica mostly
does so while it reads its prompt, and a loss then has one cause. Nobody waits longer than it says.
For the event loop's thread alone; as many wait as the gateway has requests under way.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SuspectTurns:
    def __init__(self) -> None:
        self._holder: Turn | None = None
        self._waiting: deque[tuple[Turn, asyncio.Future[None]]] = deque()

    async def take(self, limit_s: float) -> Turn:
        """The turn, once whoever had it before is over; after `limit_s` all the same."""
        turn = Turn(self)
        if self._holder is None:
            self._holder = turn
            return turn
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, woken))
        try:
            async with asyncio.timeout(limit_s):
                await woken
        except TimeoutError:
            self._leave(turn)
        except asyncio.CancelledError:
            turn.over()
            raise
        return turn

    def end(self, turn: Turn) -> None:
        """Idempotent, and without effect on anybody else's."""
        self._leave(turn)
        if self._holder is not turn:
            return
        self._holder = None
        while self._waiting and self._holder is None:
            following, woken = self._waiting.popleft()
            if not woken.done():
                self._holder = following
                woken.set_result(None)

    def _leave(self, turn: Turn) -> None:
        self._waiting = deque(each for each in self._waiting if each[0] is not turn)


class Turn:
    """Of one suspect: over with its first token, or with whatever ends it."""

    def __init__(self, turns: SuspectTurns) -> None:
        self._turns = turns

    def over(self) -> None:
        self._turns.end(self)
