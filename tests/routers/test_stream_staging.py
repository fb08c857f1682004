"""Whose request begins next at a replica that generates, and what the gateways are told."""

from __future__ import annotations

import pytest

from routers.api.requests import NO_TOKENS, Shares, Tokens
from routers.shared.staging import DEMAND_HOLDS_S, FORGET_S, REPORT_EVERY_S
from routers.stream.staging import StagedStream, StreamStaging, worth_s


def turn(gateway: str, tag: float, tenant: str = "t", cost: float = 1.0, rank: int = 0):
    return StagedStream(gateway, (0, rank, tag), ((rank, tenant, cost),))


def filled(at_once: int = 1, gateway: str = "a") -> tuple[StreamStaging, list[StagedStream]]:
    """As many as run at once run, for one gateway."""
    turns = StreamStaging(at_once)
    running = [turn(gateway, 0.0, cost=0.0) for _ in range(at_once)]
    for each in running:
        assert turns.arrive(each, (), 0.0) is each
    return turns, running


def told(turns: StreamStaging, gateway: str, now: float = 0.0) -> dict[tuple[int, str], float]:
    served = turns.report(gateway, now).served
    return {(priority, tenant): seconds for priority, tenant, seconds in served}


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_as_many_begin_at_once_as_the_engine_is_given(at_once: int):
    turns, running = filled(at_once)
    late = turn("a", 0.0)
    assert turns.arrive(late, (), 0.0) is None
    assert turns.end(running[0], None) is late


def test_the_lowest_rank_begins_next_whoever_sent_it():
    turns, (running,) = filled()
    waiting = [
        turn("a", 3.0, "x"),
        turn("b", 1.0, "y"),
        turn("a", 2.0, "z"),
        turn("b", 0.5, rank=1),
    ]
    for each in waiting:
        assert turns.arrive(each, (), 0.0) is None
    order = [turns.end(running, None)]
    while order[-1] is not None:
        order.append(turns.end(order[-1], None))
    assert [each.rank[1:] for each in order[:-1]] == [(0, 1.0), (0, 2.0), (0, 3.0), (1, 0.5)]


def test_of_one_flow_the_gateways_take_turns():
    turns, (running,) = filled()
    for number in range(3):
        turns.arrive(turn("a", 1.0 + number), (), 0.0)
        turns.arrive(turn("b", 10.0 + number), (), 0.0)
    order, ended = [], running
    while (begun := turns.end(ended, None)) is not None:
        order.append(begun.gateway)
        ended = begun
    assert order == ["b", "a", "b", "a", "b", "a"]


def test_one_that_leaves_unbegun_takes_nobodys_place():
    turns, (running,) = filled()
    left, stays = turn("a", 1.0), turn("a", 2.0)
    turns.arrive(left, (), 0.0)
    turns.arrive(stays, (), 0.0)
    assert turns.end(left, 0.0) is None
    assert turns.end(running, None) is stays
    assert turns.end(stays, None) is None


def test_the_others_are_told_of_what_is_charged_when_it_begins():
    turns, (running,) = filled()
    turns.arrive(turn("b", 0.0, cost=0.0), (), 0.0)
    turns.arrive(turn("a", 1.0, "gold", 3.0), (), 0.0)
    assert told(turns, "b") == {}
    turns.end(turns.end(running, None), None)
    assert told(turns, "b") == {(0, "gold"): 3.0}
    assert told(turns, "b") == {}
    assert told(turns, "a") == {}


def test_what_it_was_worth_in_the_end_is_trued_up():
    turns, (running,) = filled()
    turns.arrive(turn("b", 9.0, "other", 0.0), (), 0.0)
    for seconds in (5.0, 1.0):
        turns.arrive(turn("a", 1.0, "gold", 3.0), (), 0.0)
        begun = turns.end(running, None)
        assert told(turns, "b")[0, "gold"] == 3.0
        running = turn("a", 0.0, cost=0.0)
        turns.arrive(running, (), 0.0)
        turns.end(begun, seconds)
        assert told(turns, "b") == ({(0, "gold"): 2.0} if seconds == 5.0 else {})
    turns.arrive(turn("a", 1.0, "gold", 3.0), (), 0.0)
    turns.end(running, None)
    assert told(turns, "b") == {(0, "gold"): 1.0}  # 3 less the 2 that were told too many


