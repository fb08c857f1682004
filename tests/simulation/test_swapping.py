"""Short runs of the swapping bench: fewer swaps and less waiting than on demand, none at rest."""

from __future__ import annotations

from functools import cache

import pytest

from tests.simulation.benches.pooled_models import (
    BASE_S,
    LOAD_S,
    PATIENCE_S,
    ROOM,
    ROW_S,
    PoolReplica,
)
from tests.simulation.benches.swap_policies import Lru, Ours, Static
from tests.simulation.benches.swapping import LOADS, OURS, SHIFTING, STATIC, STATIONARY, WAKES, ran

MINUTES = 12.0


@cache
def outcome(traffic, policy):
    return ran(traffic, policy, 1, 60.0 * MINUTES)


@pytest.mark.parametrize("rival", ["LRU", "LFU", "GDSF"])
def test_shifts_are_followed_with_fewer_swaps_and_more_in_time_than_on_demand(rival):
    ours, theirs = outcome(SHIFTING, OURS), outcome(SHIFTING, rival)
    assert ours.swaps_an_hour < theirs.swaps_an_hour / 4
    assert ours.in_time > theirs.in_time
    assert ours.p99_s <= theirs.p99_s


def test_under_a_stationary_zipf_it_is_the_static_choice_and_swaps_nothing():
    ours, static = outcome(STATIONARY, OURS), outcome(STATIONARY, STATIC)
    assert ours.in_time >= static.in_time - 0.003
    assert ours.last_swap_s == 0.0


def test_engines_that_sleep_are_swapped_by_what_their_waking_costs():
    wakes, loads = outcome(SHIFTING, WAKES), outcome(SHIFTING, LOADS)
    assert wakes.in_time > loads.in_time > outcome(SHIFTING, OURS).in_time
    assert wakes.p99_s < loads.p99_s


# -- the bench's own replica


def served(policy, requests):
    return PoolReplica(policy, "abcd").run(requests, 0.0)


def test_first_request_waits_for_its_models_load():
    found = served(Lru(), [(1.0, "a")])
    assert found.latencies_s == [pytest.approx(LOAD_S + BASE_S + ROW_S)]


def test_request_for_a_model_that_is_never_held_misses():
    found = served(Static(("a", "b", "c")), [(1.0, "a"), (5.0, "d"), (30.0, "a")])
    assert found.missed == 1
    assert max(found.latencies_s) == PATIENCE_S


def test_the_least_recently_asked_for_goes_for_one_that_is_waited_for():
    requests = [(1.0, "a"), (4.0, "b"), (7.0, "c"), (10.0, "a"), (20.0, "d"), (30.0, "a")]
    found = served(Lru(), requests)
    assert (found.swaps, found.missed) == (1, 0)
    assert found.latencies_s[-1] == pytest.approx(BASE_S + ROW_S)  # b has gone


def test_room_is_filled_before_anything_goes():
    found = served(Ours("abcd"), [(at, "abc"[at % ROOM]) for at in range(1, 60)])
    assert (found.swaps, found.missed) == (0, 0)


def test_a_model_that_is_busy_is_not_let_go():
    stream = [(10.0 + 0.02 * n, "abc"[n % 3]) for n in range(2000)]
    requests = sorted([(1.0, "a"), (3.5, "b"), (6.0, "c"), *stream, (20.0, "d")])
    found = served(Ours("abcd"), requests)
    assert found.swaps == 0
    assert found.missed == 1  # the one for d
