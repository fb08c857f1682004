"""Token buckets: never more than burst and rate allow, never less, and back exactly when told."""

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routers.policies.admission.rates import Rate, TokenBucket

demands = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.integers(1, 50)), min_size=1, max_size=60
)  # (seconds since the one before, amount)
rates = st.builds(Rate, st.floats(0.1, 1e6), st.floats(1.0, 1e4))


class RateLimit:
    """One tenant's two buckets, full at `now`."""

    def __init__(self, requests: Rate, tokens: Rate, now: float) -> None:
        self.requests = TokenBucket(requests, now)
        self.tokens = TokenBucket(tokens, now)

    def take(self, requests: float, tokens: float, now: float) -> float:
        """0.0: taken. Else nothing was, and after so many seconds it may be, if nobody else asks.

        Where lengths are known later than the request, ask twice: (1, 0), then (0, tokens).
        """
        wait_s = max(self.requests.wait_s(requests, now), self.tokens.wait_s(tokens, now))
        if wait_s == 0.0:
            self.requests.take(requests, now)
            self.tokens.take(tokens, now)
        return wait_s

    def change(self, requests: Rate, tokens: Rate, now: float) -> None:
        self.requests.change(requests, now)
        self.tokens.change(tokens, now)


def limit(per_s=10.0, burst=5.0, tokens=None):
    return RateLimit(Rate(per_s, burst), tokens or Rate(), 0.0)


def test_new_bucket_holds_its_burst():
    bucket = limit(burst=5.0)
    assert [bucket.take(1, 0, 0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(1, 0, 0.0) == pytest.approx(0.1, abs=1e-5)


def test_bucket_fills_at_its_rate_up_to_the_burst():
    bucket = TokenBucket(Rate(10.0, 5.0), 0.0)
    bucket.take(5, 0.0)
    assert bucket.level(0.25) == pytest.approx(2.5)
    assert bucket.level(100.0) == 5.0


def test_refusal_takes_nothing():
    bucket = limit(per_s=1.0, burst=1.0)
    bucket.take(1, 0, 0.0)
    for _ in range(10):
        bucket.take(1, 0, 0.5)
    assert bucket.take(1, 0, 1.001) == 0.0


def test_both_buckets_are_taken_from_or_neither():
    both = RateLimit(Rate(10.0, 10.0), Rate(100.0, 100.0), 0.0)
    assert both.take(1, 100, 0.0) == 0.0
    assert both.take(1, 50, 0.0) == pytest.approx(0.5, abs=1e-5)
    assert both.requests.level(0.0) == 9.0


def test_demand_larger_than_the_burst_is_met_by_a_full_bucket_which_then_owes():
    bucket = limit(per_s=10.0, burst=5.0)
    assert bucket.take(50, 0, 0.0) == 0.0
    assert bucket.take(1, 0, 0.0) == pytest.approx(4.6, abs=1e-5)
    assert bucket.take(50, 0, 4.7) == pytest.approx(0.3, abs=1e-5)


def test_asking_twice_is_asking_for_requests_first():
    both = RateLimit(Rate(10.0, 1.0), Rate(100.0, 10.0), 0.0)
    assert both.take(1, 0, 0.0) == 0.0
    assert both.take(0, 10, 0.0) == 0.0
    assert both.take(0, 10, 0.0) > 0.0


def test_without_bounds_nothing_waits():
    free = RateLimit(Rate(), Rate(), 0.0)
    assert [free.take(1e9, 1e12, 0.0) for _ in range(3)] == [0.0] * 3


@given(rates, demands)
def test_never_more_than_burst_and_rate_over_any_stretch(rate, asked):
    bucket, now, taken = RateLimit(rate, Rate(), 0.0), 0.0, []
    for after, amount in asked:
        now += after
        if bucket.take(amount, 0, now) == 0.0:
            taken.append((now, amount))
    for first in range(len(taken)):
        total = 0.0
        for at, amount in taken[first:]:
            allowed = rate.burst + rate.per_s * (at - taken[first][0])
            assert total + min(amount, rate.burst) <= allowed * (1 + 1e-9) + 1e-6
            total += amount


@given(rates, demands)
def test_coming_back_when_told_succeeds_and_not_much_sooner(rate, asked):
    bucket, now = RateLimit(rate, Rate(), 0.0), 0.0
    for after, amount in asked:
        now += after
        wait_s = bucket.take(amount, 0, now)
        if wait_s > 0.0:
            assert wait_s <= 2e-6 or bucket.take(amount, 0, now + 0.5 * (wait_s - 1e-6)) > 0.0
            now += wait_s
            assert bucket.take(amount, 0, now) == 0.0


def test_ten_million_takes_do_not_drift():
    """As many as the rate allows over the stretch, with a rate that binary fractions can't say."""
    bucket = TokenBucket(Rate(0.1, 1.0), 0.0)
    bucket.take(1.0, 0.0)
    bucket.taken, now = 1.0 + 1e7, 1e8  # a hundred million seconds, never full in between
    assert bucket.level(now) == pytest.approx(0.0, abs=1e-6)
    assert bucket.wait_s(1.0, now) == pytest.approx(10.0, abs=1e-4)


def test_share_of_a_gateway_is_its_part_of_the_rate_and_all_of_the_burst():
    assert Rate(100.0, 50.0).share(4) == Rate(25.0, 50.0)
    assert Rate(1.0, 0.2).share(4) == Rate(0.25, 1.0)  # one request passes at all
    assert Rate().share(4) == Rate()


@pytest.mark.parametrize("gateways", [1, 2, 8])
def test_evenly_spread_traffic_below_its_rate_is_not_refused_at_any_number_of_gateways(gateways):
    rng, now, refused = random.Random(1), 0.0, 0
    limits = [RateLimit(Rate(20.0, 20.0).share(gateways), Rate(), 0.0) for _ in range(gateways)]
    for _ in range(4000):
        now += rng.expovariate(16.0)
        refused += limits[rng.randrange(gateways)].take(1, 0, now) > 0.0
    assert refused <= 4


@pytest.mark.parametrize(("new", "level"), [(Rate(10.0, 8.0), 2.0), (Rate(10.0, 1.0), 1.0)])
def test_changed_rate_keeps_the_level_that_fits(new, level):
    bucket = TokenBucket(Rate(1.0, 5.0), 0.0)
    bucket.take(3.0, 0.0)
    bucket.change(new, 0.0)
    assert bucket.level(0.0) == level


def test_debt_outlives_a_change():
    bucket = TokenBucket(Rate(1.0, 5.0), 0.0)
    bucket.take(20.0, 0.0)
    bucket.change(Rate(2.0, 8.0), 0.0)
    assert bucket.level(0.0) == -15.0


@pytest.mark.parametrize("before", [Rate(), Rate(1.0, 5.0)])
@pytest.mark.parametrize("after", [Rate(), Rate(2.0, 4.0)])
def test_bounds_may_come_and_go(before, after):
    both = RateLimit(before, Rate(), 0.0)
    both.take(1, 0, 0.0)
    both.change(after, Rate(), 1.0)
    assert both.requests.level(1.0) == (inf if after == Rate() else 4.0)
