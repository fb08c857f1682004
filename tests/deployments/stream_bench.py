"""A queue of streams over played replicas, and how tests submit to it and read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from fake_engines import Engines, until
from msgspec import structs

from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    ModelDescription,
    dispatcher_settings,
)
from deployments.gateway.models.served_model import terms
from deployments.gateway.queues.connections import ReplicaChannel
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.pending_requests import PendingStreamRequest, Prompt
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.process.replica_directory import RunningReplica
from routers.api.requests import Generation
from routers.api.settings import GenerationParameters, HedgeParameters

AT_ONCE = HedgeParameters(fixed_delay_s=0.001, budget=1.0, max_utilisation=1.0)
"""Whatever has no first token after a millisecond is copied."""
SHAPE = Generating(context_tokens=1000, cache_tokens=1000, max_sequences=4)


class Bench:
    def __init__(
        self,
        description: Callable[..., ModelDescription],
        replicas: int,
        hedge: HedgeParameters | None = None,
        channel: ReplicaChannel | None = None,
        **changes: Any,
    ) -> None:
        """`channel`: to replicas that are not played; its owner lists them."""
        edges = (64, 1000)
        self.description = description(
            task="generate", generating=SHAPE, max_length=1000, bucket_edges=edges, **changes
        )
        self.engines = Engines()
        self._prompts = count(1)
        self.terms = terms(self.description)
        settings = dispatcher_settings(self.description, GatewayIdentity("g0"))
        if hedge is not None:
            learns = GenerationParameters(tokens_per_s=1000.0, output_tokens=10)
            settings = replace(settings, hedge=hedge, generation=learns)
        self.queue = StreamQueue(settings, self.terms, channel or self.engines)
        self.names = [f"r{number}" for number in range(replicas)]
        if channel is None:
            self.run(self.names)

    def run(self, names: list[str]) -> None:
        self.queue.set_replicas([RunningReplica(name) for name in names], {"": SHAPE})

    def submit(
        self,
        tokens: int = 10,
        *,
        streams: bool = True,
        expires_s: float = 60.0,
        key: bytes = b"",
        **demand: Any,
    ) -> PendingStreamRequest:
        """`key`: its fingerprint, one of its own where none is given."""
        key = key or b"%d" % next(self._prompts)
        generation = Generation(50)
        prompt = Prompt("chat", b"{}", tokens, generation, streams, fingerprint=key)
        asked = QueueRequest("t", 1, min(1.0, expires_s), expires_s)
        return self.queue.submit(prompt, self.terms, structs.replace(asked, **demand))

    async def begun(self, count: int) -> int:
        """The lease of the latest request, once so many were begun."""
        return (await self.engines.until_begun(count)).lease_id

    async def up(self) -> None:
        await self.up_to(len(self.names))

    async def up_to(self, replicas: int) -> None:
        await until(lambda: len(self.queue.calls.reached) == replicas)

    async def settled(self) -> None:
        """Lets what is under way end, then sees that nothing is left."""
        await until(lambda: not self.queue.calls.count)
        found = self.queue.snapshot()
        assert self.queue.inflight == found.waiting_rows == found.leases == found.drift == 0
        assert found.waiting_requests == found.leased_rows == found.unknown_closes == 0
        assert all(replica.held == 0.0 for replica in found.replicas)
        assert self.engines.running == 0


@asynccontextmanager
async def bench(
    description: Any, replicas: int = 1, hedge: HedgeParameters | None = None
) -> AsyncIterator[Bench]:
    """Empty at its end."""
    made = Bench(description, replicas, hedge)
    await made.up()
    try:
        yield made
        await made.settled()
    finally:
        made.queue.calls.close()
        await asyncio.sleep(0)


async def read(pending: PendingStreamRequest) -> bytes:
    """All of the answer."""
    parts = []
    while part := await asyncio.wait_for(pending.next(), 5.0):
        parts.append(part)
    return b"".join(parts)
