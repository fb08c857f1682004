"""Whose turn it is, is what `whose_turn` says that looks at all of them, at less work."""

from __future__ import annotations

from random import Random
from time import perf_counter

import pytest

from routers.shared.staging import whose_turn
from routers.stream.staging import StagedStream, StreamStaging, WaitingTurns

GATEWAYS = ("a", "b", "c")


def drawn(random: Random) -> StagedStream:
    """One in six is a copy."""
    priority, tenant = random.randrange(2), random.choice("xyz")
    rank = random.randrange(2), priority, float(random.randrange(20))
    charges = () if random.random() < 1 / 6 else ((priority, tenant, 1.0),)
    return StagedStream(random.choice(GATEWAYS), rank, charges)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_looking_at_all_of_them(seed: int) -> None:
    random, turns = Random(seed), dict.fromkeys(GATEWAYS, 0)
    listed: list[StagedStream] = []
    waiting: WaitingTurns[StagedStream] = WaitingTurns()
    for begun in range(1, 600):
        for _ in range(random.randrange(4)):
            listed.append(drawn(random))
            waiting.add(listed[-1])
        if listed and random.random() < 0.3:
            left = listed.pop(random.randrange(len(listed)))
            waiting.remove(left)
        if listed:
            found = waiting.whose_turn(turns)
            assert found is whose_turn(listed, turns)
            listed.remove(found)
            waiting.remove(found)
            turns[found.gateway] = begun
        assert len(waiting) == len(listed)
        assert len(waiting._order) <= 2 * len(listed) + 64


def taken_s(count: int) -> float:
    """Seconds of an end and an arrival beside so many that wait, the quickest of a few tries."""
    turns, random = StreamStaging(1), Random(1)
    running = StagedStream("a")
    turns.arrive(running, (), 0.0)
    for _ in range(count):
        turns.arrive(drawn(random), (), 0.0)
    tries = []
    for _ in range(20):
        coming, begin = drawn(random), perf_counter()
        turns.arrive(coming, (), 0.0)
        begun = turns.end(running, None)
        tries.append(perf_counter() - begin)
        assert begun is not None
        running = begun
    return min(tries)


def test_many_that_wait_cost_little_more_than_few() -> None:
    """Looking at all of them, eight hundred times as much."""
    assert taken_s(8000) <= 8 * taken_s(10)
