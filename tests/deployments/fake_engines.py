"""Replicas that generate, played by a test: who was asked for what, and what each says and when.

`Engines` is a gateway's channel to them, without sockets but through the bytes that would travel. A
replica is connected a turn of the loop after it was listed, unless it is `dead`; a request that is
begun waits until the test brings pieces of its answer. An abort is answered by the request's last
piece, as a real replica does, unless `deaf`. One whose engine dies says so and is gone (`die`); one
that is killed says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from local_frames import soon, to_gateway, to_replica

from deployments.contract.channel.frames import Buffer, Frame, FrameError, Kind
from deployments.contract.channel.stream_messages import (
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_generate,
    encode_steps,
)
from deployments.contract.codec import WIRE
from deployments.gateway.queues.connections import ChannelListener, LinkCounts
from deployments.process.replica_directory import RunningReplica
from runtimes.types import EngineLoad


class Refusal(Enum):
    """How a request fails to arrive."""

    UNREACHED = "there is no connection"
    FAULT = "the replica cannot read it"
    BREAK = "the connection breaks"


class Asked(NamedTuple):
    """A request that a replica was asked to run."""

    replica_id: str
    lease_id: int
    call: GenerateCall


@dataclass
class Engine:
    """`connected`: a connection stands. `calls`: what runs, by lease."""

    connected: bool = False
    calls: dict[int, GenerateCall] = field(default_factory=dict)
    seen: int = 0


class Engines:
    """`refusal`: what becomes of the next request. `others`: requests of other gateways that each
    replica says it has."""

    listener: ChannelListener

    def __init__(self) -> None:
        self.counts = LinkCounts()
        self.engines: dict[str, Engine] = {}
        self.begun: list[Asked] = []
        self.aborted: list[tuple[str, int]] = []
        self.dead: set[str] = set()
        self.deaf: set[str] = set()
        self.full: set[str] = set()  # whose engines begin nothing new
        self.leaving: set[str] = set()
        self.refusal: Refusal | None = None
        self.load = EngineLoad()
        self.others = 0
        self._listed: list[str] = []

    def engine(self, replica_id: str) -> Engine:
        return self.engines.setdefault(replica_id, Engine())

    # ---- what the gateway asks (`ReplicaChannel`) ---------------------------------------------

    async def seed(self, timeout_s: float) -> None:
        pass

    @property
    def reached(self) -> list[str]:
        known = self.engines.keys() - self.leaving
        return [uid for uid in self._listed if self.engine(uid).connected and uid in known]

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self._listed = [replica.replica_id for replica in listed]
        for replica_id in self._listed:
            if not self.engine(replica_id).connected:
                soon(self._connect, replica_id)

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        engine = self.engine(replica_id)
        if kind is Kind.ABORT:
            self._abort(replica_id, lease_id)
            return engine.connected
        assert kind is Kind.BEGIN
        call = decode_generate(to_replica(kind, lease_id, body).body)
        refusal, self.refusal = self.refusal, None
        if not engine.connected or refusal is Refusal.UNREACHED:
            return False
        if refusal is Refusal.FAULT:
            self._say(replica_id, Kind.FAULT, lease_id, b"it cannot be read")
        elif refusal is Refusal.BREAK:
            self.disconnect(replica_id)
        else:
            engine.calls[lease_id] = call
            engine.seen = max(engine.seen, lease_id)
            self.begun.append(Asked(replica_id, lease_id, call))
            if replica_id not in self.full:
                self._say(replica_id, Kind.STARTED, lease_id)
        return True

    def version(self, replica_id: str) -> int:
        return WIRE

    def release(self, replica_id: str) -> None:
        if replica_id not in self._listed:
            self._forget(replica_id)

    def close(self) -> None:
        self._listed = []
        for replica_id in self.engines:
            self._forget(replica_id)

    # ---- what the test makes them do ----------------------------------------------------------

    def say(
        self,
        lease_id: int,
        data: bytes = b"",
        *,
        tokens: tuple[int, int, int] = (0, 0, 0),
        status: int = 200,
        end: StreamEnd | None = None,
    ) -> None:
        """A piece of one request's answer; `tokens`: in, cached, out so far."""
        replica_id = next(r for r, e in self.engines.items() if lease_id in e.calls)
        piece = Piece(lease_id, data, *tokens, tokens[0] + tokens[2], 0.01, status, end)
        self.tell(replica_id, piece)

    def tell(self, replica_id: str, *pieces: Piece, shares: SharesMessage | None = None) -> None:
        """One message, of these pieces."""
        engine = self.engine(replica_id)
        for piece in pieces:
            if piece.end is not None:
                del engine.calls[piece.lease_id]
        held = len(engine.calls)
        inflight = held + self.others
        message = StepMessage(pieces, held, engine.seen, inflight, self.load, shares)
        self._say(replica_id, Kind.STEPS, 0, *encode_steps(message))

    def garble(self, replica_id: str) -> None:
        """A message that nobody can read."""
        self._say(replica_id, Kind.STEPS, 0, b"\xc1")

    def disconnect(self, replica_id: str) -> None:
        """The connection breaks, behind what was said; it is opened again unless the replica is
        dead."""
        soon(self._break, replica_id)

    def die(self, replica_id: str, reason: str = "the engine died") -> None:
        """The replica says that its engine is lost, behind what it said before, and is gone."""
        self.dead.add(replica_id)
        soon(self._say_goodbye, replica_id)
        self._say(replica_id, Kind.ENDED, 0, reason.encode())

    def kill(self, replica_id: str) -> None:
        self.dead.add(replica_id)
        self.disconnect(replica_id)

    def revive(self, replica_id: str) -> None:
        self.dead.discard(replica_id)
        soon(self._connect, replica_id)

    async def until_begun(self, count: int) -> Asked:
        """The latest request, once so many were begun in all."""
        await until(lambda: len(self.begun) >= count)
        return self.begun[count - 1]

    async def until_aborted(self, count: int) -> None:
        await until(lambda: len(self.aborted) >= count)

    @property
    def running(self) -> int:
        return sum(len(engine.calls) for engine in self.engines.values())

    # ---- connections --------------------------------------------------------------------------

    def _connect(self, replica_id: str) -> None:
        engine = self.engine(replica_id)
        if replica_id in self._listed and replica_id not in self.dead and not engine.connected:
            engine.connected = True
            self.listener.links_changed()
            self.tell(replica_id)

    def _break(self, replica_id: str) -> None:
        if self._forget(replica_id):
            self.listener.links_changed()
            self.listener.link_lost(replica_id, "it was cut")
            soon(self._connect, replica_id)

    def _say_goodbye(self, replica_id: str) -> None:
        self.leaving.add(replica_id)
        self.listener.links_changed()

    def _forget(self, replica_id: str) -> bool:
        """Whether it was connected; what ran there is aborted."""
        engine = self.engine(replica_id)
        was, engine.connected = engine.connected, False
        self.leaving.discard(replica_id)
        engine.calls.clear()
        return was

    def _abort(self, replica_id: str, lease_id: int) -> None:
        self.aborted.append((replica_id, lease_id))
        if replica_id not in self.deaf and lease_id in self.engine(replica_id).calls:
            self.say(lease_id, end=StreamEnd.ABORTED)

    def _say(self, replica_id: str, kind: Kind, lease_id: int, *body: Buffer) -> None:
        soon(self._arrives, replica_id, to_gateway(kind, lease_id, body))

    def _arrives(self, replica_id: str, frame: Frame) -> None:
        if self.engine(replica_id).connected:
            try:
                self.listener.received(replica_id, frame)
            except FrameError:
                self._break(replica_id)


async def until(holds: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Looks again at every turn of the loop."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0)
