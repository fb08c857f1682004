"""What each gateway hears of its requests, how they end, and what a stream's end does to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from deployments.contract.wire import GenerateCall, Piece, StepMessage, StreamEnd
from deployments.replica import stream_core
from deployments.replica.stream_core import StreamCore, watch_stalls
from runtimes.errors import RunError, Unhealthy
from runtimes.types import Ask, Chunk, EngineLoad, StreamLimits


class Told:
    """An engine that gives each request the chunks that the test tells it to."""

    def __init__(self) -> None:
        self.queues: dict[bytes, asyncio.Queue[Chunk | Exception | None]] = {}
        self.freed: list[bytes] = []
        self.asks: list[Ask] = []
        self.steps = 0
        self.ill = False

    def give(self, body: bytes, *texts: bytes, count: int = 1) -> None:
        self.steps += 1
        for text in texts:
            self.queues[body].put_nowait(Chunk(text, 3, 1, count, 16))

    def end(self, body: bytes, fault: Exception | None = None) -> None:
        self.queues[body].put_nowait(fault)

    async def run(self, ask: Ask) -> AsyncGenerator[Chunk, None]:
        self.asks.append(ask)
        queue = self.queues[ask.body] = asyncio.Queue()
        try:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            await asyncio.sleep(0)  # an engine takes a while to let go
            self.freed.append(ask.body)

    async def health(self) -> EngineLoad:
        if self.ill:
            raise Unhealthy("gone")
        return EngineLoad(running=len(self.queues) - len(self.freed), steps=self.steps)

    async def load(self) -> None: ...
    async def warm(self) -> None: ...
    async def close(self) -> None: ...
    def limits(self) -> StreamLimits:
        return StreamLimits(100, 1000, 4)


def call(lease_id: int, body: bytes = b"a", **more: Any) -> GenerateCall:
    fields: dict[str, Any] = {"gateway": "g", "endpoint": "completions", "budget_s": 30.0} | more
    return GenerateCall(lease_id=lease_id, body=body, **fields)


class Reader:
    """A gateway's side: reads its stream into a list, and can stop reading."""

    def __init__(self, core: StreamCore, gateway: str = "g") -> None:
        self.messages: list[StepMessage] = []
        self.task = asyncio.create_task(self._read(core, gateway))

    async def _read(self, core: StreamCore, gateway: str) -> None:
        async with aclosing(core.messages(gateway)) as messages:
            async for message in messages:
                self.messages.append(message)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for message in self.messages for piece in message.pieces]

    async def end_of(self, lease_id: int) -> Piece:
        async with asyncio.timeout(2):
            while True:
                for piece in self.pieces:
                    if piece.lease_id == lease_id and piece.end is not None:
                        return piece
                await asyncio.sleep(0)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def engine() -> Told:
    return Told()


@pytest.fixture
async def core(engine: Told) -> AsyncIterator[StreamCore]:
    core = StreamCore(engine, room=3)
    yield core
    await core.close()
    assert core.inflight == 0
    assert len(engine.freed) == len(engine.asks)


@pytest.fixture
async def reader(core: StreamCore) -> AsyncIterator[Reader]:
    reader = Reader(core)
    await turns()
    yield reader
    await reader.close()


async def test_a_stream_says_at_once_that_it_is_open(reader: Reader) -> None:
    (hello,) = reader.messages
    assert hello.pieces == ()
    assert (hello.held, hello.seen, hello.inflight) == (0, 0, 0)


async def test_without_a_stream_nothing_is_begun(core: StreamCore, engine: Told) -> None:
    assert not core.begin(call(1))
    await turns()
    assert engine.asks == []


