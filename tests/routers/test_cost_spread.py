"""Quantiles of measured over predicted: what counts, what does not."""

import random

import pytest

from routers.cost.residuals import HICCUP, Spread, at_quantile


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
