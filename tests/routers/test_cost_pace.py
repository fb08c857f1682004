"""A replica's slowdown: what moves it at once, what slowly, what not."""

from math import log

import pytest

from routers.cost.residuals import Slowdowns

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
