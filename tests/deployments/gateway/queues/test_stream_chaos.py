"""Streams under everything at once: callers leave, replicas die and come back, engines fail, refuse
and fall behind. Each request ends once, with all of its answer or an error, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from fake_engines import Engines
from stream_bench import AT_ONCE, Bench, bench

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.queues.pending_requests import PendingStreamRequest
from routers.api.settings import HedgeParameters

Describe = Callable[..., ModelDescription]
REQUESTS = 120
END = b"END"


class Chaos:
    def __init__(self, b: Bench, random: Random) -> None:
        self.b, self.random = b, random
        self.ended: list[str] = []
        self.over = False

    async def calls(self) -> None:
        """Callers, one after the other, some of whom leave."""
        tasks = []
        for _ in range(REQUESTS):
            tasks.append(asyncio.create_task(self._call()))
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        self.over = True

    async def _call(self) -> None:
        try:
            pending = self.b.submit(
                tokens=self.random.randrange(1, 300), streams=self.random.random() < 0.7
            )
        except errors.HeadraceError as refused:
            self.ended.append(refused.outcome)
            return
        leaves = self.random.randrange(200) if self.random.random() < 0.3 else None
        leaver = None if leaves is None else asyncio.create_task(self._leave(pending, leaves))
        self.ended.append(await self._read(pending))
        if leaver is not None:
            await leaver

    async def _leave(self, pending: PendingStreamRequest, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.b.queue.cancel(pending)

    async def _read(self, pending: PendingStreamRequest) -> str:
        heard = b""
        try:
            while part := await pending.next():
                heard += part
        except errors.HeadraceError as error:
            return error.outcome
        assert heard.endswith(END), "an answer was given that is not whole"
        assert heard.count(b"BEGIN") == 1, "a caller was given two answers"
        return "ok"

    async def engines(self) -> None:
        """What replicas do, at random, until all callers have gone."""
        begun: set[int] = set()
        while not self.over:
            await asyncio.sleep(0)
            engines = self.b.engines
            running = [lease for e in engines.engines.values() for lease in e.calls]
            if running:
                self._moves(engines, self.random.choice(running), begun)
            if self.random.random() < 0.01:
                self._dies(engines)

    def _moves(self, engines: Engines, lease: int, begun: set[int]) -> None:
        drawn = self.random.random()
        if lease not in begun and drawn < 0.15:
            engines.say(lease, end=self.random.choice([StreamEnd.BUSY, StreamEnd.FAILED]))
        elif lease not in begun:
            begun.add(lease)
            engines.say(lease, b"BEGIN", tokens=(5, 0, 1))
        elif drawn < 0.03:
            engines.say(lease, end=StreamEnd.FAILED, tokens=(5, 0, 1))
        elif drawn < 0.4:
            engines.say(lease, END, tokens=(5, 0, 9), end=StreamEnd.DONE)
        else:
            engines.say(lease, b".", tokens=(5, 0, 5))

    def _dies(self, engines: Engines) -> None:
        engines.disconnect(self.random.choice(self.b.names))


@pytest.mark.parametrize("copies", [None, AT_ONCE], ids=["alone", "raced"])
@pytest.mark.parametrize("seed", range(4))
async def test_each_request_ends_once_and_nothing_is_left(
    description: Describe, seed: int, copies: HedgeParameters | None
) -> None:
    async with bench(description, 3, copies) as b:
        chaos = Chaos(b, Random(seed))
        await asyncio.gather(chaos.calls(), chaos.engines())
        assert len(chaos.ended) == REQUESTS
        assert set(chaos.ended) <= {"ok", "cancelled", "lost", "failed", "shed"}
        assert chaos.ended.count("ok") > REQUESTS / 4
        assert bool(b.queue.snapshot().hedges) is (copies is not None)
        await b.up()
