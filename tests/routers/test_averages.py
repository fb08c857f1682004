"""Averages over continuous time, and how busy the replicas are."""

from __future__ import annotations

import pytest

from routers.estimates.averages import DecayingRate, TimeAverage, Utilisation


def test_steady_lumps_average_to_their_rate():
    rate = DecayingRate(0.5)
    for n in range(1, 200):
        rate.add(0.02, 0.025 * n)
    assert rate.read(199 * 0.025) == pytest.approx(0.8, rel=0.05)


def test_silence_decays_by_the_window():
    rate = DecayingRate(2.0)
    rate.add(2.0, 1.0)
    assert rate.read(1.0) == 1.0
    assert rate.read(3.0) == pytest.approx(1 / 2.718281828)


def test_ten_lumps_at_once_count_as_one_ten_times_larger():
    one, ten = DecayingRate(1.0), DecayingRate(1.0)
    one.add(10.0, 5.0)
    for _ in range(10):
        ten.add(1.0, 5.0)
    assert ten.read(6.0) == pytest.approx(one.read(6.0))


def test_first_level_is_believed():
    assert TimeAverage(1.0).report(3.0, 100.0) == 3.0


def test_level_is_averaged_by_how_long_it_held():
    level = TimeAverage(1.0)
    now = 0.0
    for _ in range(20):
        level.report(1.0, now)
        level.report(0.0, now + 0.09)  # nine tenths of the time
        now += 0.1
    assert level.report(1.0, now) == pytest.approx(0.9, abs=0.05)


def test_how_often_a_level_is_told_does_not_matter():
    rarely, often = TimeAverage(1.0), TimeAverage(1.0)
    for level in (rarely, often):
        level.report(1.0, 0.0)
        level.report(0.0, 0.0)
    for n in range(100):
        often.report(0.0, 0.01 * n)
    assert often.report(0.0, 1.0) == pytest.approx(rarely.report(0.0, 1.0))


def test_it_starts_idle():
    assert Utilisation().share == 0.0


def test_a_constant_share_is_approached_within_a_few_seconds():
    used = Utilisation()
    for step in range(51):
        used.advance(0.6, step * 0.1)
    assert used.share == pytest.approx(0.6, abs=0.01)


def test_how_often_it_is_told_does_not_matter():
    often, seldom = Utilisation(), Utilisation()
    for step in range(101):
        often.advance(0.8, step * 0.01)
    seldom.advance(0.8, 0.0)
    seldom.advance(0.8, 1.0)
    assert often.share == pytest.approx(seldom.share)


def test_two_steps_at_one_time_count_once():
    used = Utilisation()
    used.advance(1.0, 0.0)
    used.advance(1.0, 1.0)
    before = used.share
    used.advance(0.0, 1.0)
    assert used.share == before


def test_work_served_for_others_counts_by_replica_and_fades():
    used = Utilisation()
    used.advance(0.0, 0.0)
    used.served_elsewhere(0.4, replicas=4)
    assert used.share == pytest.approx(0.1)
    used.advance(0.0, 10.0)
    assert used.share < 0.001


def test_it_never_exceeds_one():
    used = Utilisation()
    used.served_elsewhere(100.0, replicas=1)
    assert used.share == 1.0
