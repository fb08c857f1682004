"""A gateway's end of a real connection, which does as a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, cast

from deployments.contract.channel.frames import MAX_FRAME_BYTES, Buffer, FrameReader, Kind, framed
from deployments.contract.channel.handshake import GatewayHandshake, reason_of
from deployments.process.sockets import host_and_port
from deployments.replica.channel_server import ChannelServer

LIMIT_S = 5.0
Got = tuple[Kind, int, bytes]


class Peer(asyncio.Protocol):
    """`got`: frames that have come and were not taken; `ended`: resolves with the connection."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.received_bytes = 0
        self._reader = FrameReader(frozenset(Kind), MAX_FRAME_BYTES)
        self._news = asyncio.Event()

    @classmethod
    async def connect(cls, server: ChannelServer, tls: ssl.SSLContext | None = None) -> Peer:
        host, port = host_and_port(server.address)
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, host, port, ssl=tls))[1]

    @classmethod
    async def welcome(
        cls, server: ChannelServer, gateway: str = "gw", tls: ssl.SSLContext | None = None
    ) -> Peer:
        """One that has shown who it is."""
        peer = await cls.connect(server, tls)
        handshake = GatewayHandshake(server.key, gateway, server.replica_id)
        peer.send(Kind.HELLO, 0, [handshake.hello()])
        challenge = await peer.take(Kind.CHALLENGE)
        peer.send(Kind.PROOF, 0, [handshake.prove(memoryview(challenge))])
        await peer.take(Kind.WELCOME)
        return peer

    # ---- what it does -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def send(self, kind: Kind, lease_id: int = 0, parts: Sequence[Buffer] = ()) -> None:
        self.write(b"".join(framed(kind, lease_id, parts)))

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def read_on(self) -> None:
        self.transport.resume_reading()

    def leave(self) -> None:
        self.transport.abort()

    # ---- what it hears ------------------------------------------------------------------------

    async def take(self, kind: Kind, lease_id: int | None = None) -> bytes:
        """The body of the next frame of that kind, of that lease if one is named."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for each in self.got:
                    if each[0] is kind and lease_id in (None, each[1]):
                        self.got.remove(each)
                        return each[2]
                assert not self.ended.done(), f"the connection ended without a {kind.name}"
                self._news.clear()
                await self._news.wait()

    async def refused(self) -> str:
        """Why it was, the connection being over."""
        reason = reason_of(memoryview(await self.take(Kind.REFUSED)))
        await self.gone()
        assert self.got == []
        return reason

    async def gone(self) -> None:
        await asyncio.wait_for(self.ended, LIMIT_S)

    # ---- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        for frame in self._reader.feed(data):
            self.got.append((frame.kind, frame.lease_id, bytes(frame.body)))
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)
        self._news.set()


async def until(met: Any, limit_s: float = LIMIT_S) -> None:
    """Returns once `met()`."""
    async with asyncio.timeout(limit_s):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
