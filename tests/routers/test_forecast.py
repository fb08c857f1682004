"""What is learnt of forecasts that turn out wrong."""

import random

import pytest

from routers.admission.feasibility import Forecast, ForecastError

SLACK_S = 0.08


def learnt(actual, forecasts=lambda rng: rng.uniform(0.0, SLACK_S), samples=4000, rate=500):
    error, rng = ForecastError(), random.Random(3)
    for n in range(samples):
        wait_s = forecasts(rng)
        error.learn(Forecast(wait_s, SLACK_S), actual(wait_s, rng), n / rate)
    return error


def test_nothing_learnt_corrects_nothing():
    assert ForecastError().corrected_s(0.05, SLACK_S) == 0.05


def test_right_forecasts_stay_as_they_are():
    error = learnt(lambda wait_s, rng: wait_s)
    assert error.corrected_s(0.05, SLACK_S) == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("factor", [0.4, 1.5])
def test_proportional_error_is_corrected(factor):
    error = learnt(
        lambda wait_s, rng: factor * wait_s, forecasts=lambda rng: rng.uniform(0.04, 0.08)
    )
    assert error.scale == pytest.approx(factor, rel=0.15)
    assert error.corrected_s(0.06, SLACK_S) == pytest.approx(factor * 0.06, rel=0.15)


@pytest.mark.parametrize("factor", [0.01, 50.0])
def test_correction_has_bounds(factor):
    error = learnt(lambda wait_s, rng: factor * wait_s)
    assert 0.2 <= error.scale <= 2.0


@pytest.mark.parametrize("rate", [5, 500, 20_000])
def test_margin_covers_all_but_one_in_fifty_at_any_rate(rate):
    def actual(wait_s, rng):
        return wait_s + rng.uniform(0.0, 0.02)

    error = learnt(actual, samples=20_000, rate=rate)
    rng, missed = random.Random(4), 0
    for _ in range(2000):
        wait_s = rng.uniform(0.0, SLACK_S)
        missed += actual(wait_s, rng) > error.scale * wait_s + error.margin_s
    assert 0.0 < missed / 2000 < 0.06


def test_small_forecasts_move_the_margin_not_the_scale():
    """A flow with little waiting still waits for the batch that runs."""
    error = learnt(lambda wait_s, rng: 0.02, forecasts=lambda rng: 0.001)
    assert error.scale == pytest.approx(1.0, abs=0.1)
    assert error.margin_s > 0.015


def test_empty_queue_is_never_forecast_late():
    error = learnt(lambda wait_s, rng: 10.0)
    assert error.corrected_s(0.0, SLACK_S) <= SLACK_S / 2
    assert error.corrected_s(0.0, 0.0) == 0.0


def test_margin_falls_again_once_forecasts_are_right():
    error = learnt(lambda wait_s, rng: wait_s + 0.03)
    high = error.margin_s
    for n in range(5000):
        error.learn(Forecast(0.03, SLACK_S), 0.03, 8.0 + n / 500)
    assert error.margin_s < high / 4


def test_burst_of_misses_does_not_overshoot():
    """A thousand requests turn late in the same instant, as after a hiccup: one step, not many."""
    error = learnt(lambda wait_s, rng: wait_s + 0.001)
    for _ in range(1000):
        error.learn(Forecast(0.03, SLACK_S), 0.05, 8.0)
    assert error.margin_s < 0.05
