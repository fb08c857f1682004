"""Do solved edges keep what they are chosen for: little padding, or requests in time?"""

from itertools import combinations
from statistics import mean

import pytest

from tests.simulation.benches.edges import solved
from tests.simulation.benches.in_time import Traffic, in_time
from tests.simulation.benches.lengths import ALL, MIX, exact_edges, padding


def test_exact_edges_pad_least_of_all_choices():
    lengths = [1, 2, 2, 5, 9, 9, 9, 14, 20, 21]
    points = sorted(set(lengths))
    choices = [(*chosen, 21) for chosen in combinations(points[:-1], 2)]
    least = min(padding(lengths, each) for each in choices)
    assert padding(lengths, exact_edges(lengths, 3)) == pytest.approx(least)


@pytest.mark.parametrize("lengths", ALL, ids=lambda lengths: lengths.name)
def test_edges_found_in_a_stream_pad_little_more_than_the_best_of_a_fresh_sample(lengths):
    fresh = lengths.sample(4000, seed=2)
    best = padding(fresh, exact_edges(fresh, 8))
    found = solved(lengths, "padding", 8)
    assert best <= padding(fresh, found.edges) <= 1.1 * best


def test_edges_that_minimise_seconds_answer_more_in_time_and_sooner_than_least_padding():
    traffic = Traffic(MIX, 800.0, 8000)
    seconds, pads = (
        in_time(traffic, kind, solved(MIX, kind, 8).edges, seeds=2)
        for kind in ("seconds", "padding")
    )
    assert mean(seconds.shares) >= 0.99
    assert mean(seconds.shares) > mean(pads.shares)
    assert seconds.p50_ms < pads.p50_ms
    assert seconds.padding > pads.padding
