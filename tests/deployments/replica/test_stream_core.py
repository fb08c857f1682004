"""What each gateway hears of its requests, how they end, and what becomes of them without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_engines import until
from fake_sessions import FakeSession, frame
from process_ends import Deaths
from told_engine import Told

from deployments.contract.channel.frames import Kind, MessageError
from deployments.contract.channel.stream_messages import GenerateCall, StreamEnd, encode_generate
from deployments.replica import stream_core
from deployments.replica.stream_core import NEW_KINDS_SINCE, StreamCore
from runtimes.errors import RunError, Unhealthy
from runtimes.types import AdapterLoad


class Gateway(FakeSession):
    """A gateway that is connected to a core, and asks it for things."""

    def __init__(self, core: StreamCore, name: str = "g") -> None:
        super().__init__(name)
        self._core = core
        core.joined(self)

    def begin(self, lease_id: int, body: bytes = b"a", **more: Any) -> None:
        fields: dict[str, Any] = {"endpoint": "completions", "budget_s": 30.0} | more
        said = encode_generate(GenerateCall(body=body, **fields))
        self._core.received(self, frame(Kind.BEGIN, lease_id, said))

    def say(self, kind: Kind, lease_id: int) -> None:
        self._core.received(self, frame(kind, lease_id))

    def leave(self) -> None:
        """Its connection is gone: it has room, and nothing comes of what it is sent."""
        self.full = False
        self._core.left(self)


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def engine() -> Told:
    return Told()


@pytest.fixture
async def deaths() -> Deaths:
    return Deaths()


@pytest.fixture
async def core(engine: Told, deaths: Deaths) -> AsyncIterator[StreamCore]:
    core = StreamCore(engine, room=3, on_death=deaths.end)
    yield core
    await core.close()
    assert core.inflight == 0
    assert len(engine.freed) == len(engine.asks)


@pytest.fixture
async def gateway(core: StreamCore) -> Gateway:
    gateway = Gateway(core)
    await turns()
    return gateway


async def test_a_gateway_hears_at_once_how_things_stand(gateway: Gateway) -> None:
    (hello,) = gateway.messages
    assert hello.pieces == ()
    assert (hello.held, hello.seen, hello.inflight) == (0, 0, 0)


async def test_a_start_is_told_and_then_what_comes_and_the_last_piece_says_done(
    engine: Told, gateway: Gateway
) -> None:
    gateway.begin(7, priority=2)
    assert gateway.was_sent(Kind.STARTED) == [7]
    await turns()
    (ask,) = engine.asks
    assert (ask.endpoint, ask.body, ask.priority) == ("completions", b"a", 2)
    engine.give(b"a", b"one")
    await turns()
    engine.give(b"a", b"two", count=2)
    engine.end(b"a")
    last = await gateway.end_of(7)
    assert gateway.pieces[0].data == b"one"
    assert b"".join(p.data for p in gateway.pieces) == b"onetwo"
    assert [p.end for p in gateway.pieces if p.end] == [StreamEnd.DONE]
    assert (last.input_tokens, last.cached_tokens, last.output_tokens) == (3, 1, 2)
    assert gateway.messages[-1].held == 0
    assert gateway.messages[-1].seen == 7


async def test_a_step_of_many_requests_is_one_message(engine: Told, gateway: Gateway) -> None:
    for lease_id, body in enumerate([b"a", b"b", b"c"], start=1):
        gateway.begin(lease_id, body)
    await turns()
    before = len(gateway.messages)
    for body in (b"a", b"b", b"c"):
        engine.give(body, b"x")
    await turns()
    (message,) = gateway.messages[before:]
    assert [p.lease_id for p in message.pieces] == [1, 2, 3]
    assert (message.held, message.inflight, message.seen) == (3, 3, 3)
    assert message.load.steps == 3


async def test_what_a_slow_gateway_leaves_is_merged(engine: Told, gateway: Gateway) -> None:
    gateway.begin(1)
    gateway.full = True
    await turns()
    before = len(gateway.messages)
    for count in range(1, 6):
        engine.give(b"a", b"%d" % count, count=count)
        await turns()
    engine.end(b"a")
    await turns()
    assert len(gateway.messages) <= before + 1
    gateway.full = False
    await gateway.end_of(1)
    *_, piece = gateway.messages[-1].pieces
    assert b"".join(p.data for p in gateway.pieces) == b"12345"
    assert len(gateway.pieces) <= 2
    assert (piece.output_tokens, piece.end) == (5, StreamEnd.DONE)


async def test_what_waits_for_a_slow_gateway_is_told_in_several_messages_and_is_all_there(
    core: StreamCore, engine: Told, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "MAX_MESSAGE_BYTES", 1500)
    gateway.full = True
    for lease_id, body in enumerate([b"a", b"b", b"c"], start=1):
        gateway.begin(lease_id, body)
    await turns()
    before = len(gateway.messages)
    for body in (b"a", b"b", b"c"):
        engine.give(body, body * 1000)
        engine.end(body)
    await turns()
    gateway.full = False
    ends = [(await gateway.end_of(lease_id)).end for lease_id in (1, 2, 3)]
    assert ends == [StreamEnd.DONE] * 3
    told = [m for m in gateway.messages[before:] if m.pieces]
    assert [[p.lease_id for p in message.pieces] for message in told] == [[1, 2], [3]]
    assert [message.held for message in told] == [1, 0]


async def test_more_than_there_is_room_for_are_answered_busy(
    core: StreamCore, engine: Told, gateway: Gateway
) -> None:
    for lease_id in range(1, 5):
        gateway.begin(lease_id, b"%d" % lease_id)
    assert (await gateway.end_of(4)).end is StreamEnd.BUSY
    assert gateway.was_sent(Kind.STARTED) == [1, 2, 3]
    assert core.inflight == 3
    assert len(engine.asks) == 3
    engine.end(b"1")
    await gateway.end_of(1)
    gateway.begin(5, b"5")
    await turns()
    assert engine.asks[-1].body == b"5"


async def test_each_gateway_has_room_of_its_own_however_many_there_are(
    engine: Told, deaths: Deaths
) -> None:
    core = StreamCore(engine, room=3, at_once=3, on_death=deaths.end)
    gateways = [Gateway(core) for _ in range(9)]
    for gateway in gateways:
        for lease_id in range(1, 5):
            gateway.begin(lease_id, b"%d" % len(engine.asks))
    for gateway in gateways:
        assert (await gateway.end_of(4)).end is StreamEnd.BUSY
    assert core.inflight == 27
    assert len(engine.asks) == 3
    await core.close()
    assert core.inflight == 0


@pytest.fixture
async def narrow(engine: Told, deaths: Deaths) -> AsyncIterator[StreamCore]:
    """Takes four requests, and gives its engine one at a time."""
    core = StreamCore(engine, room=4, at_once=1, on_death=deaths.end)
    yield core
    await core.close()
    assert core.inflight == 0
    assert len(engine.freed) == len(engine.asks)


def paid(tag: float, tenant: str) -> dict[str, Any]:
    return {"rank": (0, 0, tag), "charges": ((0, tenant, 1.0),), "input_s": 0.5, "output_s": 2.0}


async def test_what_the_engine_has_no_place_for_waits_and_the_lowest_tag_begins(
    narrow: StreamCore, engine: Told
) -> None:
    one, two = Gateway(narrow, "one"), Gateway(narrow, "two")
    one.begin(1, b"a", **paid(0.0, "x"))
    one.begin(2, b"b", **paid(2.0, "x"))
    two.begin(1, b"c", **paid(1.0, "y"))
    await turns()
    assert [ask.body for ask in engine.asks] == [b"a"]
    assert (one.was_sent(Kind.STARTED), two.was_sent(Kind.STARTED)) == ([1], [])
    engine.end(b"a")
    await one.end_of(1)
    await turns()
    assert [ask.body for ask in engine.asks] == [b"a", b"c"]
    assert (one.was_sent(Kind.STARTED), two.was_sent(Kind.STARTED)) == ([1], [1])
    engine.end(b"c")
    await turns()
    engine.end(b"b")
    await one.end_of(2)


async def test_one_that_waits_may_be_aborted_and_the_engine_never_hears_of_it(
    narrow: StreamCore, engine: Told
) -> None:
    gateway = Gateway(narrow)
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    gateway.begin(3, b"c", budget_s=0.01)
    await turns()
    gateway.say(Kind.ABORT, 2)
    for lease_id in (2, 3):
        last = await gateway.end_of(lease_id)
        assert (last.end, last.service_s) == (StreamEnd.ABORTED, 0.0)
    engine.end(b"a")
    await gateway.end_of(1)
    assert [ask.body for ask in engine.asks] == [b"a"]


async def test_a_gateway_that_is_gone_leaves_its_places_to_the_others(
    narrow: StreamCore, engine: Told
) -> None:
    gone, stays = Gateway(narrow, "gone"), Gateway(narrow, "stays")
    gone.begin(1, b"a")
    gone.begin(2, b"b")
    stays.begin(1, b"c")
    await turns()
    gone.leave()
    await turns()
    assert [ask.body for ask in engine.asks] == [b"a", b"c"]
    engine.end(b"c")
    await stays.end_of(1)


async def test_what_waits_for_an_adapter_keeps_no_other_out(
    narrow: StreamCore, engine: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the next one, and once adapters are there the engine runs as many as before."""
    monkeypatch.setattr(stream_core, "SIGN_OF_LIFE_S", 60.0)  # nobody waits for that
    engine.adapters = AdapterLoad()
    gateway = Gateway(narrow, "other")
    await turns()
    gateway.begin(1, b"slow")
    await turns()
    engine.adapters = AdapterLoad(waiting=1)
    gateway.begin(2, b"slow too")
    await turns()
    assert [ask.body for ask in engine.asks] == [b"slow", b"slow too"]
    gateway.begin(3, b"plain")
    await turns()
    assert len(engine.asks) == 2
    engine.adapters = AdapterLoad(waiting=2)
    await until(lambda: len(engine.asks) == 3)
    engine.adapters = AdapterLoad()
    await narrow.health()
    gateway.begin(4, b"later")
    for body in (b"plain", b"slow"):
        engine.end(body)
        await turns()
        assert len(engine.asks) == 3
    engine.end(b"slow too")
    await turns()
    assert engine.asks[-1].body == b"later"


