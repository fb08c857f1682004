"""The rate of a model's demand just now, where seconds matter."""

from __future__ import annotations

import random

import pytest

from autoscaling.recent_rate import WINDOWS_S, recent_rate

WORK_S = 0.02


def rates(arrivals, now):
    """Of requests of `WORK_S` at these times."""
    return [(w, sum(now - w < at <= now for at in arrivals) * WORK_S / w) for w in WINDOWS_S]


def read(arrivals, now):
    return recent_rate(rates(arrivals, now), WORK_S)


def every(seconds, begin, end):
    return [begin + n * seconds for n in range(int((end - begin) / seconds))]


def test_nothing_known_is_nothing_asked_for():
    assert recent_rate([], 0.0) == 0.0
    assert read([], 100.0) == 0.0


def test_steady_demand_is_read_over_the_longest_window():
    assert read(every(0.125, 0.0, 100.0), 100.0) == pytest.approx(0.16, rel=0.02)


def test_demand_that_has_ended_is_read_as_ended_in_seconds():
    arrivals = every(0.125, 0.0, 100.0)
    assert read(arrivals, 100.5) > 0.1
    assert read(arrivals, 104.0) < 0.03


def test_demand_that_has_begun_is_read_as_begun_in_seconds():
    arrivals = every(0.125, 100.0, 110.0)
    assert read(arrivals, 100.5) < 0.05
    assert read(arrivals, 104.0) > 0.08


def test_a_single_request_is_no_demand_of_a_second():
    assert read([99.9], 100.0) < WORK_S / 4


@pytest.mark.parametrize("rate", [0.5, 2.0, 10.0])
def test_chance_moves_it_little(rate):
    rng, now, arrivals = random.Random(1), 0.0, []
    while (now := now + rng.expovariate(rate)) < 2000.0:
        arrivals.append(now)
    found = [read(arrivals, float(at)) for at in range(100, 2000, 7)]
    off = [each for each in found if not 0.5 * rate * WORK_S < each < 2.0 * rate * WORK_S]
    assert len(off) <= 0.06 * len(found)
