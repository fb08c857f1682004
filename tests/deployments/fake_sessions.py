"""A gateway that is connected, played by a test: what it is sent is decoded and kept.

`full` holds back what is sent by its leave, as a gateway that does not take in its stream does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from deployments.contract.channel.frames import BatchReply, Buffer, Frame, Kind, decode_reply
from deployments.contract.channel.stream_messages import Piece, StepMessage, decode_steps
from deployments.contract.codec import WIRE


def frame(kind: Kind, lease_id: int = 0, parts: Sequence[Buffer] = ()) -> Frame:
    return Frame(kind, lease_id, memoryview(b"".join(parts)))


class FakeSession:
    """A `GatewayConnection`. `sent`: kinds and leases in order; the rest is what they carried."""

    def __init__(self, gateway: str = "g") -> None:
        self.gateway, self.version = gateway, WIRE
        self.sent: list[tuple[Kind, int]] = []
        self.replies: dict[int, BatchReply] = {}
        self.faults: dict[int, str] = {}
        self.ended: list[str] = []  # why the replica said that it ends
        self.messages: list[StepMessage] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    # ---- `GatewayConnection` ------------------------------------------------------------------

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        self.sent.append((kind, lease_id))
        received = memoryview(b"".join(body))
        if kind is Kind.REPLY:
            assert lease_id not in self.replies, "answered twice"
            self.replies[lease_id] = decode_reply(received)
        elif kind in (Kind.FAULT, Kind.UNSENT):
            self.faults[lease_id] = bytes(received).decode()
        elif kind is Kind.ENDED:
            self.ended.append(bytes(received).decode())
        elif kind is Kind.STEPS:
            self.messages.append(decode_steps(received))
        self._news.set()

    async def room(self) -> None:
        await self._room.wait()

    # ---- what the test makes of it --------------------------------------------------------------

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    @full.setter
    def full(self, full: bool) -> None:
        if full:
            self._room.clear()
        else:
            self._room.set()

    @property
    def pieces(self) -> list[Piece]:
        return [piece for message in self.messages for piece in message.pieces]

    def was_sent(self, kind: Kind) -> list[int]:
        """Leases, in order."""
        return [lease_id for sent, lease_id in self.sent if sent is kind]

    async def until(self, met: Callable[[], bool], limit_s: float = 5.0) -> None:
        """Returns once what was sent meets it."""
        async with asyncio.timeout(limit_s):
            while not met():
                self._news.clear()
                await self._news.wait()

    async def reply(self, lease_id: int) -> BatchReply:
        await self.until(lambda: lease_id in self.replies)
        return self.replies[lease_id]

    async def end_of(self, lease_id: int) -> Piece:
        """Its last piece."""
        await self.until(lambda: any(p.lease_id == lease_id and p.end for p in self.pieces))
        return next(p for p in self.pieces if p.lease_id == lease_id and p.end)
