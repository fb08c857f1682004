"""Has the client left while its answer was awaited?

It looks only after a while: most answers are there before it pays. What is awaited goes on
regardless; whoever waits for a client says what is to happen when it left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from deployments.gateway.http.exchange import Exchange

_WATCH_AFTER_S = 0.05
T = TypeVar("T")


async def unless_left(exchange: Exchange, answers: Awaitable[T], left: Callable[[], None]) -> T:
    """What is awaited; `left` is called if the client leaves before."""
    watch = _Watch(exchange, left)
    try:
        return await answers
    except asyncio.CancelledError:
        left()
        raise
    finally:
        watch.end()


class _Watch:
    """Calls `left` if the client disconnects."""

    def __init__(self, exchange: Exchange, left: Callable[[], None]) -> None:
        self._exchange = exchange
        self._left = left
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._look)

    def _look(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        await self._exchange.until_disconnect()
        self._left()

    def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
