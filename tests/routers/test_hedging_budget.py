"""What pays for copies, and what tells that a batch takes long."""

from __future__ import annotations

import random

import pytest

from routers.estimates.ratio_histogram import RatioHistogram
from routers.shared.races import Budget


def earned(batches, share=0.05, cost_s=0.01):
    budget = Budget(share)
    for _ in range(batches):
        budget.earn(cost_s)
    return budget


def test_nothing_can_be_spent_before_anything_was_served():
    assert not Budget(0.05).affords(0.01)


def test_the_first_batch_brings_a_little_to_start_with():
    budget = earned(1)
    assert budget.affords(0.02)
    assert not budget.affords(0.021)


def test_twenty_batches_earn_one_at_five_percent():
    budget = earned(1)
    before = budget.level_s
    for _ in range(20):
        budget.earn(0.01)
    assert budget.level_s - before == pytest.approx(0.01)


def test_a_long_calm_is_worth_twenty_batches_at_most():
    assert earned(100_000).level_s == pytest.approx(20 * 0.01)


def test_what_is_never_refused_may_overdraw_it_but_not_without_bound():
    budget = earned(1)
    for _ in range(1000):
        budget.pay(0.01)
    assert budget.level_s == pytest.approx(-20 * 0.01)


def test_a_refund_restores_what_was_paid():
    budget = earned(100)
    before = budget.level_s
    budget.pay(0.01)
    budget.refund(0.01)
    assert budget.level_s == pytest.approx(before)


def test_without_a_share_nothing_is_ever_affordable():
    assert not earned(1000, share=0.0).affords(0.001)


def test_unmeasured_batches_earn_nothing():
    assert earned(10, cost_s=0.0).level_s == 0.0


def filled(ratios):
    histogram = RatioHistogram()
    for ratio in ratios:
        histogram.observe(ratio)
    return histogram


def test_nothing_seen_is_zero():
    assert RatioHistogram().quantile(0.95) == 0.0


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.9, 1.0, 1.05, 7.0, 60.0])
def test_a_constant_is_met_from_above_within_one_bin(ratio):
    found = filled([ratio] * 10).quantile(0.95)
    assert ratio <= found * (1 + 1e-9)
    assert found <= max(0.25, ratio * 1.06)


def test_what_is_out_of_range_lies_in_the_last_bin():
    assert filled([1e6] * 10).quantile(0.5) > 60.0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_quantiles_of_noise_are_met_within_a_tenth(share):
    rng = random.Random(3)
    ratios = [rng.lognormvariate(0.0, 0.3) for _ in range(1500)]
    exact = sorted(ratios[-1000:])[int(share * 1000)]
    assert filled(ratios).quantile(share) == pytest.approx(exact, rel=0.1)


def test_one_percent_of_stragglers_does_not_move_the_95th():
    ratios = filled([20.0 if n % 100 == 0 else 1.0 for n in range(2000)])
    assert ratios.quantile(0.95) < 1.06


def test_the_past_fades():
    assert filled([5.0] * 1000 + [1.0] * 3000).quantile(0.9) < 1.06


def test_weights_stay_finite_and_quantiles_the_same_over_very_many_samples():
    ratios = filled([1.0, 2.0] * 20_000)
    assert ratios.quantile(0.4) < 1.06 < 1.9 < ratios.quantile(0.6)
