"""Stragglers cost the tail little, and helping them costs little: 8 replicas, hiccups, a slow one.

`docs/policies/hedging.md` and `docs/policies/replicas.md` have the figures of longer runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from routers.api.settings import PolicyNames
from routers.policies.registry import HEDGINGS
from tests.simulation.benches.stragglers import (
    HEALTHY,
    HICCUPS,
    REPLICAS,
    SLOW_INPUTS,
    SLOW_REPLICA,
    settings_of,
    simulated,
)

SECONDS = 8.0


@cache
def tail(trouble, rate, mode="off"):
    return simulated(trouble, settings_of(mode), rate, SECONDS, seed=1)


@pytest.mark.parametrize("mode", ["hedge", "tied"])
def test_hedging_halves_the_tail_of_hiccups_for_a_twentieth_more_work(mode):
    (without, _), (hedged, seen) = tail(HICCUPS, 700), tail(HICCUPS, 700, mode)
    assert seen.hedges_won > 20
    assert hedged.ms(0.99) <= 0.5 * without.ms(0.99)
    assert hedged.device_s <= 1.05 * without.device_s
    assert hedged.in_slo > without.in_slo


@pytest.mark.parametrize("name", HEDGINGS)
def test_every_hedging_policy_takes_most_of_the_tail_within_its_budget(name):
    settings = replace(settings_of("hedge"), policies=PolicyNames(hedging=name))
    (without, _), (hedged, seen) = tail(HICCUPS, 700), simulated(HICCUPS, settings, 700, SECONDS, 1)
    assert seen.hedges_won > 20
    assert hedged.ms(0.99) <= 0.5 * without.ms(0.99)
    assert hedged.device_s <= 1.05 * without.device_s


def test_hedging_does_no_harm_when_replicas_are_busy():
    (without, _), (hedged, _) = tail(HICCUPS, 1180), tail(HICCUPS, 1180, "hedge")
    assert without.device_s > 0.8 * REPLICAS * SECONDS
    assert hedged.ms(0.99) <= 1.05 * without.ms(0.99)
    assert hedged.device_s <= 1.05 * without.device_s


def test_slow_inputs_start_no_avalanche_of_copies():
    (without, _), (hedged, _) = tail(SLOW_INPUTS, 700), tail(SLOW_INPUTS, 700, "hedge")
    assert hedged.device_s <= 1.06 * without.device_s
    assert hedged.ms(0.99) <= 1.05 * without.ms(0.99)


@pytest.mark.parametrize("mode", ["off", "hedge"])
def test_a_slow_replica_does_not_show_in_the_tail(mode):
    (healthy, _), (slow, seen) = tail(HEALTHY, 850), tail(SLOW_REPLICA, 850, mode)
    assert [each.replica_id for each in seen.replicas if each.ejected] == ["r0"]
    assert seen.probes > 0
    assert slow.ms(0.99) <= 1.3 * healthy.ms(0.99)
