"""One connection to one replica: from the handshake to its end, whatever ends it.

Runs outside any request's context. What is written in one turn of the loop goes out in one system
call (uvloop gathers it). A frame that may not come, one that stays incomplete and a replica that
has promised signs of life and is silent end the connection, with the reason. Says `up` once and
`down` once, and `down` alone where the handshake failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

from deployments.contract.channel.frames import (
    MOST_FRAME_BYTES,
    REPLICA_KINDS,
    STALLED_S,
    Buffer,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    StallWatch,
    framed,
)
from deployments.contract.channel.handshake import GatewayHandshake, Refused, reason_of
from deployments.contract.channel.sockets import FOUND_DEAD_S, find_dead_peers, is_dead

SILENCE_S = 10.0  # of a replica that says something every second
CREDIT_EVERY_BYTES = 1 << 16
_GREETINGS = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.REFUSED})


@dataclass(slots=True)
class LinkCounts:
    """Of all connections of one model's channel, ever."""

    connects: int = 0
    disconnects: int = 0
    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0


class LinkOwner(Protocol):
    def link_up(self, link: ReplicaLink) -> None: ...
    def link_down(self, link: ReplicaLink, reason: str) -> None: ...
    def link_leaving(self, link: ReplicaLink) -> None: ...
    def received(self, replica_id: str, frame: Frame) -> None: ...


class ReplicaLink(asyncio.Protocol):
    """`speaks`: the replica says something every second."""

    def __init__(
        self,
        replica_id: str,
        handshake: GatewayHandshake,
        owner: LinkOwner,
        counts: LinkCounts,
        *,
        speaks: bool,
    ) -> None:
        self.replica_id = replica_id
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._owner = owner
        self._counts = counts
        self._speaks = speaks
        self._reader = FrameReader(_GREETINGS)
        self._stall = StallWatch(self._reader)
        self._transport: asyncio.Transport | None = None
        self._up = False
        self._reason = ""
        self._heard_at = monotonic()
        self._taken_bytes = self._credited_bytes = 0

    # ---- what the channel asks ----------------------------------------------------------------

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        """Once it is up. Raises FrameError for a body that is too large."""
        assert self._transport is not None
        parts = framed(kind, lease_id, body)
        self._counts.sent_frames += 1
        self._counts.sent_bytes += sum([len(part) for part in parts])
        self._transport.writelines(parts)

    def close(self, reason: str) -> None:
        """Ends it at once; what is on its way is lost."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Ends a connection that has been silent where it may not be; called every second."""
        if self._stall.stalled(now):
            self.close(f"a frame has not come to its end for {STALLED_S:g} s")
        elif self._speaks and now - self._heard_at > SILENCE_S:
            self.close(f"silent for {SILENCE_S:g} s")
        elif self._transport is not None and is_dead(self._transport):
            self.close(f"the replica's machine has not answered for {FOUND_DEAD_S:g} s")

    # ---- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        find_dead_peers(transport)
        self._transport.writelines(framed(Kind.HELLO, 0, [self._handshake.hello()]))

    def data_received(self, data: bytes) -> None:
        self._heard_at = monotonic()
        self._counts.received_bytes += len(data)
        try:
            for frame in self._reader.feed(data):
                self._counts.received_frames += 1
                self._take(frame)
        except (FrameError, Refused) as fault:
            self.close(str(fault))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or (str(exc) if exc is not None else "the replica closed it")
        was_up, self._up = self._up, False
        if not self.closed.done():
            self.closed.set_result(reason)
        if was_up:
            self._counts.disconnects += 1
            self._owner.link_down(self, reason)

    def _take(self, frame: Frame) -> None:
        if self._up:
            if frame.kind is Kind.GOAWAY:
                self._owner.link_leaving(self)
                self.send(Kind.GOAWAY, 0)  # behind all that was sent before
                return
            self._owner.received(self.replica_id, frame)
            if frame.kind is Kind.STEPS:
                self._credit(len(frame.body))
        elif frame.kind is Kind.CHALLENGE:
            assert self._transport is not None
            self._transport.writelines(framed(Kind.PROOF, 0, [self._handshake.prove(frame.body)]))
            self._reader.kinds = frozenset({Kind.WELCOME, Kind.REFUSED})
        elif frame.kind is Kind.REFUSED:
            raise Refused(f"refused: {reason_of(frame.body)}")
        elif Kind.CHALLENGE in self._reader.kinds:
            raise Refused("a welcome without a challenge")
        else:
            self._welcomed()

    def _welcomed(self) -> None:
        self._reader.kinds, self._reader.most_bytes = REPLICA_KINDS, MOST_FRAME_BYTES
        self._up = True
        self._counts.connects += 1
        self._owner.link_up(self)

    def _credit(self, size: int) -> None:
        """Tells the replica how much of its stream has been taken in, now and then."""
        self._taken_bytes += size
        if self._taken_bytes - self._credited_bytes >= CREDIT_EVERY_BYTES:
            self._credited_bytes = self._taken_bytes
            self.send(Kind.CREDIT, self._taken_bytes)
