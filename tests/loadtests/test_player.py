"""Is a scenario's plan sent as planned, and is every try told of once?

The server is an `asyncio` one in the same process; a run lasts hundredths of a second.
"""

import asyncio
from pathlib import Path

import pytest

from loadtests.client.http1 import Target, render
from loadtests.client.player import PlayedRequest, Player, PlayerSettings
from loadtests.client.protocols.types import AnswerFacts
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario_file import check
from tests.loadtests.test_load import BUSY, OK, free_port, serving

WAIT = b"HTTP/1.1 503 Busy\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n"
CALLERS_FAULT = b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n"
CUT_OFF = b""
# Some 20 requests at once; a run ends with the last of them, long before its 30 s are over.
AT_ONCE = {"rate": 1000, "steps": [{"from_s": 0.02, "rate": 0}]}
CLOSED = {"process": "closed", "clients": 2}


def plan(arrivals=AT_ONCE, duration_s=30, **tenant) -> TrafficPlan:
    scenario = {
        "settings": "s.yaml",
        "duration_s": duration_s,
        "arrivals": arrivals,
        "lengths": {"fixed": 3},
        "tenants": {"default": tenant},
    }
    return TrafficPlan(check(scenario), Path())


def planned_at(wanted: TrafficPlan) -> list[float]:
    return [planned.at_s for planned in wanted.requests()]


async def play(target: Target, wanted: TrafficPlan, ends: list[PlayedRequest], **stand) -> None:
    def request(planned):
        return render(
            target, b"x" * planned.lengths[0], headers={"x-attempt": f"{planned.attempt}"}
        )

    await Player(wanted, PlayerSettings(target, request, **stand), ends.append).run()


async def played(target: Target, wanted: TrafficPlan, **stand) -> list[PlayedRequest]:
    ends: list[PlayedRequest] = []
    await play(target, wanted, ends, **stand)
    return ends


async def test_everything_planned_is_sent_once_when_it_is_due():
    async with serving(lambda _: OK) as (target, _):
        ends = await played(target, plan())
    assert sorted(end.planned.at_s for end in ends) == planned_at(plan())
    assert all(end.ok and end.planned.at_s <= end.left_s <= end.ended_s for end in ends)


async def test_refused_callers_come_again_as_often_as_they_do():
    async with serving(lambda _: BUSY) as (target, _):
        ends = await played(target, plan(retry={"attempts": 3, "backoff_ms": 1}))
    first = len(planned_at(plan()))
    tries = [sum(end.planned.attempt == n for end in ends) for n in (1, 2, 3, 4)]
    assert tries == [first, first, first, 0]


async def test_callers_who_do_not_look_at_retry_after_do_not_wait_for_it():
    retry = {"attempts": 2, "backoff_ms": 1, "retry_after": False}
    async with serving(lambda _: WAIT) as (target, _):
        ends = await played(target, plan(retry=retry))
    assert len(ends) == 2 * len(planned_at(plan()))


async def test_nobody_comes_again_after_the_end():
    async with serving(lambda _: WAIT) as (target, _):
        ends = await played(target, plan(retry={"attempts": 2, "backoff_ms": 1}))
    assert {end.planned.attempt for end in ends} == {1}


async def test_what_is_the_callers_fault_is_not_tried_again():
    async with serving(lambda _: CALLERS_FAULT) as (target, _):
        ends = await played(target, plan(retry={"attempts": 3, "backoff_ms": 1}))
    assert len(ends) == len(planned_at(plan()))


async def test_a_closed_loop_sends_its_next_when_the_last_has_ended():
    async with serving(lambda _: OK) as (target, log):
        ends: list[PlayedRequest] = []
        playing = asyncio.create_task(play(target, plan(CLOSED), ends, ready=2))
        async with asyncio.timeout(20):
            while len(ends) < 10:  # noqa: ASYNC110 - a player tells nobody
                await asyncio.sleep(0.001)
        playing.cancel()
        await asyncio.wait([playing])
    assert all(end.ok for end in ends)
    assert log.count(b"connected") == 2


@pytest.mark.parametrize("connections", [1, 2])
async def test_no_more_connections_than_allowed_are_open(connections):
    async with serving(lambda _: OK) as (target, log):
        ends = await played(target, plan(), connections=connections)
    assert log.count(b"connected") == connections
    assert len(ends) == len(planned_at(plan()))


async def test_what_gets_no_answer_ends_by_its_time():
    async with serving(lambda _: None) as (target, _):
        ends = await played(target, plan(CLOSED, 0.05), ready=2, timeout_s=0.01)
    assert {(end.status, end.trouble) for end in ends} == {(0, "timeout")}


async def test_a_closed_connection_ends_what_was_on_it_and_nothing_else():
    async with serving(lambda data: CUT_OFF if b"x-attempt: 1" in data else OK) as (target, _):
        ends = await played(target, plan(retry={"attempts": 2, "backoff_ms": 1}))
    first = len(planned_at(plan()))
    assert sum(end.trouble == "closed" for end in ends) == sum(end.ok for end in ends) == first


async def test_a_server_that_is_not_there_ends_every_try():
    with free_port() as port:
        ends = await played(Target("127.0.0.1", port, "/"), plan())
    assert {end.trouble for end in ends} == {"connect"}
    assert len(ends) == len(planned_at(plan()))


async def test_callers_who_leave_hang_up_and_do_not_come_again():
    gone = {"leave_after_ms": 5, "retry": {"attempts": 3, "backoff_ms": 1}}
    async with serving(lambda _: None) as (target, log):
        ends = await played(target, plan(**gone))
    assert {(end.status, end.trouble) for end in ends} == {(0, "left")}
    assert len(ends) == len(planned_at(plan()))
    assert log.count(b"lost") >= 1


async def test_malformed_is_not_tried_again():
    malformed = {"malformed": 1.0, "retry": {"attempts": 3, "backoff_ms": 1}}
    async with serving(lambda _: BUSY) as (target, _):
        ends = await played(target, plan(**malformed))
    assert len(ends) == len(planned_at(plan()))


class Listening:
    """Notes what it hears; `trouble`: what it makes of the whole answer."""

    def __init__(self, streams: bool, trouble: str) -> None:
        self.streams, self.heard, self.pieces = streams, AnswerFacts(trouble=trouble), b""

    def piece(self, data, at_s):
        self.pieces += data

    def ended(self, answer):
        self.pieces += b"|" + answer.body


@pytest.mark.parametrize(("streams", "pieces"), [(True, b"ok|ok"), (False, b"|ok")])
async def test_answers_are_heard_by_who_listens(streams, pieces):
    listening: list[Listening] = []

    def listen(_):
        listening.append(Listening(streams, "not good"))
        return listening[-1]

    async with serving(lambda _: OK) as (target, _):
        ends = await played(target, plan(), listen=listen)
    assert {each.pieces for each in listening} == {pieces}
    assert len(listening) == len(ends)
    assert not any(end.ok for end in ends)


async def test_stopped_run_ends_at_once_and_tells_of_what_was_answered():
    ends: list[PlayedRequest] = []
    async with serving(lambda _: OK) as (target, _):
        stand = PlayerSettings(target, lambda _: render(target, b"x"))
        player = Player(plan({"rate": 300}), stand, ends.append)
        asyncio.get_running_loop().call_later(0.3, player.stop)
        await player.run()
    assert 0 < len(ends) < 200
    assert all(end.ok for end in ends)
