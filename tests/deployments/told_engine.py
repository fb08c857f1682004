"""An engine that gives each request the chunks that the test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from runtimes.errors import Unhealthy
from runtimes.types import AdapterLoad, Chunk, EngineLoad, StreamLimits, StreamRequest


class Told:
    """`queues`: each request's, by its body."""

    def __init__(self) -> None:
        self.queues: dict[bytes, asyncio.Queue[Chunk | Exception | None]] = {}
        self.freed: list[bytes] = []
        self.asks: list[StreamRequest] = []
        self.steps = 0
        self.ill = False
        self.adapters: AdapterLoad | None = None

    def give(self, body: bytes, *texts: bytes, count: int = 1) -> None:
        self.steps += 1
        for text in texts:
            self.queues[body].put_nowait(Chunk(text, 3, 1, count, 16))

    def end(self, body: bytes, fault: Exception | None = None) -> None:
        self.queues[body].put_nowait(fault)

    def die(self, *, tells: bool = True) -> None:
        """`tells`: what runs hears of it at once."""
        self.ill = True
        for queue in self.queues.values() if tells else ():
            queue.put_nowait(Unhealthy("the engine died"))

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        self.asks.append(request)
        queue = self.queues[request.body] = asyncio.Queue()
        try:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            await asyncio.sleep(0)  # an engine takes a while to let go
            self.freed.append(request.body)

    async def health(self) -> EngineLoad:
        if self.ill:
            raise Unhealthy("the engine died")
        running = len(self.queues) - len(self.freed)
        return EngineLoad(running=running, steps=self.steps, adapters=self.adapters)

    async def load(self) -> None: ...
    async def warm(self) -> None: ...
    async def close(self) -> None: ...
    def limits(self) -> StreamLimits:
        return StreamLimits(100, 1000, 4)
