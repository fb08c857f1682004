"""A replica that generates, with its server but without Ray, and gateways that ask it to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channel_peers import Peer, until
from told_engine import Told

from deployments.contract.channel.frames import Kind
from deployments.contract.channel.stream_messages import (
    GenerateCall,
    Piece,
    StreamEnd,
    decode_steps,
    encode_generate,
)
from deployments.replica.channel_server import ChannelServer, GatewayConnection
from deployments.replica.stream_core import StreamCore


class Generating:
    """`engine`: does as the test says."""

    def __init__(self) -> None:
        self.engine = Told()
        self.core = StreamCore(self.engine, room=8, on_death=pytest.fail)
        self.server = ChannelServer(self.core, "rep")

    async def close(self) -> None:
        await asyncio.wait_for(self.core.close(), 5.0)
        await self.server.close()
        await until(lambda: not self.server._connections)
        assert self.core.inflight == 0
        assert len(self.engine.freed) == len(self.engine.asks)

    def link(self, gateway: str) -> GatewayConnection:
        return self.server._links[gateway]

    async def stream(self, body: bytes, steps: int, size: int) -> int:
        """So many steps, of so many bytes each; how many in all."""
        for _ in range(steps):
            self.engine.give(body, bytes(size))
            for _ in range(8):
                await asyncio.sleep(0)
        return steps * size


class Reader:
    """A gateway that generates. `taken`: bytes of its messages; it says so if `credits`."""

    def __init__(self, peer: Peer, *, credits: bool = True) -> None:
        self.peer = peer
        self.credits = credits
        self.pieces: list[Piece] = []
        self.taken = 0

    def begin(self, lease_id: int, body: bytes) -> None:
        call = GenerateCall("completions", body, 30.0)
        self.peer.send(Kind.BEGIN, lease_id, encode_generate(call))

    def look(self) -> None:
        """Takes in what has come."""
        for kind, _, body in self.peer.got:
            if kind is Kind.STEPS:
                self.taken += len(body)
                self.pieces += decode_steps(memoryview(body)).pieces
        self.peer.got = [each for each in self.peer.got if each[0] is not Kind.STEPS]
        if self.credits:
            self.peer.send(Kind.CREDIT, self.taken)

    def data(self, lease_id: int) -> int:
        """Bytes of an answer that have come."""
        self.look()
        return sum(len(piece.data) for piece in self.pieces if piece.lease_id == lease_id)

    def ended(self, lease_id: int) -> StreamEnd | None:
        self.look()
        ends = [p.end for p in self.pieces if p.lease_id == lease_id and p.end is not None]
        assert len(ends) <= 1
        return ends[0] if ends else None

    async def end_of(self, lease_id: int) -> StreamEnd:
        await until(lambda: self.ended(lease_id))
        end = self.ended(lease_id)
        assert end is not None
        return end


async def reading(generating: Generating, gateway: str = "gw", **more: Any) -> Reader:
    return Reader(await Peer.welcome(generating.server, gateway), **more)


async def begun(generating: Generating, reader: Reader, lease_id: int, body: bytes) -> None:
    reader.begin(lease_id, body)
    await reader.peer.take(Kind.STARTED, lease_id)
    await until(lambda: body in generating.engine.queues)
