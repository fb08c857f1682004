"""A replica's pace: what moves it at once, what slowly, what not."""

from math import log

import pytest

from routers.cost.residuals import Paces

NOISE = 0.3


def follow(paces, replica_id, *factors):
    for factor in factors:
        paces.follow(replica_id, log(factor), NOISE)


def test_replica_that_was_never_measured_is_like_the_pool():
    paces = Paces()
    assert (paces.of("new"), paces.ratio("new"), paces.pool) == (1.0, 1.0, 1.0)
    follow(paces, "a", *[2.0] * 100)
    assert paces.of("new") == paces.pool == pytest.approx(2.0, rel=0.01)
    assert paces.ratio("new") == 1.0


def test_fivefold_slowness_is_followed_at_its_second_batch_and_left_so():
    paces = Paces()
    follow(paces, "a", *[1.0] * 20)
    follow(paces, "a", 5.0)
    assert paces.of("a") < 1.05
    follow(paces, "a", 5.0)
    assert paces.of("a") == pytest.approx(5.0)
    follow(paces, "a", 1.0, 1.0)
    assert paces.of("a") == pytest.approx(1.0)


@pytest.mark.parametrize("hiccup", [20.0, 1e6])
def test_one_hiccup_moves_little_however_long(hiccup):
    paces = Paces()
    follow(paces, "a", *[1.0] * 20, hiccup)
    assert 1.0 < paces.of("a") < 1.05
    follow(paces, "a", *[1.0] * 40)
    assert paces.of("a") == pytest.approx(1.0, abs=0.01)


def test_what_noise_explains_is_averaged():
    paces = Paces()
    follow(paces, "a", *[1.2, 1 / 1.2] * 200)
    assert paces.of("a") == pytest.approx(1.0, abs=0.03)


def test_small_lasting_change_is_followed_slowly():
    paces = Paces()
    follow(paces, "a", *[1.0] * 50, *[1.2] * 5)
    assert 1.02 < paces.of("a") < 1.1
    follow(paces, "a", *[1.2] * 60)
    assert paces.of("a") == pytest.approx(1.2, rel=0.02)


def test_slow_replica_counts_little_in_the_pool():
    paces = Paces()
    for _ in range(100):
        for name in "abcdefg":
            follow(paces, name, 1.0)
        follow(paces, "slow", 5.0)
    assert paces.pool < 1.1
    assert paces.ratio("slow") > 4.5
    assert paces.ratio("a") == pytest.approx(1.0, abs=0.1)


def test_pool_that_turns_slow_together_becomes_the_measure():
    paces = Paces()
    for _ in range(40):
        for name in "abcd":
            follow(paces, name, 3.0)
    assert paces.pool == pytest.approx(3.0, rel=0.01)
    assert paces.ratio("a") == pytest.approx(1.0, rel=0.01)


def test_forgotten_replica_starts_as_a_new_one():
    paces = Paces()
    follow(paces, "a", *[1.0] * 50)
    follow(paces, "b", 5.0, 5.0)
    paces.forget("b")
    paces.forget("never known")
    assert paces.ratio("b") == 1.0
