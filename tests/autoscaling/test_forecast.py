"""What is planned for, and each way in which a forecast is known to fail."""

import json
import math
from random import Random

import pytest

from autoscaling.demand import Demand
from autoscaling.forecast import SEASON_BINS, Forecast, HoltWinters, Planning, Season
from autoscaling.settings import PolicySettings
from autoscaling.types import DemandReading

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
    assert not any(plan.trusted for plan in plans)


@pytest.mark.slow
def test_season_is_used_once_it_helps_at_a_long_horizon():
    forecast = Forecast(PolicySettings())
    plans = feed(forecast, daily, 4 * DAY, horizon_s=1800.0)
    used = [plan.trusted for plan in plans[-DAY:]]
    assert sum(used) > 0.7 * DAY


def test_season_is_not_used_where_there_is_none():
    forecast = Forecast(PolicySettings())
    random = Random(5)
    levels = [random.uniform(2.0, 8.0) for _ in range(100)]
    plans = feed(forecast, lambda m: levels[m // 60 % 100], 4 * DAY)
    assert not any(plan.trusted for plan in plans[-DAY:])


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


def test_plan_never_exceeds_three_times_the_last_hour():
    forecast = Forecast(PolicySettings(season_s=0.0))
    plans = feed(forecast, lambda m: 0.1 * 1.4**m, 30, noise=False)
    assert all(p.planned_s <= 3.0 * 0.1 * 1.4**m + 1e-9 for m, p in enumerate(plans))


@pytest.mark.slow
def test_without_a_forecast_or_a_season_what_was_lately_there_is_planned_for():
    for settings in (PolicySettings(forecast=False), PolicySettings(season_s=0.0)):
        plans = feed(Forecast(settings), daily, 3 * DAY)
        assert not any(plan.trusted for plan in plans)


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
    assert theirs.trusted == ours.trusted


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
    assert forecast.save()["smoothing"]["level"] is not None
    forecast.adopt(PolicySettings(season_s=3600.0))
    assert forecast.save()["smoothing"]["level"] is None


# ---- the smoothing


def smooth(smoothing, values, since=0):
    for minute, value in enumerate(values, since + 1):
        smoothing.add(minute, value, 0.05)
    return since + len(values)


def test_nothing_added_expects_nothing():
    assert HoltWinters(Season(DAY)).ahead(5, 1) == 0.0


def test_trend_is_damped():
    smoothing = HoltWinters(Season(DAY))
    minute = smooth(smoothing, [1.0 + 0.1 * n for n in range(200)])
    one, ten, many = (smoothing.ahead(minute + steps, steps) for steps in (1, 10, 1000))
    assert one < ten < many < one + 0.1 * 20.0


def test_expectation_is_never_negative():
    smoothing = HoltWinters(Season(DAY))
    minute = smooth(smoothing, [max(0.0, 10.0 - 0.5 * n) for n in range(40)])
    assert smoothing.ahead(minute + 60, 60) >= 0.0


def test_burst_of_a_few_minutes_moves_the_level_little():
    smoothing = HoltWinters(Season(DAY))
    minute = smooth(smoothing, [4.0 + 0.1 * (n % 2) for n in range(100)])
    minute = smooth(smoothing, [20.0] * 3, minute)
    assert smoothing.ahead(minute + 1, 1) < 5.0


def test_burst_that_stays_is_a_level():
    smoothing = HoltWinters(Season(DAY))
    minute = smooth(smoothing, [4.0 + 0.1 * (n % 2) for n in range(100)])
    minute = smooth(smoothing, [12.0] * 30, minute)
    assert smoothing.ahead(minute + 1, 1) == pytest.approx(12.0, rel=0.1)


def test_demand_that_begins_after_silence_is_followed():
    smoothing = HoltWinters(Season(DAY))
    minute = smooth(smoothing, [0.0] * 120 + [5.0] * 30)
    assert smoothing.ahead(minute + 1, 1) == pytest.approx(5.0, rel=0.15)


def test_season_is_unknown_before_its_period_has_passed():
    season = Season(60)
    for minute in range(59):
        season.learn(minute, 1.0 + minute, 0.0)
    assert (season.known, season.at(30)) == (False, 0.0)
    season.learn(59, 60.0, 0.0)
    assert season.known
    assert season.at(45) > season.at(15)


def test_season_adds_nothing_on_average():
    season = Season(120)
    for minute in range(120):
        season.learn(minute, 5.0 + 3.0 * math.sin(2 * math.pi * minute / 120), 0.0)
    assert sum(season.at(m) for m in range(120)) / 120 == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("minutes", [2, 3, 287, 288, 289, 1440, 10_080])
def test_season_is_kept_in_few_parts_whatever_its_period(minutes):
    season = Season(minutes)
    assert 1 <= len(season.parts) <= SEASON_BINS
    for minute in range(2 * minutes):
        season.learn(minute, float(minute % minutes), 0.0)
        assert math.isfinite(season.at(minute))


def test_season_of_another_period_is_not_loaded():
    known, other = Season(60), Season(120)
    for minute in range(60):
        known.learn(minute, float(minute), 0.0)
    other.load(known.save())
    assert not other.known


# ---- the minutes that it is told of


class Story:
    """A gateway of even work, looked at each second."""

    def __init__(self):
        self.now, self.work = 0.0, 0.0
        self.demand, self.planning = Demand(), Planning(PolicySettings(), 0.0)

    def run(self, seconds, rate, silent=False, looked_at=True):
        for _ in range(seconds):
            self.now += 1.0
            self.work += rate
            if not silent:
                self.demand.on_report("a", DemandReading(self.work, self.work * 0.05), self.now)
            if looked_at:
                view = self.demand.view((8.0, 64.0), self.now)
                if view.fresh:
                    self.plan = self.planning.step(view, self.demand, 30.0, self.now)

    @property
    def known(self):
        return self.planning.forecast.save()["recent"]


def test_before_the_first_minute_the_plan_is_what_there_is():
    story = Story()
    story.run(30, 2.0)
    assert 2.0 < story.plan.planned_s < 2.3
    assert story.known == []


def test_each_minute_is_told_once():
    story = Story()
    story.run(301, 2.0)
    assert story.known == [pytest.approx(2.0)] * 5
    assert story.planning.forecast.minute == 5


def test_minute_of_silence_is_skipped_and_not_zero():
    story = Story()
    story.run(121, 2.0)
    story.run(180, 2.0, silent=True)
    story.run(180, 2.0)
    assert all(value == pytest.approx(2.0) for value in story.known)
    assert story.planning.forecast.minute == 8


def test_hour_without_decisions_moves_the_season_on():
    story = Story()
    story.run(61, 2.0)
    story.run(3600, 2.0, looked_at=False)
    story.run(1, 2.0)
    assert story.planning.forecast.minute == 61


def test_time_away_moves_the_season_on_too():
    story = Story()
    story.run(601, 2.0)
    other = Planning(PolicySettings(), 5_000.0)
    other.load(story.planning.save(story.now), 5_000.0 - 1_800.0)
    demand = Demand()
    for second in range(60):
        demand.on_report("b", DemandReading(2.0 * second), 5_000.0 + second)
    view = demand.view((8.0, 64.0), 5_059.0)
    other.step(view, demand, 30.0, 5_059.0)
    assert other.forecast.minute == 10 + 30 + 1
