"""A replica that generates, without Ray: runs requests one by one, tells each gateway what came.

Every request that began ends with a piece that says how, once the engine has freed what it held; a
gateway's stream that ends aborts all that runs for it. What is told goes out as soon as the loop
has handed on an engine step's outputs, and merged where the gateway reads slowly. An abort may come
before its request does, and is kept for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from deployments.contract.wire import GenerateCall, StepMessage, StreamEnd
from deployments.replica.outbox import Outbox
from runtimes.errors import RuntimeFault, Unhealthy
from runtimes.types import Ask, Chunk, EngineLoad, StreamRuntime

SIGN_OF_LIFE_S = 1.0
_SETTLED_S, _LOOKS = 0.1, 10  # an engine's account shows what ended a step later
MOST_CHUNK_BYTES = 64 << 20  # a message carries them all, and gRPC breaks the stream at 256 MiB
_ARRIVES_S = 1.0  # how much later a request may come than its abort
logger = logging.getLogger("headrace.replica")


@dataclass(slots=True)
class _Run:
    """A request that has begun. `end`: how it would have ended, were its task cancelled now."""

    call: GenerateCall
    began: float
    task: asyncio.Task[None] | None = None
    last: Chunk | None = None
    end: StreamEnd = StreamEnd.ABORTED


class _Stream:
    """One gateway's: its outbox, its requests by lease, aborts of such as have not come."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.running: dict[int, _Run] = {}
        self.aborted: set[int] = set()
        self.seen = 0
        self.open = True

    def close(self) -> None:
        self.open = False
        self.outbox.wake()
        for run in self.running.values():
            if run.task is not None:
                run.task.cancel()


class StreamCore:
    """`room`: requests that it takes at once; further ones are answered busy."""

    def __init__(self, runtime: StreamRuntime, room: int) -> None:
        self._runtime = runtime
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._inflight = 0
        self._load = EngineLoad()

    @property
    def inflight(self) -> int:
        """Requests that run, those included that are being aborted."""
        return self._inflight

    def begin(self, call: GenerateCall) -> bool:
        """False: the gateway has no stream open here, nothing was begun."""
        stream = self._streams.get(call.gateway)
        if stream is None:
            return False
        stream.seen = max(stream.seen, call.lease_id)
        if call.lease_id in stream.aborted:
            stream.aborted.discard(call.lease_id)
            stream.outbox.end(call.lease_id, StreamEnd.ABORTED, None, 0.0)
        elif self.inflight >= self._room:
            stream.outbox.end(call.lease_id, StreamEnd.BUSY, None, 0.0)
        else:
            self._start(stream, _Run(call, time.perf_counter()))
        return True

    def abort(self, gateway: str, lease_id: int) -> bool:
        """Whether it ran. Its last piece follows when the engine has let go of it."""
        stream = self._streams.get(gateway)
        if stream is None:
            return False
        run = stream.running.get(lease_id)
        if run is not None and run.task is not None:
            run.task.cancel()
            return True
        stream.aborted.add(lease_id)
        self._loop.call_later(_ARRIVES_S, stream.aborted.discard, lease_id)
        return False

    async def messages(self, gateway: str) -> AsyncGenerator[StepMessage, None]:
        """The gateway's stream: at once an empty message, then whatever comes, then a sign of life
        a second, and soon after requests ended; ends when a newer stream takes its place. Closing
        it aborts the gateway's requests."""
        stream = _Stream()
        older = self._streams.get(gateway)
        self._streams[gateway] = stream
        if older is not None:
            older.close()
        try:
            yield await self._message(stream)
            looks, steps = 0, 0  # how often to look soon for a step after that in which some ended
            while stream.open:
                await stream.outbox.wait(_SETTLED_S if looks else SIGN_OF_LIFE_S)
                if not stream.open:
                    return
                message = await self._message(stream)
                if any(piece.end is not None for piece in message.pieces):
                    looks, steps = _LOOKS, message.load.steps
                else:
                    looks = max(looks - 1, 0) if message.load.steps == steps else 0
                yield message
                del message  # it may be large, and the next one may be long in coming
        finally:
            if self._streams.get(gateway) is stream:
                del self._streams[gateway]
            stream.close()

    async def health(self) -> EngineLoad:
        """Raises `Unhealthy` where the engine will not recover."""
        self._load = await self._runtime.health()
        return self._load

    async def close(self) -> None:
        """Aborts all that runs and waits until the engine has let go of it."""
        for stream in self._streams.values():
            stream.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _message(self, stream: _Stream) -> StepMessage:
        try:
            load = await self.health()
        except Unhealthy:
            load = self._load  # the health check replaces the replica; what came is handed on
        pieces = stream.outbox.take()
        return StepMessage(pieces, len(stream.running), stream.seen, self.inflight, load)

    def _start(self, stream: _Stream, run: _Run) -> None:
        task = self._loop.create_task(self._serve(stream, run))
        run.task = task
        self._inflight += 1
        stream.running[run.call.lease_id] = run
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never runs a line of its own.
        task.add_done_callback(lambda _: self._finish(stream, run))

    async def _serve(self, stream: _Stream, run: _Run) -> None:
        call = run.call
        ask = Ask(self._name(call), call.endpoint, call.body, call.priority)
        try:
            async with asyncio.timeout(call.budget_s), aclosing(self._runtime.run(ask)) as chunks:
                async for chunk in chunks:
                    if len(chunk.data) > MOST_CHUNK_BYTES:
                        chunk = _too_large(chunk)
                    run.last = chunk
                    stream.outbox.put(call.lease_id, chunk, time.perf_counter() - run.began)
            run.end = StreamEnd.DONE
        except TimeoutError:
            pass  # aborted: nobody waits for it any longer
        except RuntimeFault as fault:
            run.end = StreamEnd.FAILED
            logger.error("the engine failed on a request", extra={"reason": str(fault)})
        except Exception:
            run.end = StreamEnd.FAILED
            logger.exception("a request failed", extra={"request": ask.request_id})
        finally:
            self._finish(stream, run)

    def _name(self, call: GenerateCall) -> str:
        return f"{call.gateway}-{call.lease_id}-{next(self._numbers)}"

    def _finish(self, stream: _Stream, run: _Run) -> None:
        """Idempotent."""
        if stream.running.pop(run.call.lease_id, None) is not None:
            self._inflight -= 1
            stream.outbox.end(run.call.lease_id, run.end, run.last, time.perf_counter() - run.began)


def _too_large(chunk: Chunk) -> Chunk:
    """In the place of an answer that would break the stream it comes on, for all on it."""
    error = {
        "message": f"the answer has {len(chunk.data)} bytes, {MOST_CHUNK_BYTES} is the limit: ask "
        "for fewer log-probabilities or fewer prompts at once, or stream it",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    return replace(chunk, data=json.dumps({"error": error}).encode(), status=400)


async def watch_stalls(
    core: StreamCore, limit_s: float, on_stall: Callable[[], None], every_s: float
) -> None:
    """Runs beside the core until cancelled: calls `on_stall` when requests run and the engine has
    made no step for `limit_s`."""
    steps, since = -1, time.perf_counter()
    while True:
        await asyncio.sleep(every_s)
        try:
            load = await core.health()
        except Unhealthy:
            continue  # the health check's business
        now = time.perf_counter()
        if load.steps != steps or not core.inflight:
            steps, since = load.steps, now
        elif now - since > limit_s:
            on_stall()
