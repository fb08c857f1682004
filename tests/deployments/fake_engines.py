"""Replicas that generate, played by a test: who was asked for what, and what each says and when.

`Engines` is a gateway's way to them. Streams open at once unless the replica is `dead`; a request
that is begun waits until the test brings pieces of its answer. An abort is answered by the
request's last piece, as a real replica does, unless `deaf`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from deployments.contract.wire import GenerateCall, Piece, StepMessage, StreamEnd
from deployments.gateway.queues.transport import ReplicaDied, Unreached
from runtimes.types import EngineLoad


@dataclass
class Engine:
    """`said`: messages on their way; None breaks the stream. `calls`: what runs, by lease."""

    said: asyncio.Queue[StepMessage | None] = field(default_factory=asyncio.Queue)
    calls: dict[int, GenerateCall] = field(default_factory=dict)
    seen: int = 0
    streams: int = 0


class Engines:
    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.begun: list[tuple[str, GenerateCall]] = []
        self.aborted: list[tuple[str, int]] = []
        self.abort_calls = 0
        self.dead: set[str] = set()
        self.deaf: set[str] = set()
        self.refusal: Exception | None = None
        self.load = EngineLoad()

    def engine(self, replica_id: str) -> Engine:
        return self.engines.setdefault(replica_id, Engine())

    # ---- what the gateway asks (`StreamTransport`) --------------------------------------------

    def forget(self, running: set[str]) -> None:
        pass

    async def seed(self, timeout_s: float) -> None:
        pass

    async def begin(self, replica_id: str, call: GenerateCall) -> None:
        engine = self.engine(replica_id)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if replica_id in self.dead:
            raise ReplicaDied(replica_id)
        if not engine.streams:
            raise Unreached(replica_id)
        engine.calls[call.lease_id] = call
        engine.seen = max(engine.seen, call.lease_id)
        self.begun.append((replica_id, call))

    async def abort(self, replica_id: str, lease_ids: list[int]) -> None:
        self.abort_calls += 1
        for lease_id in lease_ids:
            self.aborted.append((replica_id, lease_id))
            if replica_id not in self.deaf and lease_id in self.engine(replica_id).calls:
                self.say(lease_id, end=StreamEnd.ABORTED)

    async def messages(self, replica_id: str) -> AsyncIterator[StepMessage]:
        if replica_id in self.dead:
            raise ReplicaDied(replica_id)
        engine = self.engine(replica_id)
        engine.said = asyncio.Queue()
        engine.streams += 1
        try:
            yield self._message(engine)
            while (message := await engine.said.get()) is not None:
                yield message
            raise ReplicaDied(replica_id)
        finally:
            engine.streams -= 1
            engine.calls.clear()

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
        engine = self.engines[replica_id]
        if end is not None:
            del engine.calls[lease_id]
        piece = Piece(lease_id, data, *tokens, tokens[0] + tokens[2], 0.01, status, end)
        engine.said.put_nowait(self._message(engine, piece))

    def _message(self, engine: Engine, *pieces: Piece) -> StepMessage:
        held = len(engine.calls)
        return StepMessage(pieces, held, engine.seen, held, self.load)

    def kill(self, replica_id: str) -> None:
        self.dead.add(replica_id)
        self.engine(replica_id).said.put_nowait(None)

    async def until_begun(self, count: int) -> tuple[str, GenerateCall]:
        """The latest call, once so many were begun in all."""
        await until(lambda: len(self.begun) >= count)
        return self.begun[count - 1]

    async def until_aborted(self, count: int) -> None:
        await until(lambda: len(self.aborted) >= count)

    @property
    def running(self) -> int:
        return sum(len(engine.calls) for engine in self.engines.values())


async def until(holds: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Looks again at every turn of the loop."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0)
