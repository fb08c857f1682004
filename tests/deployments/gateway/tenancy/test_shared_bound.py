"""What one tenant holds keeps no other from its share."""

from __future__ import annotations

import pytest

from deployments.gateway.tenancy.rates import SharedBound

A, B, HEAVY = ("a", 1.0), ("b", 1.0), ("heavy", 3.0)


def test_one_alone_may_have_all_and_no_more() -> None:
    bound = SharedBound(10)
    assert bound.fits(A, 10)
    assert not bound.fits(A, 11)
    bound.add(A, 10)
    assert not bound.fits(A, 1)


@pytest.mark.parametrize(("quota_key", "share"), [(B, 5), (HEAVY, 7)])
def test_who_comes_to_what_is_full_has_its_share_by_weight(
    quota_key: tuple[str, float], share: int
) -> None:
    bound = SharedBound(10)
    bound.add(A, 10)
    assert bound.fits(quota_key, share)
    assert not bound.fits(quota_key, share + 1)
    for _ in range(share):
        assert bound.fits(quota_key, 1)
        bound.add(quota_key, 1)
    assert not bound.fits(quota_key, 1)


@pytest.mark.parametrize("growth", [1.0, 100.0], ids=["equal weights", "each newcomer heavier"])
def test_however_many_fill_their_shares_in_turn_twice_the_bound_is_the_most(growth: float) -> None:
    bound, got = SharedBound(1000), []
    for n in range(12):
        quota_key, taken = (f"t{n}", growth**n), 0
        while bound.fits(quota_key, 1):
            bound.add(quota_key, 1)
            taken += 1
        got.append(taken)
    assert bound.used <= 2000
    assert got[:2] == ([1000, 500] if growth == 1.0 else [1000, 990])
    assert growth > 1.0 or min(got) > 0


def test_what_is_given_back_is_free_again() -> None:
    bound = SharedBound(10)
    bound.add(A, 6)
    bound.add(B, 4)
    bound.give(A, 6)
    assert bound.used == 4
    assert bound.fits(B, 6)
    bound.give(B, 4)
    assert bound.used == 0
    assert bound.fits(A, 10)


def test_a_weight_that_changes_meanwhile_is_given_back_as_it_was() -> None:
    bound = SharedBound(10)
    bound.add(A, 2)
    bound.add(("a", 5.0), 2)
    bound.give(("a", 5.0), 4)
    bound.add(B, 10)
    assert bound.fits(A, 5)
    assert not bound.fits(A, 6)