async def test_gateways_hear_what_the_others_were_served_also_while_they_have_no_end(
    narrow: StreamCore, engine: Told
) -> None:
    one, two = Gateway(narrow, "one"), Gateway(narrow, "two")
    one.begin(1, b"a", **paid(0.5, "x"), waiting=((0, "x", 7.0),))
    two.begin(1, b"b", **paid(1.5, "y"), waiting=None)
    await turns()
    engine.give(b"a", b"x", count=4)  # of 3 tokens 1 was cached: 2 * 0.5 + 4 * 2.0
    await turns()
    engine.end(b"a")
    await one.end_of(1)
    await turns()
    engine.give(b"b", b"x", count=1)
    await turns()
    (early,) = [message.shares for message in two.messages if message.shares]
    engine.end(b"b")
    await two.end_of(1)
    last = two.messages[-1].shares
    assert early is not None
    assert last is not None
    assert early.virtual_time == last.virtual_time == (1.5,)
    assert early.waiting == ((0, "x", 7.0),)
    told = [work for shares in (early, last) for work in shares.served]
    assert {work[:2] for work in told} == {(0, "x")}
    assert sum(seconds for _, _, seconds in told) == pytest.approx(8.0)
    assert (two.messages[-1].read, two.messages[-1].written) == (4, 5)


