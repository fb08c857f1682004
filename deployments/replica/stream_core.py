"""A replica that generates, without Ray: runs requests, and tells each gateway what they produce.

Every request that began ends with a piece that says how it ended, once the engine has freed what
the request held. The exception is an engine that dies: gateways are sent what had come before, and
that the replica is lost, rather than failed requests; then the process ends. When a gateway's
connection ends, all its requests are aborted. Output is sent as soon as the loop has passed on an
engine step's outputs. For a gateway that reads slowly, a request's data are joined and only its
newest counts kept: no gateway holds up the engine, and what it leaves unread grows by its answers'
bytes only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from deployments.contract.channel.frames import STALLED_S, Frame, Kind, MessageError
from deployments.contract.channel.stream_messages import (
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_generate,
    encode_steps,
    unpacked,
)
from deployments.replica.block_index import BlockIndex
from deployments.replica.channel_server import GatewayConnection
from deployments.replica.told_blocks import ToldBlocks
from routers.api.requests import NO_TOKENS, Tokens
from routers.stream.staging import StagedStream, StreamStaging, worth_s
from runtimes.errors import RuntimeFault, Unhealthy
from runtimes.types import Chunk, DeviceMemory, EngineLoad, StreamRequest, StreamRuntime

MAX_MESSAGE_BYTES = 1 << 20  # a message's last piece may exceed it
_NOTHING = Chunk(b"", 0, 0, 0, 0)


@dataclass(slots=True)
class _PendingPiece:
    last: Chunk
    data: list[bytes] = field(default_factory=list)
    service_s: float = 0.0
    end: StreamEnd | None = None


class Outbox:
    """The pieces for one gateway's next message."""

    def __init__(self) -> None:
        self._gathered: dict[int, _PendingPiece] = {}
        self._wake = asyncio.Event()

    @property
    def filled(self) -> bool:
        return bool(self._gathered)

    @property
    def ends(self) -> int:
        """Number of requests whose end has not been taken yet."""
        return sum(entry.end is not None for entry in self._gathered.values())

    def put(self, lease_id: int, chunk: Chunk, service_s: float) -> None:
        """Add what a request has produced."""
        entry = self._entry(lease_id)
        entry.last = chunk
        entry.service_s = service_s
        if chunk.data:
            entry.data.append(chunk.data)

    def end(self, lease_id: int, end: StreamEnd, last: Chunk | None, service_s: float) -> None:
        """A request has ended. `last`: its newest chunk, whose counts still hold; None if there was
        none."""
        entry = self._entry(lease_id)
        entry.last = last or _NOTHING
        entry.service_s = service_s
        entry.end = end

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, limit_s: float) -> None:
        """Return when there is something to take, or after `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._wake.wait()

    def take(self) -> tuple[Piece, ...]:
        """Take the pieces, in the order in which their requests first had something. What does not
        fit into one message is left for the next."""
        self._wake.clear()
        gathered, self._gathered = self._gathered, {}
        pieces: list[Piece] = []
        size = 0
        for lease_id, entry in gathered.items():
            if size < MAX_MESSAGE_BYTES:
                pieces.append(_piece(lease_id, entry))
                size += len(pieces[-1].data)
            else:
                self._gathered[lease_id] = entry
                self._wake.set()
        return tuple(pieces)

    def _entry(self, lease_id: int) -> _PendingPiece:
        self._wake.set()
        entry = self._gathered.get(lease_id)
        if entry is None:
            entry = self._gathered[lease_id] = _PendingPiece(_NOTHING)
        return entry


def _piece(lease_id: int, entry: _PendingPiece) -> Piece:
    last = entry.last
    return Piece(
        lease_id, b"".join(entry.data), last.input_tokens, last.cached_tokens, last.output_tokens,
        last.held_tokens, entry.service_s, last.status, entry.end,
    )  # fmt: skip


SIGN_OF_LIFE_S = 1.0
ENDS_S = 0.5  # that gateways have to take in that the replica is lost, before its process ends
NEW_KINDS_SINCE = 4  # the version of the channel that brought `Kind.ENDED` and `Kind.BLOCKS`
_SETTLED_S, _LOOKS = 0.1, 10  # the engine's load shows only a step later that a request has ended
MAX_CHUNK_BYTES = 32 << 20  # gateways refuse what may have more than half; they hold it thrice
logger = logging.getLogger("headrace.replica")


@dataclass(slots=True)
class _StreamRun:
    """A request that has come."""

    lease_id: int
    call: GenerateCall
    turn: StagedStream  # its place among the requests of all gateways
    begins: asyncio.Event  # set when its turn has come
    began: float = 0.0
    task: asyncio.Task[None] | None = None
    last: Chunk | None = None
    end: StreamEnd = StreamEnd.ABORTED  # how it would end if its task were cancelled now

    def cancel(self) -> None:
        """Cancel its task, once: a second time would disturb the engine while it lets go."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def service_s(self) -> float:
        """Seconds since the engine got it."""
        return time.perf_counter() - self.began if self.begins.is_set() else 0.0

    def worth_s(self) -> float | None:
        """What it was given, in seconds at its gateway's price for tokens; None without a price:
        see `routers.stream.staging.worth_s`."""
        last, given = self.last, NO_TOKENS
        if last is not None:
            given = Tokens(last.input_tokens, last.cached_tokens, last.output_tokens)
        return worth_s(given, self.call.input_s, self.call.output_s)


