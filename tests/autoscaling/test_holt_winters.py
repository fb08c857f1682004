"""What a level, a trend and a season expect, and how bursts are kept out of them."""

import math

import pytest

from autoscaling.holt_winters import SEASON_BINS, HoltWinters, Season


def feed(smoothing, values, since=0):
    for minute, value in enumerate(values, since + 1):
        smoothing.add(minute, value, 0.05)
    return since + len(values)


def test_nothing_added_expects_nothing():
    assert HoltWinters().ahead(5, 1) == 0.0


def test_trend_is_damped():
    smoothing = HoltWinters()
    minute = feed(smoothing, [1.0 + 0.1 * n for n in range(200)])
    one, ten, many = (smoothing.ahead(minute + steps, steps) for steps in (1, 10, 1000))
    assert one < ten < many < one + 0.1 * 20.0


def test_expectation_is_never_negative():
    smoothing = HoltWinters()
    minute = feed(smoothing, [max(0.0, 10.0 - 0.5 * n) for n in range(40)])
    assert smoothing.ahead(minute + 60, 60) >= 0.0


def test_burst_of_a_few_minutes_moves_the_level_little():
    smoothing = HoltWinters()
    minute = feed(smoothing, [4.0 + 0.1 * (n % 2) for n in range(100)])
    minute = feed(smoothing, [20.0] * 3, minute)
    assert smoothing.ahead(minute + 1, 1) < 5.0


def test_burst_that_stays_is_a_level():
    smoothing = HoltWinters()
    minute = feed(smoothing, [4.0 + 0.1 * (n % 2) for n in range(100)])
    minute = feed(smoothing, [12.0] * 30, minute)
    assert smoothing.ahead(minute + 1, 1) == pytest.approx(12.0, rel=0.1)


def test_demand_that_begins_after_silence_is_followed():
    smoothing = HoltWinters()
    minute = feed(smoothing, [0.0] * 120 + [5.0] * 30)
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