async def test_an_abort_frees_the_engine_before_it_is_told(engine: Told, gateway: Gateway) -> None:
    gateway.begin(1)
    await turns()
    engine.give(b"a", b"x", count=4)
    await turns()
    gateway.say(Kind.ABORT, 1)
    last = await gateway.end_of(1)
    assert last.end is StreamEnd.ABORTED
    assert last.output_tokens == 4
    assert engine.freed == [b"a"]
    gateway.say(Kind.ABORT, 1)
    await turns()
    assert len([p for p in gateway.pieces if p.end]) == 1


async def test_an_abort_in_the_same_turn_as_the_begin_ends_it(
    core: StreamCore, engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1)
    gateway.say(Kind.ABORT, 1)
    assert (await gateway.end_of(1)).end is StreamEnd.ABORTED
    assert engine.asks == []
    assert core.inflight == 0


async def test_an_abort_of_what_has_not_come_is_not_kept(engine: Told, gateway: Gateway) -> None:
    """A connection keeps the order, so it is of one that has ended."""
    gateway.say(Kind.ABORT, 9)
    gateway.begin(9)
    await turns()
    engine.end(b"a")
    assert (await gateway.end_of(9)).end is StreamEnd.DONE


async def test_what_nobody_awaits_any_longer_is_aborted(engine: Told, gateway: Gateway) -> None:
    gateway.begin(1, budget_s=0.01)
    assert (await gateway.end_of(1)).end is StreamEnd.ABORTED
    assert engine.freed == [b"a"]


