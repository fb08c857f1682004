"""Quantiles of time over prediction."""

import random

import pytest

from routers.placement.hedging import RatioHistogram


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
