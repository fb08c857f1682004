"""Demand that scatters or comes and goes does not make the number of replicas flap."""

from __future__ import annotations

import pytest

from tests.simulation.benches.scaling_flapping import (
    MAX_FLAT,
    MAX_PULSES,
    MAX_SAWTOOTH,
    OURS,
    POLICIES,
    moved,
)
from tests.simulation.benches.scaling_frontier.load import flat, pulses, sawtooth

OURS_FOR = POLICIES[OURS]
SETTLE_S, SECONDS = 1_800.0, 5_400.0


@pytest.mark.parametrize("busy", [1.0, 5.0])
def test_a_flat_load_changes_nothing_once_it_has_settled(busy):
    load = flat(busy, SECONDS, seed=1)
    found = moved(load, OURS_FOR(load), 1, SETTLE_S)
    assert found.changes <= MAX_FLAT
    assert found.misses < 0.01


def test_a_sawtooth_is_followed_seldom():
    load = sawtooth(5.0, 300.0, SECONDS, seed=1)
    assert moved(load, OURS_FOR(load), 1, SETTLE_S).changes <= MAX_SAWTOOTH


def test_bursts_that_follow_each_other_find_the_replicas_of_the_last():
    load = pulses(5.0, 240.0, SECONDS, seed=1)
    found = moved(load, OURS_FOR(load), 1, SETTLE_S)
    assert found.reversals <= MAX_PULSES
    assert found.misses < 0.01  # 5 % of it is above what runs without them


def test_what_flaps_is_counted():
    load = pulses(5.0, 240.0, SECONDS, seed=1)
    assert moved(load, POLICIES["KPA 0.7"](load), 1, SETTLE_S).changes > 100