async def test_what_comes_is_handed_on_and_the_last_piece_says_done(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    assert core.begin(call(7, priority=2))
    await turns()
    (ask,) = engine.asks
    assert (ask.endpoint, ask.body, ask.priority) == ("completions", b"a", 2)
    engine.give(b"a", b"one")
    await turns()
    engine.give(b"a", b"two", count=2)
    engine.end(b"a")
    last = await reader.end_of(7)
    assert reader.pieces[0].data == b"one"
    assert b"".join(p.data for p in reader.pieces) == b"onetwo"
    assert [p.end for p in reader.pieces if p.end] == [StreamEnd.DONE]
    assert (last.input_tokens, last.cached_tokens, last.output_tokens) == (3, 1, 2)
    assert reader.messages[-1].held == 0
    assert reader.messages[-1].seen == 7


async def test_a_step_of_many_requests_is_one_message(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    for lease_id, body in enumerate([b"a", b"b", b"c"], start=1):
        core.begin(call(lease_id, body))
    await turns()
    before = len(reader.messages)
    for body in (b"a", b"b", b"c"):
        engine.give(body, b"x")
    await turns()
    (message,) = reader.messages[before:]
    assert [p.lease_id for p in message.pieces] == [1, 2, 3]
    assert (message.held, message.inflight, message.seen) == (3, 3, 3)
    assert message.load.steps == 3


async def test_what_a_slow_gateway_leaves_is_merged(core: StreamCore, engine: Told) -> None:
    messages = core.messages("g")
    await anext(messages)
    core.begin(call(1))
    await turns()
    for count in range(1, 6):
        engine.give(b"a", b"%d" % count, count=count)
    engine.end(b"a")
    await turns()
    message = await anext(messages)
    (piece,) = message.pieces
    assert piece.data == b"12345"
    assert piece.output_tokens == 5
    assert piece.end is StreamEnd.DONE
    await messages.aclose()  # type: ignore[attr-defined]


async def test_more_than_there_is_room_for_are_answered_busy(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    for lease_id in range(1, 5):
        assert core.begin(call(lease_id, b"%d" % lease_id))
    assert (await reader.end_of(4)).end is StreamEnd.BUSY
    assert core.inflight == 3
    assert len(engine.asks) == 3
    engine.end(b"1")
    await reader.end_of(1)
    core.begin(call(5, b"5"))
    await turns()
    assert engine.asks[-1].body == b"5"


async def test_an_abort_frees_the_engine_before_it_is_told(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    core.begin(call(1))
    await turns()
    engine.give(b"a", b"x", count=4)
    await turns()
    assert core.abort("g", 1)
    last = await reader.end_of(1)
    assert last.end is StreamEnd.ABORTED
    assert last.output_tokens == 4
    assert engine.freed == [b"a"]
    assert not core.abort("g", 1)


async def test_an_abort_in_the_same_turn_as_the_begin_ends_it(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    core.begin(call(1))
    core.abort("g", 1)
    assert (await reader.end_of(1)).end is StreamEnd.ABORTED
    assert engine.asks == []
    assert core.inflight == 0


async def test_an_abort_that_overtakes_its_request_ends_it_on_arrival(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    assert not core.abort("g", 9)
    core.begin(call(9))
    assert (await reader.end_of(9)).end is StreamEnd.ABORTED
    assert engine.asks == []


async def test_what_nobody_awaits_any_longer_is_aborted(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    core.begin(call(1, budget_s=0.01))
    assert (await reader.end_of(1)).end is StreamEnd.ABORTED
    assert engine.freed == [b"a"]


@pytest.mark.parametrize("fault", [RunError("broken"), ValueError("a bug")])
async def test_a_fault_of_the_engine_fails_its_request_alone(
    core: StreamCore, engine: Told, reader: Reader, fault: Exception
) -> None:
    core.begin(call(1, b"a"))
    core.begin(call(2, b"b"))
    await turns()
    engine.end(b"a", fault)
    assert (await reader.end_of(1)).end is StreamEnd.FAILED
    engine.end(b"b")
    assert (await reader.end_of(2)).end is StreamEnd.DONE


async def test_a_closed_stream_aborts_what_ran_on_it(core: StreamCore, engine: Told) -> None:
    mine, other = Reader(core), Reader(core, "other")
    await turns()
    core.begin(call(1, b"a"))
    core.begin(call(1, b"b", gateway="other"))
    await turns()
    await mine.close()
    await turns()
    assert engine.freed == [b"a"]
    assert not core.begin(call(2))
    engine.end(b"b")
    assert (await other.end_of(1)).end is StreamEnd.DONE
    await other.close()


async def test_a_second_stream_of_a_gateway_takes_the_place_of_the_first(
    core: StreamCore, engine: Told
) -> None:
    first = Reader(core)
    await turns()
    core.begin(call(1, b"a"))
    await turns()
    second = Reader(core)
    await turns()
    assert first.task.done()
    assert engine.freed == [b"a"]
    core.begin(call(2, b"b"))
    await turns()
    engine.end(b"b")
    assert (await second.end_of(2)).end is StreamEnd.DONE
    assert [p.lease_id for p in second.pieces] == [2]
    await second.close()


async def test_an_idle_stream_gives_a_sign_of_life(
    core: StreamCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "SIGN_OF_LIFE_S", 0.005)
    reader = Reader(core)
    await asyncio.sleep(0.05)
    assert len(reader.messages) >= 3
    await reader.close()


async def told_until_one_ended(core: StreamCore, engine: Told, reader: Reader) -> int:
    """Runs one request to its end; how many messages that took."""
    core.begin(call(1))
    await turns()
    engine.end(b"a")
    await reader.end_of(1)
    return len(reader.messages)


async def test_what_an_engine_says_after_an_end_is_told_soon(
    core: StreamCore, engine: Told, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "_SETTLED_S", 0.005)
    told = await told_until_one_ended(core, engine, reader)
    engine.steps += 1
    await asyncio.sleep(stream_core.SIGN_OF_LIFE_S / 5)
    assert len(reader.messages) > told
    assert reader.messages[-1].load.steps == engine.steps
    assert not reader.messages[-1].pieces


async def test_an_engine_that_says_nothing_new_after_an_end_is_not_asked_for_ever(
    core: StreamCore, engine: Told, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "_SETTLED_S", 0.001)
    told = await told_until_one_ended(core, engine, reader)
    await asyncio.sleep(stream_core.SIGN_OF_LIFE_S / 5)
    assert 1 <= len(reader.messages) - told <= stream_core._LOOKS


async def test_what_came_is_handed_on_though_the_engine_is_ill(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    core.begin(call(1))
    await turns()
    engine.ill = True
    engine.end(b"a", RunError("gone"))
    assert (await reader.end_of(1)).end is StreamEnd.FAILED
    with pytest.raises(Unhealthy):
        await core.health()


async def test_a_stall_is_noticed_and_steps_or_idleness_are_none(
    core: StreamCore, engine: Told, reader: Reader
) -> None:
    stalled = asyncio.Event()
    watch = asyncio.create_task(watch_stalls(core, 0.03, stalled.set, 0.005))
    await asyncio.sleep(0.05)
    assert not stalled.is_set()
    core.begin(call(1))
    for _ in range(10):
        await asyncio.sleep(0.005)
        engine.give(b"a", b"x")
    assert not stalled.is_set()
    async with asyncio.timeout(1):
        await stalled.wait()
    watch.cancel()
