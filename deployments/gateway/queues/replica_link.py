"""How does one connection to one replica run, from the handshake to its end?

These end the connection, with a reason: a frame that may not come now, a frame that stays
incomplete, a replica that has promised signs of life and is silent, a machine that does not answer,
and `close`. The owner (`TcpReplicaChannel`) hears `link_up` and `link_down` once each, or neither
where the handshake failed; the future `closed` always resolves, to the reason. Runs outside any
request's context. Frames that are written in one turn of the event loop go out in one system call
(uvloop gathers them).
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
from deployments.process.sockets import FOUND_DEAD_S, find_dead_peers, is_dead

SILENCE_S = 10.0  # after which a replica that should send something every second counts as dead
CREDIT_EVERY_BYTES = 1 << 16
_HANDSHAKE_KINDS = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.REFUSED})


@dataclass(slots=True)
class LinkCounts:
    """Counters of all connections of one model's channel, ever."""

    connects: int = 0
    disconnects: int = 0
    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0


class LinkOwner(Protocol):
    """Who is told what becomes of a connection."""

    def link_up(self, link: ReplicaLink) -> None:
        """The handshake is done: leases may be sent."""

    def link_down(self, link: ReplicaLink, reason: str) -> None:
        """A connection that was up has ended."""

    def link_leaving(self, link: ReplicaLink) -> None:
        """The replica has announced that it goes: it takes no new lease."""

    def received(self, replica_id: str, frame: Frame) -> None:
        """A frame has come. Raises FrameError if the connection must be closed."""


class ReplicaLink(asyncio.Protocol):
    """One connection to one replica."""

    def __init__(
        self,
        replica_id: str,
        handshake: GatewayHandshake,
        owner: LinkOwner,
        counts: LinkCounts,
        *,
        speaks: bool,  # the replica sends something every second, as those that generate do
    ) -> None:
        self.replica_id = replica_id
        # Resolves to the reason when the connection has ended.
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._owner = owner
        self._counts = counts
        self._speaks = speaks
        self._reader = FrameReader(_HANDSHAKE_KINDS)
        self._stall = StallWatch(self._reader)
        self._transport: asyncio.Transport | None = None
        self._up = False
        self._reason = ""
        self._heard_at = monotonic()
        self._taken_bytes = self._credited_bytes = 0  # of streams, ever

    # ---- what the channel calls ---------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the channel that a connection that is up speaks."""
        return self._handshake.version

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        """Send a frame over a connection that is up. Raises FrameError for too large a body."""
        assert self._transport is not None
        parts = framed(kind, lease_id, body)
        self._counts.sent_frames += 1
        self._counts.sent_bytes += sum([len(part) for part in parts])
        self._transport.writelines(parts)

    def close(self, reason: str) -> None:
        """End the connection at once; frames on their way are lost. The first reason counts."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """End the connection if a frame stays incomplete or the other side is silent or dead; to be
        called every second."""
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
        """Take in one frame, of the handshake or after it. Raises FrameError or Refused."""
        if self._up:
            if frame.kind is Kind.GOAWAY:
                self._owner.link_leaving(self)
                self.send(Kind.GOAWAY, 0)  # tells the replica that no lease is on its way any more
                return
            self._owner.received(self.replica_id, frame)
            if frame.kind is Kind.STEPS:
                self._grant_credit(len(frame.body))
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

    def _grant_credit(self, size: int) -> None:
        """Count `size` bytes of streams as taken in, and tell the replica the total once it has
        grown by `CREDIT_EVERY_BYTES`."""
        self._taken_bytes += size
        if self._taken_bytes - self._credited_bytes >= CREDIT_EVERY_BYTES:
            self._credited_bytes = self._taken_bytes
            self.send(Kind.CREDIT, self._taken_bytes)