@pytest.mark.parametrize("fault", [RunError("broken"), ValueError("a bug")])
async def test_a_fault_of_the_engine_fails_its_request_alone(
    engine: Told, gateway: Gateway, deaths: Deaths, fault: Exception
) -> None:
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    await turns()
    engine.end(b"a", fault)
    assert (await gateway.end_of(1)).end is StreamEnd.FAILED
    engine.end(b"b")
    assert (await gateway.end_of(2)).end is StreamEnd.DONE
    assert deaths == []


async def test_a_lease_that_is_here_already_is_refused_and_the_first_goes_on(
    engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1)
    with pytest.raises(MessageError, match="here already"):
        gateway.begin(1)
    await turns()
    engine.end(b"a")
    assert (await gateway.end_of(1)).end is StreamEnd.DONE
    assert len(engine.asks) == 1


@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.WATCH, Kind.DROP])
async def test_what_is_meant_for_a_replica_that_takes_batches_is_refused(
    gateway: Gateway, kind: Kind
) -> None:
    with pytest.raises(MessageError, match=kind.name):
        gateway.say(kind, 1)


# ---- gateways that go, and the replica's end ----------------------------------------------------


async def test_an_abort_and_then_the_connections_end_leave_the_engine_time_to_let_go(
    engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1)
    await turns()
    gateway.say(Kind.ABORT, 1)
    await asyncio.sleep(0)
    gateway.say(Kind.ABORT, 1)
    gateway.leave()
    await turns()
    assert engine.freed == [b"a"]


async def test_a_gateway_that_connects_again_begins_anew(
    core: StreamCore, engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1, b"a")
    await turns()
    second = Gateway(core)  # before the replica has heard of the first one's end
    second.begin(2, b"b")
    gateway.leave()
    await turns()
    assert engine.freed == [b"a"]
    engine.end(b"b")
    assert (await second.end_of(2)).end is StreamEnd.DONE
    assert [p.lease_id for p in second.pieces] == [2]


async def test_a_replica_that_closes_aborts_what_runs_and_tells_so(
    core: StreamCore, engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1)
    await turns()
    await asyncio.wait_for(core.close(), 5.0)
    assert (await gateway.end_of(1)).end is StreamEnd.ABORTED
    assert engine.freed == [b"a"]


# ---- an engine that has died --------------------------------------------------------------------


DIED = "the engine died, and 2 requests with it"


