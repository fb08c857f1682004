"""What is planned for, and each way in which a forecast is known to fail."""

import json
import math
from random import Random

import pytest

from autoscaling.forecast import PERSISTENCE, PLAIN, SEASONAL, Forecast
from autoscaling.settings import PolicySettings

DAY = 1440
HOUR = 60


def feed(forecast, rate, minutes, horizon_s=30.0, seed=1, request_work_s=0.05, noise=True):
    """Minutes of that work a second, with what chance does; the plans that it made."""
    random = Random(seed)
    plans = []
    for minute in range(minutes):
        mean = rate(minute)
        sigma = math.sqrt(mean * request_work_s / 60.0) if noise else 0.0
        plans.append(forecast.add(max(0.0, random.gauss(mean, sigma)), request_work_s, horizon_s))
    return plans


def daily(minute):
    return 5.0 - 4.0 * math.cos(2.0 * math.pi * minute / DAY)


def test_steady_demand_is_planned_for_with_what_chance_does():
    forecast = Forecast(PolicySettings())
    plan = feed(forecast, lambda m: 4.0, 300)[-1]
    assert 4.0 < plan.planned_s < 4.3


def test_level_step_is_reached_and_not_overshot():
    forecast = Forecast(PolicySettings())
    feed(forecast, lambda m: 2.0, 300)
    plans = feed(forecast, lambda m: 4.0, 120, seed=2)
    assert max(plan.planned_s for plan in plans) < 4.0 * 1.35
    assert all(plan.planned_s > 3.7 for plan in plans[5:])


def test_yesterdays_burst_is_not_replayed():
    forecast = Forecast(PolicySettings())

    def with_burst(minute):
        return daily(minute) * (4.0 if 600 <= minute < 606 else 1.0)

    feed(forecast, with_burst, DAY)
    feed(forecast, daily, DAY, seed=2)
    plans = feed(forecast, daily, DAY, seed=3)
    around = [plans[minute].planned_s / daily(minute + 1) for minute in range(595, 612)]
    assert max(around) < 1.25


@pytest.mark.slow
def test_weekend_is_left_to_persistence_or_followed():
    forecast = Forecast(PolicySettings())
    feed(forecast, daily, 4 * DAY)
    plans = feed(forecast, lambda m: 0.3 * daily(m), DAY, seed=2)
    late = range(12 * HOUR, DAY - 1)
    wasted = sum(plans[m].planned_s - 0.3 * daily(m + 1) for m in late)
    assert wasted / sum(0.3 * daily(m + 1) for m in late) < 0.5


def test_season_is_not_used_in_the_first_two_periods():
    forecast = Forecast(PolicySettings())
    plans = feed(forecast, daily, 2 * DAY - 1)
    assert all(plan.method != SEASONAL for plan in plans)


@pytest.mark.slow
def test_season_is_used_once_it_helps_at_a_long_horizon():
    forecast = Forecast(PolicySettings())
    plans = feed(forecast, daily, 4 * DAY, horizon_s=1800.0)
    used = [plan.method == SEASONAL and plan.trusted for plan in plans[-DAY:]]
    assert sum(used) > 0.7 * DAY


def test_season_is_not_used_where_there_is_none():
    forecast = Forecast(PolicySettings())
    random = Random(5)
    levels = [random.uniform(2.0, 8.0) for _ in range(100)]
    plans = feed(forecast, lambda m: levels[m // 60 % 100], 4 * DAY)
    assert all(plan.method != SEASONAL for plan in plans[-DAY:])


def test_residuals_are_those_at_the_horizon():
    """One step ahead a ramp errs by a minute's rise; at 30 minutes by thirty."""
    short, long = Forecast(PolicySettings(season_s=0.0)), Forecast(PolicySettings(season_s=0.0))

    def saw(minute):
        return 2.0 + 6.0 * abs(minute % 120 / 60.0 - 1.0)

    near = feed(short, saw, 600, horizon_s=60.0)
    far = feed(long, saw, 600, horizon_s=1800.0)
    assert far[-1].horizon == 30
    margin = [plan.planned_s - plan.forecast_s for plan in (near[-1], far[-1])]
    assert margin[1] > 4.0 * margin[0]
    covered = [far[m].planned_s >= saw(m + 30) for m in range(300, 570)]
    assert sum(covered) / len(covered) > 0.85


def test_forecast_worse_than_persistence_is_not_trusted_and_says_so():
    forecast = Forecast(PolicySettings(season_s=0.0))
    steps = [1.0, 6.0, 3.0, 8.0]
    plans = feed(forecast, lambda m: steps[m // 40 % 4], 800)
    untrusted = [plan for plan in plans if not plan.trusted]
    assert untrusted
    assert all(plan.method == PERSISTENCE for plan in untrusted)


def test_forecast_is_trusted_while_it_does_better():
    forecast = Forecast(PolicySettings(season_s=0.0))
    plan = feed(forecast, lambda m: 4.0, 600)[-1]
    assert plan.trusted
    assert plan.method == PLAIN


def test_nothing_is_trusted_before_half_an_hour_was_scored():
    plans = feed(Forecast(PolicySettings()), lambda m: 4.0, 30)
    assert not any(plan.trusted for plan in plans)


def test_plan_never_exceeds_three_times_the_last_hour():
    forecast = Forecast(PolicySettings(season_s=0.0))
    plans = feed(forecast, lambda m: 0.1 * 1.4**m, 30, noise=False)
    assert all(p.planned_s <= 3.0 * 0.1 * 1.4**m + 1e-9 for m, p in enumerate(plans))


def test_no_forecast_is_persistence_alone():
    forecast = Forecast(PolicySettings(forecast=False))
    plans = feed(forecast, daily, DAY)
    assert {plan.method for plan in plans} == {PERSISTENCE}


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9])
def test_plan_is_finite_and_not_negative_at_extremes(value):
    forecast = Forecast(PolicySettings())
    plans = feed(forecast, lambda m: value if m % 2 else 0.0, 200, noise=False)
    assert all(0.0 <= plan.planned_s < math.inf for plan in plans)


def test_saved_state_is_json_of_bounded_size_and_goes_on_alike():
    forecast = Forecast(PolicySettings())
    feed(forecast, daily, 3 * DAY)
    state = json.loads(json.dumps(forecast.save()))
    assert len(json.dumps(state)) < 25_000
    other = Forecast(PolicySettings())
    other.load(state)
    ours, theirs = (feed(each, daily, 60, seed=9)[-1] for each in (forecast, other))
    assert theirs.planned_s == pytest.approx(ours.planned_s, rel=0.01)
    assert theirs.method == ours.method


@pytest.mark.slow
def test_season_stands_where_it_would_after_an_absence():
    forecast, other = Forecast(PolicySettings()), Forecast(PolicySettings())
    feed(forecast, daily, 3 * DAY)
    other.load(forecast.save())
    other.skip(DAY // 2)
    assert other.minute % DAY == DAY // 2


def test_another_season_is_learnt_anew_and_another_quantile_is_not():
    forecast = Forecast(PolicySettings())
    feed(forecast, daily, 100)
    forecast.adopt(PolicySettings(quantile=0.8))
    assert forecast.minute == 100
    assert forecast.save()["smoothings"][0]["level"] is not None
    forecast.adopt(PolicySettings(season_s=3600.0))
    assert forecast.save()["smoothings"][0]["level"] is None
