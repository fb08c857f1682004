"""A spike that came at the same time in two periods of three is expected; others are not."""

from __future__ import annotations

import json

import pytest

from autoscaling.envelope import DAY_S, HOUR_S, MOST, TOLERANCE_S, RecurringSpikes

LEAD_S = 40.0
PLANNED = 10.0


def spiked(spikes, *onsets, rate=30.0, lasts_s=40.0):
    """Signs each second for as long as it lasts, then none until it counts as over."""
    for onset in onsets:
        for second in range(int(lasts_s)):
            spikes.seen(rate, PLANNED, onset + second)
        spikes.seen(0.0, PLANNED, onset + lasts_s + 60.0)
    return spikes


def test_two_at_the_same_minute_of_an_hour_make_a_third_expected_before_it_comes():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S)
    at = 2 * HOUR_S
    assert spikes.expected(LEAD_S, at - TOLERANCE_S - LEAD_S - 1.0) == 0.0
    assert spikes.expected(LEAD_S, at - TOLERANCE_S - LEAD_S + 1.0) == pytest.approx(3.0)
    assert spikes.expected(LEAD_S, at + TOLERANCE_S - 1.0) == pytest.approx(3.0)
    assert spikes.expected(LEAD_S, at + TOLERANCE_S + 1.0) == 0.0


def test_one_alone_is_chance():
    spikes = spiked(RecurringSpikes(), 0.0)
    assert not any(spikes.expected(LEAD_S, HOUR_S + s) for s in range(-200, 200, 5))


def test_two_that_are_no_period_apart_are_chance():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S + 3 * TOLERANCE_S)
    assert not any(spikes.expected(LEAD_S, s) for s in range(3700, 12_000, 10))


def test_one_that_stays_away_is_expected_once_more_and_then_no_longer():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S)
    assert spikes.expected(LEAD_S, 2 * HOUR_S) > 0.0
    assert spikes.expected(LEAD_S, 3 * HOUR_S) > 0.0
    assert spikes.expected(LEAD_S, 4 * HOUR_S) == 0.0


def test_the_highest_of_the_last_times_is_provided_for():
    spikes = spiked(RecurringSpikes(), 0.0, rate=40.0)
    spiked(spikes, HOUR_S, rate=20.0)
    assert spikes.expected(LEAD_S, 2 * HOUR_S) == pytest.approx(4.0)


def test_a_day_is_a_period_and_a_season_of_ones_own_too():
    spikes = spiked(RecurringSpikes(), 1000.0, 1000.0 + DAY_S)
    assert spikes.expected(LEAD_S, 1000.0 + 2 * DAY_S) > 0.0
    spikes = spiked(RecurringSpikes(season_s=900.0), 0.0, 900.0)
    assert spikes.expected(LEAD_S, 1800.0) > 0.0


def test_an_onset_may_be_off_by_the_tolerance():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S + TOLERANCE_S - 1.0)
    assert spikes.expected(LEAD_S, 2 * HOUR_S + TOLERANCE_S - 1.0) > 0.0


def test_what_lasts_is_demand_and_no_spike():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S, lasts_s=1000.0)
    assert spikes.expected(LEAD_S, 2 * HOUR_S) == 0.0


def test_signs_a_moment_apart_are_one_spike():
    spikes = RecurringSpikes()
    for onset in (0.0, HOUR_S):
        for second in (0, 1, 20, 21):
            spikes.seen(30.0, PLANNED, onset + second)
        spikes.seen(0.0, PLANNED, onset + 100.0)
    assert len(spikes.save(2 * HOUR_S)["episodes"]) == 2


def test_it_is_known_after_the_deciders_death_on_another_clock():
    spikes = spiked(RecurringSpikes(), 0.0, HOUR_S)
    saved = json.loads(json.dumps(spikes.save(1.5 * HOUR_S)))
    loaded = RecurringSpikes()
    loaded.load(saved, 100.0)
    assert loaded.expected(LEAD_S, 100.0 + 0.5 * HOUR_S) == pytest.approx(3.0)
    assert loaded.expected(LEAD_S, 100.0) == 0.0


def test_state_is_bounded():
    spikes = spiked(RecurringSpikes(), *(200.0 * n for n in range(MOST + 50)))
    assert len(spikes.save(1e6)["episodes"]) == MOST