@pytest.mark.parametrize("known", ["by a request", "by its health"])
async def test_the_death_of_an_engine_is_told_and_ends_the_process_and_no_request_has_failed(
    engine: Told, gateway: Gateway, deaths: Deaths, known: str
) -> None:
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    await turns()
    engine.give(b"b", b"x")
    await turns()
    engine.die(tells=known == "by a request")
    if known == "by its health":
        engine.give(b"b", b"y")
    await gateway.until(lambda: bool(gateway.ended))
    assert gateway.ended == [DIED]
    assert deaths == []  # the gateway may not have read it
    gateway.leave()
    await turns()
    assert deaths == [DIED]
    said = [(p.lease_id, p.data, p.end) for p in gateway.pieces]
    told = [(2, b"x", None), (2, b"y", None)]
    assert said == told[: 1 + (known == "by its health")]
    assert gateway.sent[-1] == (Kind.ENDED, 0)
    assert gateway.was_sent(Kind.GOAWAY) == [0]


async def test_what_had_come_before_the_death_is_told_before_it(
    engine: Told, gateway: Gateway, deaths: Deaths
) -> None:
    gateway.full = True
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    gateway.begin(3, b"c")
    await turns()
    engine.give(b"a", b"all")
    engine.end(b"a")
    engine.give(b"b", b"half")
    await turns()
    assert gateway.pieces == []
    engine.die()
    await gateway.until(lambda: bool(gateway.ended))
    pieces = [(p.lease_id, p.data, p.end) for p in gateway.pieces]
    assert pieces == [(1, b"all", StreamEnd.DONE), (2, b"half", None)]
    assert [kind for kind, _ in gateway.sent[-2:]] == [Kind.STEPS, Kind.ENDED]
    assert gateway.ended == [DIED]
    gateway.leave()
    await turns()
    assert deaths == [DIED]


async def test_a_gateway_that_does_not_go_is_not_waited_for(
    engine: Told, gateway: Gateway, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "ENDS_S", 0.01)
    gateway.begin(1)
    await turns()
    engine.die()
    await gateway.until(lambda: bool(gateway.ended))
    assert deaths == []
    await asyncio.sleep(0.05)
    assert deaths == ["the engine died, and 1 requests with it"]


async def test_nothing_begins_at_an_engine_that_has_died(engine: Told, deaths: Deaths) -> None:
    core = StreamCore(engine, room=4, at_once=1, on_death=deaths.end)
    gateway = Gateway(core)
    await turns()
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    await turns()
    engine.die()
    await gateway.until(lambda: bool(gateway.ended))
    gateway.begin(3, b"c")
    other = Gateway(core, "another")
    await turns()
    assert gateway.was_sent(Kind.STARTED) == [1]
    assert [p.end for p in gateway.pieces] == []
    assert other.ended == gateway.ended
    assert [each.body for each in engine.asks] == [b"a"]
    assert core.inflight == 1  # the second, which waits for nothing any more
    gateway.leave()
    await turns()
    assert len(deaths) == 1
    assert core.inflight == 0


async def test_an_older_gateway_is_left_with_the_end_of_its_connection(
    engine: Told, gateway: Gateway, deaths: Deaths
) -> None:
    gateway.version = NEW_KINDS_SINCE - 1
    gateway.begin(1)
    await turns()
    engine.die()
    await gateway.until(lambda: bool(gateway.was_sent(Kind.GOAWAY)))
    assert gateway.ended == []
    gateway.leave()
    await turns()
    assert len(deaths) == 1


async def test_a_replica_that_leaves_ends_so_while_something_runs_and_else_in_its_own_time(
    core: StreamCore, engine: Told, gateway: Gateway, deaths: Deaths
) -> None:
    gateway.begin(1)
    await turns()
    core.leave()
    engine.end(b"a")
    await core.until_idle()
    engine.die()
    with pytest.raises(Unhealthy):
        await core.health()
    await turns()
    assert (gateway.ended, deaths) == ([], [])


async def test_a_replica_that_leaves_is_lost_while_something_runs(
    core: StreamCore, engine: Told, gateway: Gateway
) -> None:
    gateway.begin(1)
    await turns()
    core.leave()
    engine.die(tells=False)
    with pytest.raises(Unhealthy):
        await core.health()
    assert gateway.ended == ["the engine died, and 1 requests with it"]
    gateway.leave()
    await turns()