class _GatewayStream:
    """One gateway's outbox and its requests by lease. `pump`: the task that empties the outbox."""

    def __init__(self, link: GatewayConnection, blocks: BlockIndex) -> None:
        self.link = link
        self.outbox = Outbox()
        # None: of a version that cannot be told.
        knows = link.version >= NEW_KINDS_SINCE
        self.blocks = ToldBlocks(blocks, self.outbox.wake) if knows else None
        self.running: dict[int, _StreamRun] = {}
        self.seen = 0
        self.open = True
        self.pump: asyncio.Task[None] | None = None

    def abort(self) -> None:
        for run in self.running.values():
            run.cancel()

    def close(self) -> None:
        """Close after what is in the outbox has been sent."""
        self.open = False
        if self.blocks is not None:
            self.blocks.close()
        self.outbox.wake()


class StreamCore:
    """A `LeaseCore` for requests to generate.

    `room`: requests of one gateway that it takes; more are answered busy. `at_once`: requests of
    all gateways that the engine is given at once, those that wait for an adapter not counted; 0:
    `room`. `on_death` ends the process, given the
    reason. It is called once, when all gateways have heard that the replica is lost, or after
    `ENDS_S`; they hear of nothing that failed because of it.
    `blocks`: what the runtime tells of its cache; None: nothing.
    """

    def __init__(
        self,
        runtime: StreamRuntime,
        room: int,
        at_once: int = 0,
        *,
        on_death: Callable[[str], None],
        blocks: BlockIndex | None = None,
    ) -> None:
        self._runtime = runtime
        self._blocks = BlockIndex() if blocks is None else blocks
        self._on_death = on_death
        self._room = room
        self._at_once = at_once or room
        self._turns = StreamStaging(self._at_once)
        self._by_turn: dict[StagedStream, tuple[_GatewayStream, _StreamRun]] = {}
        self._loop = asyncio.get_running_loop()
        self._streams: dict[GatewayConnection, _GatewayStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._inflight = 0
        self._leaving = self._closed = False
        self._lost = ""  # why the engine is; "": it is not
        self._ending: asyncio.Handle | None = None  # ends the process, once gateways are told
        self._load = EngineLoad()
        self.device_memory: DeviceMemory | None = None  # told by whoever looks at it
        self._read = self._written = 0  # as in `StepMessage`

    @property
    def inflight(self) -> int:
        """Number of requests here, including those that are being aborted."""
        return self._inflight

    @property
    def begun(self) -> int:
        """Number of requests that the engine was given and has not let go."""
        return sum(run.begins.is_set() for _, run in self._by_turn.values())

    @property
    def unread_s(self) -> float | None:
        """Predicted seconds for the prompts that the engine has and has given no token of, their
        answers included; None if one's gateway knows no price, as with a copy."""
        runs = (run for _, run in self._by_turn.values())
        unread = [run.call for run in runs if run.begins.is_set() and run.last is None]
        if not all(call.input_s and call.charges for call in unread):
            return None
        return sum(seconds for call in unread for _, _, seconds in call.charges)

    # ---- `LeaseCore` --------------------------------------------------------------------------

    def joined(self, link: GatewayConnection) -> None:
        if self._lost:
            self._tell_lost(link)
            return
        stream = self._streams[link] = _GatewayStream(link, self._blocks)
        stream.pump = self._loop.create_task(self._send_messages(stream))

    def left(self, link: GatewayConnection) -> None:
        """Abort the gateway's requests."""
        stream = self._streams.pop(link, None)
        if stream is not None:
            stream.abort()
            stream.close()
        if self._ending is not None and not self._streams:
            self._ending.cancel()
            self._ending = self._loop.call_soon(self._end_process)

    def received(self, link: GatewayConnection, frame: Frame) -> None:
        if self._lost:
            return  # its gateway counts it as lost
        stream = self._streams[link]
        if frame.kind is Kind.BEGIN:
            self._begin(stream, frame.lease_id, decode_generate(frame.body))
        elif frame.kind is Kind.ABORT:
            run = stream.running.get(frame.lease_id)
            if run is not None:
                run.cancel()  # its last piece follows when the engine has freed what it held
        elif frame.kind is Kind.BLOCKS and stream.blocks is not None:
            stream.blocks.begins_anew()
        else:
            raise MessageError(f"{frame.kind.name} to a replica that generates")

    def leave(self) -> None:
        self._leaving = True

    async def until_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._until_sent()

    # ---- requests -----------------------------------------------------------------------------

    def _begin(self, stream: _GatewayStream, lease_id: int, call: GenerateCall) -> None:
        if lease_id in stream.running:
            raise MessageError(f"lease {lease_id} is here already")
        stream.seen = max(stream.seen, lease_id)
        if self._leaving or len(stream.running) >= self._room:
            stream.outbox.end(lease_id, StreamEnd.BUSY, None, 0.0)
        else:
            turn = StagedStream(stream.link.gateway, call.rank, call.charges)
            self._start(stream, _StreamRun(lease_id, call, turn, asyncio.Event()))

    async def _send_messages(self, stream: _GatewayStream) -> None:
        """Send messages until the stream is closed and all has been sent: whenever there is output,
        else once a second as a sign of life, and sooner after requests have ended."""
        looks, steps = 0, 0  # early messages still to send until the engine's load shows the end
        while stream.open or stream.outbox.filled:
            await stream.link.room()
            message = await self._message(stream)
            if self._lost:
                return
            if any(piece.end is not None for piece in message.pieces):
                looks, steps = _LOOKS, message.load.steps
            else:
                looks = max(looks - 1, 0) if message.load.steps == steps else 0
            stream.link.send(Kind.STEPS, 0, encode_steps(message, stream.link.version))
            del message  # it may be large, and the next one may be long in coming
            if stream.open:
                soon = looks or self._waits_beside_adapters
                await stream.outbox.wait(_SETTLED_S if soon else SIGN_OF_LIFE_S)

    async def health(self) -> EngineLoad:
        """The engine's load. Raises `Unhealthy` if the engine will not recover."""
        try:
            self._load = await self._runtime.health()
        except Unhealthy as fault:
            self.end(str(fault))
            raise
        adapters = self._load.adapters
        if adapters is not None and not self._lost:
            for turn in self._turns.allow(self._at_once + adapters.waiting):
                self._give_to_engine(turn)
        return self._load

    @property
    def _waits_beside_adapters(self) -> bool:
        """Whether a request waits for its turn, which it has as soon as the engine says that
        another one waits for an adapter."""
        return self._load.adapters is not None and self._turns.waits

    # ---- an engine that is lost ---------------------------------------------------------------

    def end(self, reason: str) -> None:
        """The engine is lost: tell gateways so behind what had come of their requests, then end the
        process. Nothing begins or ends here from now on. No effect a second time, while closing, or
        when leaving with nothing under way: then no request is lost, and the process ends
        anyway."""
        if self._lost or self._closed or (self._leaving and not self._inflight):
            return
        self._lost = f"{reason}, and {self._inflight} requests with it"
        for stream in self._streams.values():
            stream.link.send(Kind.GOAWAY, 0)  # nothing new is sent here in the place of what ended
            while stream.outbox.filled:
                message = self._steps_of(stream)
                stream.link.send(Kind.STEPS, 0, encode_steps(message, stream.link.version))
            self._tell_lost(stream.link)
            stream.close()
        self._ending = self._loop.call_later(ENDS_S if self._streams else 0.0, self._end_process)

    def _tell_lost(self, link: GatewayConnection) -> None:
        """An older gateway hears it when the connection ends."""
        if link.version >= NEW_KINDS_SINCE:
            link.send(Kind.ENDED, 0, [self._lost.encode("utf-8", "replace")])

    def _end_process(self) -> None:
        self._ending = None
        self._on_death(self._lost)

    async def close(self) -> None:
        """Abort everything; return when the engine has freed it and gateways have been told."""
        self._closed = True
        for stream in self._streams.values():
            stream.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._until_sent()

    async def _until_sent(self) -> None:
        """Wait until outboxes are empty. A gateway that does not read is not waited for
        for ever."""
        for stream in self._streams.values():
            stream.close()
        pumps = [stream.pump for stream in self._streams.values() if stream.pump is not None]
        if pumps:
            _, stuck = await asyncio.wait(pumps, timeout=STALLED_S)
            for pump in stuck:
                pump.cancel()

    async def _message(self, stream: _GatewayStream) -> StepMessage:
        try:
            await self.health()
        except Unhealthy:
            pass  # while closing: what has come is still sent
        except Exception:
            logger.exception("the engine's own account cannot be had")
        return self._steps_of(stream)

    def _steps_of(self, stream: _GatewayStream) -> StepMessage:
        """With the engine's load as it was last known."""
        load, pieces, shares = self._load, stream.outbox.take(), None
        gateway, now = stream.link.gateway, time.perf_counter()
        ends = any(piece.end is not None for piece in pieces)
        if ends or self._turns.has_news(gateway, now):
            shares = SharesMessage(*self._turns.report(gateway, now))
        held = len(stream.running) + stream.outbox.ends
        blocks = stream.blocks.take(now, ends=ends) if stream.blocks is not None else None
        return StepMessage(
            pieces, held, stream.seen, self.inflight, load, shares, self._read, self._written,
            self.device_memory, blocks,
        )  # fmt: skip

    def _start(self, stream: _GatewayStream, run: _StreamRun) -> None:
        task = self._loop.create_task(self._serve(stream, run))
        run.task = task
        self._inflight += 1
        stream.running[run.lease_id] = run
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never runs its own `finally`.
        task.add_done_callback(lambda _: self._finish(stream, run))
        self._by_turn[run.turn] = stream, run
        self._give_to_engine(self._turns.arrive(run.turn, run.call.waiting, time.perf_counter()))
        if self._waits_beside_adapters:
            stream.outbox.wake()

    def _give_to_engine(self, turn: StagedStream | None) -> None:
        """Give this request to the engine now."""
        if turn is not None:
            stream, run = self._by_turn[turn]
            run.began = time.perf_counter()
            run.begins.set()
            stream.link.send(Kind.STARTED, run.lease_id)

    async def _serve(self, stream: _GatewayStream, run: _StreamRun) -> None:
        call = run.call
        name = f"{stream.link.gateway}-{run.lease_id}-{next(self._numbers)}"
        request = StreamRequest(
            name, call.endpoint, call.body, call.priority, call.salt, unpacked(call.hashes),
            call.hashed_tokens,
        )  # fmt: skip
        try:
            async with asyncio.timeout(call.budget_s):
                await run.begins.wait()
                async with aclosing(self._runtime.run(request)) as chunks:
                    async for chunk in chunks:
                        if len(chunk.data) > MAX_CHUNK_BYTES:
                            chunk = _too_large(chunk)
                        self._count(run, chunk)
                        stream.outbox.put(run.lease_id, chunk, run.service_s())
            run.end = StreamEnd.DONE
        except TimeoutError:
            pass  # aborted: no caller waits for it any longer
        except Unhealthy as fault:
            run.end = StreamEnd.FAILED
            self.end(str(fault))
        except RuntimeFault as fault:
            run.end = StreamEnd.FAILED
            logger.error("the engine failed on a request", extra={"reason": str(fault)})
        except Exception:
            run.end = StreamEnd.FAILED
            logger.exception("a request failed", extra={"request": request.request_id})
        finally:
            self._finish(stream, run)

    def _count(self, run: _StreamRun, chunk: Chunk) -> None:
        """Count its tokens. A chunk's counts are totals, so the last chunk's are taken off."""
        before, run.last = run.last, chunk
        self._read += max(0, chunk.input_tokens - chunk.cached_tokens)
        self._written += chunk.output_tokens
        if before is not None:
            self._read -= max(0, before.input_tokens - before.cached_tokens)
            self._written -= before.output_tokens

    def _finish(self, stream: _GatewayStream, run: _StreamRun) -> None:
        """Remove the request, and let the next one begin. Idempotent."""
        if stream.running.pop(run.lease_id, None) is not None:
            self._inflight -= 1
            del self._by_turn[run.turn]
            if self._lost:
                return
            self._give_to_engine(self._turns.end(run.turn, run.worth_s()))
            stream.outbox.end(run.lease_id, run.end, run.last, run.service_s())


def _too_large(chunk: Chunk) -> Chunk:
    """An error in place of an answer that would break the stream for all requests on it."""
    error = {
        "message": f"the answer has {len(chunk.data)} bytes, {MAX_CHUNK_BYTES} is the limit: ask "
        "for fewer log-probabilities or fewer prompts at once, or stream it",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    return replace(chunk, data=json.dumps({"error": error}).encode(), status=400)
