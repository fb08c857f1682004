"""What solved bucket edges keep, whatever lengths arrive."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routers.api.settings import BucketSettings, DispatcherSettings
from routers.policies.edges import BatchBounds, EdgeSolver, EdgeView, LengthShares, best_edges
from routers.simulation.simulator import Arrival, SimDevice, simulate

LONGEST = 512
FOLLOWS = BucketSettings(adaptive=True, solve_every_s=1.0, min_gain=0.0)
SETTINGS = DispatcherSettings((LONGEST,), max_size=8, slo_s=0.2, buckets=FOLLOWS)
WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any)


def cost(rows, width):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


def view(weights, points=None, most=8, costs=cost):
    points = points or tuple(range(64, 64 * len(weights) + 1, 64))
    lengths = LengthShares.of(points, weights)
    return EdgeView(lengths, (points[-1],), most, costs, BatchBounds.of(SETTINGS), 1.0)


@given(weights=WEIGHTS, most=st.integers(1, 12), rng=st.randoms(use_true_random=False))
def test_edges_ascend_to_the_longest_row_and_are_no_more_than_allowed(weights, most, rng):
    points = tuple(sorted(rng.sample(range(1, 600), len(weights))))
    found = best_edges(view(weights, points, most=most))
    if found is None:
        assert len(points) == 1, "no length costs more than another"
        return
    assert found.edges[-1] == points[-1]
    assert set(found.edges) <= set(points)
    assert 1 <= len(found.edges) <= most
    assert all(before < after for before, after in pairwise(found.edges))


@given(weights=WEIGHTS.filter(lambda each: len(each) > 1), most=st.integers(1, 12))
def test_of_its_own_edges_nothing_better_is_found(weights, most):
    asked = view(weights, most=most)
    first = best_edges(asked)
    again = best_edges(replace(asked, edges=first.edges))
    assert again.min_waste >= again.waste * (1 - 1e-9)
    assert first.min_waste <= first.waste + 1e-9


def test_an_edge_must_save_more_than_smaller_batches_cost():
    """Most rows are short, and long ones cost most."""
    assert best_edges(view([60, 20, 8, 4, 2, 2, 2, 2])).edges == (64, 128, 256, 512)
    assert best_edges(view([1, 1, 1], costs=lambda rows, width: 0.01)) is None


def mix(rng):
    kind = rng.random()
    low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, LONGEST)
    return rng.randint(low, high)


def test_edges_settle_while_lengths_stay_as_they_are():
    solver, rng = EdgeSolver(SETTINGS), random.Random(5)
    for row in range(2000):
        solver.observe(mix(rng), row / 2000)
    edges = solver.solve((LONGEST,), cost, 1.0)
    assert 1 < len(edges) <= FOLLOWS.max_edges
    assert solver.solve(edges, cost, 2.0) is None
    assert solver.state.waste == pytest.approx(solver.state.min_waste)
    assert solver.state.switches == 1


def test_every_request_ends_once_while_edges_move():
    rng, now, arrivals = random.Random(3), 0.0, []
    for _ in range(1200):
        now += rng.expovariate(300.0)
        arrivals.append(Arrival(now, (mix(rng),), 0.2, 2.0))
    found = simulate(SETTINGS, arrivals, [SimDevice("r", cost)])
    assert all(outcome.answers == 1 for outcome in found.outcomes)
    assert sum(outcome.in_slo for outcome in found.outcomes) > 1150
    assert (found.end.waiting_rows, found.end.leases, found.end.drift) == (0, 0, 0)
    assert found.end.edge_switches > 0
    assert found.end.edges[-1] == LONGEST
