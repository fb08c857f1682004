"""Do solved edges keep what they are chosen for: requests in time?"""

from itertools import combinations
from statistics import mean

import pytest

from routers.api.settings import BucketSettings
from routers.simulation.simulator import SimDevice, simulate
from tests.simulation.benches.edges import solved
from tests.simulation.benches.in_time import Traffic, in_time, service_s, settings_of
from tests.simulation.benches.lengths import MIX, exact_edges, padding


def test_exact_edges_pad_least_of_all_choices():
    lengths = [1, 2, 2, 5, 9, 9, 9, 14, 20, 21]
    points = sorted(set(lengths))
    choices = [(*chosen, 21) for chosen in combinations(points[:-1], 2)]
    least = min(padding(lengths, each) for each in choices)
    assert padding(lengths, exact_edges(lengths, 3)) == pytest.approx(least)


def test_edges_that_minimise_seconds_answer_more_in_time_and_sooner_than_least_padding():
    traffic = Traffic(MIX, 800.0, 4000)
    least_padding = tuple(exact_edges(MIX.sample(4000, seed=1), 8))
    seconds = in_time(traffic, "seconds", solved(MIX), seeds=2)
    pads = in_time(traffic, "padding", least_padding, seeds=2)
    assert mean(seconds.shares) >= 0.99
    assert mean(seconds.shares) > mean(pads.shares)
    assert seconds.p50_ms < pads.p50_ms
    assert seconds.padding > pads.padding


def test_edges_follow_the_traffic_and_disturb_nothing_that_waits():
    """Powers of two to begin with, and a first look after a second."""
    buckets = BucketSettings(adaptive=True, solve_every_s=1.0)
    settings = settings_of(MIX, (16, 32, 64, 128, 256, 512), buckets)
    result = simulate(settings, Traffic(MIX, 800.0, 2400).arrivals(1), [SimDevice("a", service_s)])
    before = {batch.bucket for at, batch in result.batches if at < 1.0}
    after = {batch.bucket for at, batch in result.batches if at > 2.0}
    assert {16, 32, 64, 128, 512} <= before
    assert after == {32, 128, 512}
    assert all(outcome.answers == 1 for outcome in result.outcomes)
    assert result.share_in_slo() >= 0.97
