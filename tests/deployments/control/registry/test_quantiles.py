"""Bounds of quantiles from histograms, against the values that went into them."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from deployments.contract.rollout.latencies import seconds_of, step_of
from deployments.control.registry.judge import at_least, at_most, median_s, whole


def histogram(latencies: list[float]) -> Counter[int]:
    return Counter(step_of(each) for each in latencies)


@pytest.mark.parametrize("latency_s", [0.0, 1e-4, 1.01e-4, 0.003, 0.5, 59.0])
def test_a_step_holds_what_is_in_it_within_a_tenth(latency_s: float):
    step = step_of(latency_s)
    assert latency_s <= seconds_of(step) * (1 + 1e-9)
    assert step == 0 or latency_s > seconds_of(step - 1) * (1 - 1e-9)


def test_too_few_bound_nothing():
    for few in ([], [0.1], [0.1] * 3):
        assert at_least(histogram(few), 0.9) is None or len(few) == 3
        assert at_most(histogram(few), 0.9) is None


def test_bounds_of_equal_latencies_are_their_steps_sides():
    same = histogram([0.1] * 100)
    assert at_least(same, 0.9) == pytest.approx(seconds_of(step_of(0.1) - 1))
    assert at_most(same, 0.5) == pytest.approx(seconds_of(step_of(0.1)))


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_the_true_quantile_lies_between_the_bounds_nearly_always(quantile: float):
    """Of exponential latencies: 300 samples of 200, two sides of 95 % and a step wider."""
    draws, hits = random.Random(7), 0
    true = -0.05 * math.log(1 - quantile)
    for _ in range(300):
        seen = histogram([draws.expovariate(20) for _ in range(200)])
        low, high = at_least(seen, quantile), at_most(seen, quantile)
        assert low is not None
        assert high is not None
        hits += low <= true <= high
    assert hits >= 0.95 * 300


def test_all_lengths_are_summed_and_have_a_median():
    by_length = {8: histogram([0.1, 0.1]), 16: histogram([0.1, 0.9, 0.9])}
    assert sum(whole(by_length).values()) == 5
    assert median_s(whole(by_length)) == pytest.approx(seconds_of(step_of(0.1)))
    assert median_s({}) is None
