"""A share of the requests is exactly that, spread over all of them, and follows no pattern."""

from __future__ import annotations

from random import Random

import pytest

from deployments.gateway.rollout.canary_assignment import BLOCK, EvenShare


@pytest.mark.parametrize(
    "share", [0.0, 0.001, 0.01, 0.05, 0.07, 0.25, 0.29, 1 / 3, 0.5, 0.999, 1.0]
)
def test_of_a_thousand_requests_it_takes_exactly_its_share(share: float) -> None:
    even = EvenShare(share, Random(1))
    assert sum(even.takes() for _ in range(1000)) == int(share * 1000 + 1e-9)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.93])
def test_no_block_of_requests_gets_more_or_less(share: float) -> None:
    even = EvenShare(share, Random(1))
    for _ in range(50):
        taken = sum(even.takes() for _ in range(BLOCK))
        assert abs(taken - share * BLOCK) < 1


def test_what_comes_every_second_time_meets_both() -> None:
    even = EvenShare(0.5, Random(1))
    taken = [even.takes() for _ in range(1000)]
    assert 150 < sum(taken[::2]) < 350


def test_the_same_seed_takes_the_same() -> None:
    one, other = EvenShare(0.3, Random(5)), EvenShare(0.3, Random(5))
    assert [one.takes() for _ in range(100)] == [other.takes() for _ in range(100)]