async def test_an_engine_that_dies_of_its_closing_is_no_death_and_what_came_is_handed_on(
    core: StreamCore, engine: Told, gateway: Gateway, deaths: Deaths
) -> None:
    gateway.begin(1)
    await turns()
    closing = asyncio.create_task(core.close())
    await asyncio.sleep(0)
    engine.die()
    await asyncio.wait_for(closing, 5.0)
    assert (await gateway.end_of(1)).end is StreamEnd.ABORTED
    assert deaths == []


# ---- what an engine has yet to read --------------------------------------------------------------

PRICED: dict[str, Any] = {"charges": ((0, "t", 0.5),), "input_s": 0.01, "output_s": 0.02}


async def test_prompts_count_as_unread_from_their_begin_until_their_first_token(
    engine: Told,
) -> None:
    core = StreamCore(engine, room=3, at_once=2, on_death=pytest.fail)
    gateway = Gateway(core)
    assert core.unread_s == 0.0
    for lease_id, body in enumerate((b"a", b"b", b"c"), start=1):
        gateway.begin(lease_id, body, **PRICED)
    await turns()
    assert core.unread_s == 1.0  # the third waits here
    engine.give(b"a", b"x")
    await turns()
    assert core.unread_s == 0.5
    engine.end(b"b")
    await gateway.end_of(2)
    assert core.unread_s == 0.5  # the third has begun in its place
    engine.end(b"a")
    engine.end(b"c")
    await core.close()
    assert core.unread_s == 0.0


@pytest.mark.parametrize("without", ["input_s", "charges"])
async def test_without_a_price_nobody_knows_how_long_prompts_take_to_read(
    core: StreamCore, engine: Told, gateway: Gateway, without: str
) -> None:
    gateway.begin(1, b"a", **PRICED)
    gateway.begin(2, b"b", **{name: PRICED[name] for name in PRICED if name != without})
    await turns()
    assert core.unread_s is None
    engine.give(b"b", b"x")
    await turns()
    assert core.unread_s == 0.5
    engine.end(b"a")
    engine.end(b"b")


# ---- signs of life, and what an engine says -----------------------------------------------------


async def test_a_gateway_for_which_nothing_runs_gets_a_sign_of_life(
    core: StreamCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "SIGN_OF_LIFE_S", 0.005)
    gateway = Gateway(core)
    await gateway.until(lambda: len(gateway.messages) >= 3)
    assert gateway.pieces == []


async def told_until_one_ended(engine: Told, gateway: Gateway) -> int:
    """Runs one request to its end; how many messages that took."""
    gateway.begin(1)
    await turns()
    engine.end(b"a")
    await gateway.end_of(1)
    return len(gateway.messages)


async def test_what_an_engine_says_after_an_end_is_told_soon(
    engine: Told, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "_SETTLED_S", 0.005)
    told = await told_until_one_ended(engine, gateway)
    engine.steps += 1
    await asyncio.sleep(stream_core.SIGN_OF_LIFE_S / 5)
    assert len(gateway.messages) > told
    assert gateway.messages[-1].load.steps == engine.steps
    assert not gateway.messages[-1].pieces


async def test_an_engine_that_says_nothing_new_after_an_end_is_not_asked_for_ever(
    engine: Told, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "_SETTLED_S", 0.001)
    told = await told_until_one_ended(engine, gateway)
    await asyncio.sleep(stream_core.SIGN_OF_LIFE_S / 5)
    assert 1 <= len(gateway.messages) - told <= stream_core._LOOKS


async def test_an_answer_too_large_for_a_message_is_an_error_of_its_request(
    engine: Told, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_core, "MAX_CHUNK_BYTES", 100)
    gateway.begin(1, b"a")
    gateway.begin(2, b"b")
    await turns()
    for body, size in ((b"a", 100), (b"b", 101)):
        engine.give(body, b"x" * size)
        engine.end(body)
    assert (await gateway.end_of(1)).status == 200
    refused = await gateway.end_of(2)
    assert refused.status == 400
    assert b"101 bytes, 100 is the limit" in b"".join(
        p.data for p in gateway.pieces if p.lease_id == 2
    )
