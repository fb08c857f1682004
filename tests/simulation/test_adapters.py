"""Fifty adapters, asked for by Zipf's law, on four replicas that hold eight each."""

from __future__ import annotations

import pytest

from routers.simulation.baselines import AdapterHash
from tests.simulation import adapter_load
from tests.simulation.adapter_load import (
    ADAPTERS,
    PLACES,
    REPLICAS,
    AtRandom,
    asked,
    belady_loads,
    known_loads,
    loads,
    play,
    shape,
)


def test_the_offline_optimum_of_a_trace() -> None:
    assert belady_loads("abcab", 3) == 3
    assert belady_loads("abcabc", 2) == 4  # b makes room for c, which makes room for b
    assert known_loads("aabac", 2) == 3


@pytest.mark.slow
def test_adapters_are_seldom_loaded_and_first_tokens_come_as_if_all_were_there() -> None:
    """No placement that knows the past alone comes near the offline optimum where each request is
    independent of those before: one that knew all popularities beforehand needs 1.65 times its
    loads. The bounds are what docs/generation.md shows, and some."""
    ran, hashed, chance = (play(shape(), 60.0, core) for core in (
        adapter_load.StreamScheduler, AdapterHash, AtRandom,
    ))  # fmt: skip
    resident = play(shape(ADAPTERS, 0.0), 60.0)
    names = asked(ran)
    assert len(names) > 1000
    assert all(outcome.answered_at is not None for outcome in ran.outcomes)
    assert loads(ran) <= 2.7 * belady_loads(names, REPLICAS * PLACES)
    assert loads(ran) <= 1.6 * known_loads(names, REPLICAS * PLACES)
    assert loads(ran) <= 0.5 * loads(chance)
    p99_s = ran.first_token_s(0.99, "default")
    assert p99_s <= 1.1 * resident.first_token_s(0.99, "default")
    assert p99_s <= 0.8 * hashed.first_token_s(0.99, "default")


@pytest.mark.slow
def test_a_popular_adapter_spreads_and_a_rare_one_stays_where_it_is() -> None:
    weights = [1.0] * ADAPTERS
    weights[0] = 3.0 * (ADAPTERS - 1)  # three of four requests
    ran = play(shape(), 40.0, weights=weights)
    by_replica = [set(replica.adapters.held) for replica in ran.replicas]
    assert sum("a1" in held for held in by_replica) == REPLICAS
    others = [name for held in by_replica for name in held if name != "a1"]
    assert len(others) >= 0.8 * (PLACES - 1) * REPLICAS
    assert len(set(others)) >= 0.85 * len(others), "rare adapters are held twice"


def test_more_adapters_than_places_at_once_all_have_their_turn() -> None:
    """With one place, requests for two adapters take turns, and none waits for ever."""
    ran = play(shape(places=1, load_s=0.01), 10.0, rate=6.0, weights=[1.0] * 2 + [0.0] * 48)
    assert len(ran.outcomes) > 30
    assert all(outcome.answered_at is not None for outcome in ran.outcomes)
