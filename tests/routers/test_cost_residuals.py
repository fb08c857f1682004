"""A replica's slowdown and the scatter of batches: what moves them, what does not."""

from __future__ import annotations

import random
from math import log

import pytest

from routers.estimates.cost.model import HICCUP, Slowdowns, Spread, at_quantile

NOISE = 0.3


def follow(slowdowns, replica_id, *factors):
    for factor in factors:
        slowdowns.follow(replica_id, log(factor), NOISE)


def test_replica_that_was_never_measured_is_like_the_pool():
    slowdowns = Slowdowns()
    assert (slowdowns.of("new"), slowdowns.to_pool("new"), slowdowns.pool) == (1.0, 1.0, 1.0)
    follow(slowdowns, "a", *[2.0] * 100)
    assert slowdowns.of("new") == slowdowns.pool == pytest.approx(2.0, rel=0.01)
    assert slowdowns.to_pool("new") == 1.0


def test_fivefold_slowness_is_followed_at_its_second_batch_and_left_so():
    slowdowns = Slowdowns()
    follow(slowdowns, "a", *[1.0] * 20)
    follow(slowdowns, "a", 5.0)
    assert slowdowns.of("a") < 1.05
    follow(slowdowns, "a", 5.0)
    assert slowdowns.of("a") == pytest.approx(5.0)
    follow(slowdowns, "a", 1.0, 1.0)
    assert slowdowns.of("a") == pytest.approx(1.0)


@pytest.mark.parametrize("hiccup", [20.0, 1e6])
def test_one_hiccup_moves_little_however_long(hiccup):
    slowdowns = Slowdowns()
    follow(slowdowns, "a", *[1.0] * 20, hiccup)
    assert 1.0 < slowdowns.of("a") < 1.05
    follow(slowdowns, "a", *[1.0] * 40)
    assert slowdowns.of("a") == pytest.approx(1.0, abs=0.01)


def test_what_noise_explains_is_averaged():
    slowdowns = Slowdowns()
    follow(slowdowns, "a", *[1.2, 1 / 1.2] * 200)
    assert slowdowns.of("a") == pytest.approx(1.0, abs=0.03)


def test_small_lasting_change_is_followed_slowly():
    slowdowns = Slowdowns()
    follow(slowdowns, "a", *[1.0] * 50, *[1.2] * 5)
    assert 1.02 < slowdowns.of("a") < 1.1
    follow(slowdowns, "a", *[1.2] * 60)
    assert slowdowns.of("a") == pytest.approx(1.2, rel=0.02)


def test_slow_replica_counts_little_in_the_pool():
    slowdowns = Slowdowns()
    for _ in range(100):
        for name in "abcdefg":
            follow(slowdowns, name, 1.0)
        follow(slowdowns, "slow", 5.0)
    assert slowdowns.pool < 1.1
    assert slowdowns.to_pool("slow") > 4.5
    assert slowdowns.to_pool("a") == pytest.approx(1.0, abs=0.1)


def test_pool_that_turns_slow_together_becomes_the_measure():
    slowdowns = Slowdowns()
    for _ in range(40):
        for name in "abcd":
            follow(slowdowns, name, 3.0)
    assert slowdowns.pool == pytest.approx(3.0, rel=0.01)
    assert slowdowns.to_pool("a") == pytest.approx(1.0, rel=0.01)


def test_forgotten_replica_starts_as_a_new_one():
    slowdowns = Slowdowns()
    follow(slowdowns, "a", *[1.0] * 50)
    follow(slowdowns, "b", 5.0, 5.0)
    slowdowns.forget("b")
    slowdowns.forget("never known")
    assert slowdowns.to_pool("b") == 1.0


def spread_of(quotients):
    spread = Spread()
    for quotient in quotients:
        spread.observe(quotient)
    return spread


def test_nothing_is_said_before_enough_was_measured():
    spread = spread_of([2.0] * 15)
    assert [spread.quantile(q) for q in (0.1, 0.5, 0.9, 0.99)] == [1.0] * 4


def test_quantiles_are_those_of_the_recent_batches():
    rng = random.Random(1)
    spread = spread_of([3.0] * 300 + [rng.lognormvariate(0, 0.1) for _ in range(1024)])
    assert spread.quantile(0.5) == pytest.approx(1.0, abs=0.02)
    assert spread.quantile(0.99) == pytest.approx(1.26, abs=0.07)
    assert spread.quantile(0.9) == pytest.approx(1.137, abs=0.03)


def test_hiccups_are_left_out():
    assert spread_of([1.0, HICCUP * 1.01] * 100).quantile(0.99) == 1.0
    assert spread_of([1.0, HICCUP] * 100).quantile(0.99) == HICCUP


def test_more_noise_takes_a_larger_deviation_to_be_none():
    rng = random.Random(2)
    quiet, loud = (spread_of([rng.lognormvariate(0, s) for _ in range(256)]) for s in (0.01, 0.3))
    assert quiet.noise == 0.3
    assert 0.7 < loud.noise < 1.0


@pytest.mark.parametrize(("quantile", "expected"), [(0.0, 1), (0.5, 3), (0.99, 5), (1.0, 5)])
def test_quantile_is_the_nearest_of_what_was_measured(quantile, expected):
    assert at_quantile([1.0, 2.0, 3.0, 4.0, 5.0], quantile) == expected
