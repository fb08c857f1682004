"""What every policy for bucket edges must keep, whichever is chosen, and what each one seeks."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routers.api.settings import BucketSettings, DispatcherSettings, PolicyNames
from routers.estimates.edge_prices import BatchBounds, LengthShares
from routers.policies.edges import EdgeView
from routers.policies.registry import EDGES
from routers.shared.edges import EdgeSolver
from routers.simulation.simulator import Arrival, SimDevice, simulate

LONGEST = 512
FOLLOWS = BucketSettings(adaptive=True, solve_every_s=1.0, min_gain=0.0)
SETTINGS = DispatcherSettings((LONGEST,), max_size=8, slo_s=0.2, buckets=FOLLOWS)


def cost(rows, width):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


def view(weights, points=None, edges=None, most=8, costs=cost):
    points = points or tuple(range(64, 64 * len(weights) + 1, 64))
    lengths = LengthShares.of(points, weights)
    bounds = BatchBounds.of(SETTINGS)
    return EdgeView(lengths, edges or (points[-1],), most, costs, bounds, 1.0)


WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any)
OVER_ALL = pytest.mark.parametrize("name", EDGES)


@OVER_ALL
@given(weights=WEIGHTS, most=st.integers(1, 12), rng=st.randoms(use_true_random=False))
def test_edges_ascend_to_the_longest_row_and_are_no_more_than_allowed(name, weights, most, rng):
    points = tuple(sorted(rng.sample(range(1, 600), len(weights))))
    found = EDGES[name]().best(view(weights, points, most=most))
    if found is None:
        assert (name, len(points)) == ("seconds", 1), "no length costs more than another"
        return
    assert found.edges[-1] == points[-1]
    assert set(found.edges) <= set(points)
    assert 1 <= len(found.edges) <= most
    assert all(before < after for before, after in pairwise(found.edges))


@OVER_ALL
@given(weights=WEIGHTS.filter(lambda each: len(each) > 1), most=st.integers(1, 12))
def test_of_its_own_edges_it_finds_nothing_better_and_of_any_edges_the_same(name, weights, most):
    policy, asked = EDGES[name](), view(weights, most=most)
    first = policy.best(asked)
    assert policy.best(asked) == first, "asking changes nothing"
    again = policy.best(replace(asked, edges=first.edges))
    assert again.min_waste >= again.waste * (1 - 1e-9)
    assert first.min_waste <= first.waste + 1e-9


def mix(rng):
    kind = rng.random()
    low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, LONGEST)
    return rng.randint(low, high)


def solver(name, rows=2000):
    made, rng = EdgeSolver(SETTINGS, EDGES[name]()), random.Random(5)
    for row in range(rows):
        made.observe(mix(rng), row / rows)
    return made


@OVER_ALL
def test_edges_settle_while_lengths_stay_as_they_are(name):
    made = solver(name)
    edges = made.solve((LONGEST,), cost, 1.0)
    assert 1 < len(edges) <= FOLLOWS.max_edges
    assert made.solve(edges, cost, 2.0) is None
    assert made.state.waste == pytest.approx(made.state.min_waste)
    assert made.state.switches == 1


@OVER_ALL
def test_another_policy_starts_from_the_lengths_that_were_counted(name):
    made = solver("seconds")
    made.adopt(SETTINGS, EDGES[name]())
    assert made.solve((LONGEST,), cost, 1.0) == solver(name).solve((LONGEST,), cost, 1.0)


def arrivals(count=1200):
    rng, now = random.Random(3), 0.0
    for _ in range(count):
        now += rng.expovariate(300.0)
        yield Arrival(now, (mix(rng),), 0.2, 2.0)


def ran(name):
    settings = replace(SETTINGS, policies=PolicyNames(edges=name))
    return simulate(settings, arrivals(), [SimDevice("r", cost)])


@OVER_ALL
def test_every_request_ends_once_while_edges_move_and_the_same_again(name):
    first, again = ran(name), ran(name)
    assert all(outcome.answers + outcome.left == 1 for outcome in first.outcomes)
    assert sum(outcome.in_slo for outcome in first.outcomes) > 1150
    for end in first.ends:
        assert (end.waiting_rows, end.leases, end.drift) == (0, 0, 0)
        assert end.edge_switches > 0
        assert end.edges[-1] == LONGEST
    assert [end.edges for end in again.ends] == [end.edges for end in first.ends]
    times = [[each.answered_at for each in found.outcomes] for found in (first, again)]
    assert times[0] == times[1]


# ---- what each one seeks


def test_quantiles_give_every_bucket_as_many_rows():
    found = EDGES["quantiles"]().best(view([1] * 12, most=4))
    assert found.edges == (192, 384, 576, 768)
    assert (found.waste, found.min_waste) == (0.75, pytest.approx(0.0))


def test_quantiles_take_the_point_that_comes_nearest():
    found = EDGES["quantiles"]().best(view([4, 5, 1], most=2))
    assert found.edges == (64, 192)
    assert found.min_waste == pytest.approx(0.1)
    assert EDGES["quantiles"]().best(view([2, 5, 3], most=2)).edges == (128, 192)


@pytest.mark.parametrize("weights", [[10, 0, 0], [0, 0, 10]])
def test_quantiles_of_one_length_are_few(weights):
    assert len(EDGES["quantiles"]().best(view(weights, most=8)).edges) <= 2


def test_policies_differ_in_what_they_save():
    """Most rows are short, and long ones cost most. Padding takes every edge that is allowed;
    seconds those that save more than smaller batches cost; quantiles one where rows are many."""
    shares = [60, 20, 8, 4, 2, 2, 2, 2]
    edges = {name: EDGES[name]().best(view(shares, most=8)).edges for name in EDGES}
    assert edges["padding"] == (64, 128, 192, 256, 320, 384, 448, 512)
    assert edges["seconds"] == (64, 128, 256, 512)
    assert edges["quantiles"] == (64, 128, 192, 512)


def test_only_seconds_ask_what_length_costs():
    flat = view([1, 1, 1], costs=lambda rows, width: 0.01)
    assert EDGES["seconds"]().best(flat) is None
    assert EDGES["padding"]().best(flat).edges == (64, 128, 192)
    assert EDGES["quantiles"]().best(flat).edges == (64, 128, 192)