def test_one_that_nobody_can_price_is_worth_what_was_charged():
    turns, (running,) = filled()
    turns.arrive(turn("b", 9.0, "other", 0.0), (), 0.0)
    turns.arrive(turn("a", 1.0, "gold", 3.0), (), 0.0)
    begun = turns.end(running, None)
    turns.end(begun, None)
    assert told(turns, "b") == {(0, "gold"): 3.0}


def test_virtual_time_is_the_highest_tag_that_began_by_priority():
    turns = StreamStaging(8)
    for tag, rank in ((2.0, 0), (1.0, 0), (5.0, 2)):
        turns.arrive(turn("a", tag, rank=rank), (), 0.0)
    assert turns.report("b", 0.0).virtual_time == (2.0, 0.0, 5.0)


def test_a_gateway_is_told_what_waits_at_the_others_now_and_then():
    turns = StreamStaging(8)
    turns.arrive(turn("a", 0.0), ((0, "x", 1.0),), 0.0)
    turns.arrive(turn("b", 0.0), ((0, "x", 2.0), (1, "y", 3.0)), 0.0)
    turns.arrive(turn("c", 0.0), ((0, "x", 4.0),), 0.0)
    assert turns.report("a", 0.0).waiting == ((0, "x", 6.0), (1, "y", 3.0))
    assert turns.report("a", REPORT_EVERY_S / 2).waiting is None
    turns.arrive(turn("b", 0.0), None, 0.0)
    assert turns.report("a", REPORT_EVERY_S).waiting == ((0, "x", 6.0), (1, "y", 3.0))


def test_what_a_gateway_said_long_ago_holds_while_it_has_something_here():
    turns = StreamStaging(8)
    here = turn("b", 0.0)
    turns.arrive(turn("a", 0.0), (), 0.0)
    turns.arrive(here, ((0, "x", 2.0),), 0.0)
    later = DEMAND_HOLDS_S + 1.0
    assert turns.report("a", later).waiting == ((0, "x", 2.0),)
    turns.end(here, None)
    assert turns.report("a", later + 1.0).waiting == ()


def test_a_gateway_that_is_gone_is_forgotten():
    turns = StreamStaging(8)
    gone = turn("old", 0.0)
    turns.arrive(gone, (), 0.0)
    turns.end(gone, None)
    turns.arrive(turn("a", 1.0), (), 0.0)
    turns.arrive(turn("new", 1.0, "gold", 2.0), (), FORGET_S + 1.0)
    assert told(turns, "old") == {}
    assert told(turns, "a") == {(0, "gold"): 2.0}


def test_a_gateway_that_was_never_heard_of_is_told_nothing_but_the_time():
    turns, _ = filled()
    assert turns.report("nobody", 0.0) == Shares((0.0,), (), ())


def test_there_is_news_when_others_were_served_and_it_was_not_told_for_a_while():
    turns, (running,) = filled()
    assert not turns.has_news("b", 0.0)
    turns.arrive(turn("b", 5.0, "y"), (), 0.0)
    turns.arrive(turn("a", 1.0), (), 0.0)
    assert not turns.has_news("b", 0.0)
    turns.end(running, None)
    assert turns.has_news("b", 0.0)
    assert not turns.has_news("a", 0.0)
    turns.report("b", 1.0)
    turns.arrive(turn("a", 2.0), (), 1.0)
    assert not turns.has_news("b", 1.0 + REPORT_EVERY_S)


@pytest.mark.parametrize(
    ("tokens", "prices", "seconds"),
    [
        (Tokens(100, 40, 5), (0.5, 2.0), 40.0),
        (Tokens(100, 140, 5), (0.5, 2.0), 10.0),
        (NO_TOKENS, (0.5, 2.0), 0.0),
        (Tokens(100, 40, 5), (0.0, 2.0), 10.0),
        (Tokens(100, 40, 5), (0.0, 0.0), None),
    ],
)
def test_a_request_is_worth_what_was_read_and_written_for_it(tokens, prices, seconds):
    assert worth_s(tokens, *prices) == seconds
