"""From when on a spike's callers are answered in time, and how many were not."""

from __future__ import annotations

import pytest

from loadtests.benches.scaling_spike import (
    KINDS,
    ONE,
    POOL,
    POOL_AND_START,
    SPARE,
    TWO,
    Spike,
    lookup,
    settings_of,
)

SECONDS = 30


def spike(kept: list[int]) -> Spike:
    return Spike(tuple((20, each) for each in kept), {})


@pytest.mark.parametrize(("bad", "enough_s"), [(0, 0), (1, 1), (8, 8), (SECONDS - 5, SECONDS - 5)])
def test_there_is_enough_from_the_first_second_after_the_last_bad_one(bad, enough_s):
    found = spike([0] * bad + [20] * (SECONDS - bad))
    assert found.enough_s == enough_s
    assert found.missed == 20 * bad


def test_a_few_misses_later_are_allowed_and_more_are_not():
    few, many = [20] * SECONDS, [20] * SECONDS
    few[10] -= 5
    many[10] -= 6
    assert spike(few).enough_s == 0
    assert spike(many).enough_s == 11


def test_where_the_last_seconds_are_bad_there_never_was_enough():
    assert spike([20] * (SECONDS - 1) + [0]).enough_s == SECONDS


def test_each_case_differs_in_where_the_second_replica_comes_from():
    made = {kind: settings_of("lookup", lookup(), kind) for kind in KINDS}
    assert [kind for kind in KINDS if "pool" in made[kind]["scaling"]] == [POOL, POOL_AND_START]
    assert [kind for kind in KINDS if "budget" not in made[kind]["scaling"]] == [POOL_AND_START]
    replicas = {kind: made[kind]["models"]["lookup"]["replicas"] for kind in KINDS}
    assert [kind for kind in KINDS if "spare" in replicas[kind]] == [SPARE]
    assert {kind: replicas[kind]["count"] for kind in KINDS if "count" in replicas[kind]} == {
        ONE: 1,
        TWO: 2,
    }
