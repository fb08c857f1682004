"""The histogram of lengths, and the edges chosen by it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routers.api.settings import BucketSettings, DispatcherSettings
from routers.estimates.edge_prices import (
    BatchBounds,
    BatchPrices,
    LengthShares,
    cheapest,
    padding_price,
    total,
)
from routers.policies.edges import EdgeView, LeastSeconds
from routers.policies.registry import EDGES
from routers.shared.edges import EdgeSolver, LengthHistogram, lattice


@pytest.mark.parametrize("longest", [1, 2, 7, 63, 64])
def test_lattice_of_short_models_has_every_length(longest):
    assert lattice(longest) == tuple(range(1, longest + 1))


@pytest.mark.parametrize(("longest", "tile"), [(65, 2), (128, 2), (129, 4), (512, 8)])
def test_lattice_has_every_multiple_of_a_tile_while_that_suffices(longest, tile):
    assert lattice(longest) == (*range(tile, longest, tile), longest)


@pytest.mark.parametrize("longest", [513, 4096, 8192, 131_072, 10_000_000])
def test_lattice_of_long_models_grows_by_a_constant_factor_at_most(longest):
    points = lattice(longest)
    assert len(points) <= 64
    assert points[-1] == longest
    assert all(point % 8 == 0 for point in points[:-1])
    factors = [after / before for before, after in pairwise(points) if after - before > 8]
    assert all(factor < 1.5 for factor in factors)


def test_lattice_has_the_edges_that_it_is_told():
    assert set(lattice(512, (20, 100, 512, 600))) == {*range(8, 513, 8), 20, 100}


def test_every_length_is_counted_at_the_next_point():
    histogram = LengthHistogram((8, 16, 512), 600.0)
    for length in (0, 1, 8, 9, 16, 17, 512, 513):
        histogram.observe(length, 0.0)
    assert histogram.weights(0.0) == (3.0, 2.0, 3.0)


@pytest.mark.parametrize("later_s", [0.0, 10.0, 600.0, 6000.0, 1e9])
def test_a_row_counts_half_after_each_half_life(later_s):
    histogram = LengthHistogram((8, 16), 600.0)
    histogram.observe(8, 5.0)
    histogram.observe(16, 5.0 + later_s)
    old, new = histogram.weights(5.0 + later_s)
    assert new == 1.0
    assert old == pytest.approx(0.5 ** (later_s / 600.0))


def test_long_runs_neither_overflow_nor_lose_what_is_recent():
    """Ten rows a half-life, over 300 of them: the sum is that of the geometric series."""
    histogram = LengthHistogram((8,), 1.0)
    for step in range(3001):
        histogram.observe(8, step / 10)
    assert histogram.weights(300.0)[0] == pytest.approx(1 / (1 - 0.5**0.1))


def cost(rows, width):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


def mix(rng):
    kind = rng.random()
    low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, 512)
    return rng.randint(low, high)


def solver(policy="seconds", rows=2000, frozen=False, pads=True, **buckets):
    """One that has seen `rows` of the mix within its first 60 s."""
    buckets.setdefault("adaptive", True)
    told = DispatcherSettings((512,), pads=pads, frozen=frozen, buckets=BucketSettings(**buckets))
    made = EdgeSolver(told, EDGES[policy]())
    rng = random.Random(5)
    for row in range(rows):
        made.observe(mix(rng), 60.0 * row / rows)
    return made


def all_choices(points, most):
    for count in range(most):
        for chosen in combinations(points[:-1], count):
            yield (*chosen, points[-1])


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    st.integers(1, 4),
    st.sampled_from((None, 1.0, 100.0, 1000.0)),
    st.randoms(use_true_random=False),
)
def test_no_other_edges_are_cheaper(weights, most, rate, rng):
    points = sorted(rng.sample(range(1, 600), len(weights)))
    lengths = LengthShares.of(points, weights)
    bounds = BatchBounds(32, 16384, 0.045, 0.055)
    price = BatchPrices(lengths, cost, bounds).at(rate) if rate else padding_price(lengths)
    found = cheapest(price, points, most)
    assert found[-1] == points[-1]
    assert len(found) <= most
    assert all(before < after for before, after in pairwise(found))
    least = min(total(price, lengths.ends(each)) for each in all_choices(points, most))
    assert total(price, lengths.ends(found)) == pytest.approx(least)


def test_edges_that_save_nothing_are_left_out():
    lengths = LengthShares.of((8, 16, 512), (1, 0, 1))
    assert cheapest(padding_price(lengths), lengths.points, 3) == (8, 512)


def test_an_edge_more_must_be_worth_it():
    lengths = LengthShares.of((8, 16, 512), (50, 1, 50))
    price = padding_price(lengths)  # the edge at 16 saves 400 of 26,416 tokens, 1.5 %
    assert cheapest(price, lengths.points, 3, worth=0.01) == (8, 16, 512)
    assert cheapest(price, lengths.points, 3, worth=0.02) == (16, 512)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.floats(0.02, 2.0))
def test_no_other_edges_have_a_higher_capacity(weights, slo_s):
    points = range(64, 64 * len(weights) + 1, 64)
    bounds = BatchBounds.of(DispatcherSettings((points[-1],), slo_s=slo_s))
    lengths = LengthShares.of(points, weights)
    prices = BatchPrices(lengths, cost, bounds)
    found = LeastSeconds().best(EdgeView(lengths, (points[-1],), 3, cost, bounds, 1.0))
    best = max(prices.capacity(each, 1.0) for each in all_choices(points, 3))
    assert found.capacity >= 0.99 * best
    assert found.min_waste <= found.waste * (1 + 1e-9)


def test_padding_is_minimised_with_all_edges():
    found = solver("padding").solve((512,), cost, 60.0)
    assert len(found) == 8
    assert {32, 128, 512} <= set(found)


def test_seconds_are_minimised_with_one_edge_a_band_of_the_mix():
    assert solver().solve((512,), cost, 60.0) == (32, 128, 512)


def test_more_time_or_more_replicas_make_more_edges_worth_their_batches():
    def edges(slo_s, servers):
        told = DispatcherSettings((512,), slo_s=slo_s, buckets=BucketSettings(adaptive=True))
        made = EdgeSolver(told, LeastSeconds())
        rng = random.Random(5)
        for _ in range(2000):
            made.observe(mix(rng), 0.0)
        return len(made.solve((512,), cost, 60.0, servers))

    assert edges(0.03, 1) < edges(0.1, 1) < edges(1.0, 1)
    assert edges(0.1, 1) < edges(0.1, 4)


def test_a_batch_that_costs_no_fixed_part_gets_all_edges():
    found = solver().solve((512,), lambda rows, width: 1e-5 * rows * width, 60.0)
    assert len(found) == 8


@pytest.mark.parametrize(("max_edges", "edges"), [(1, None), (2, (128, 512)), (3, (32, 128, 512))])
def test_edges_are_at_most_as_many_as_allowed(max_edges, edges):
    assert solver(max_edges=max_edges).solve((512,), cost, 60.0) == edges


def test_more_edges_than_allowed_give_way_though_fewer_cost_more():
    assert solver(max_edges=2).solve((32, 128, 512), cost, 60.0) == (128, 512)


def test_edges_stay_while_better_ones_gain_little():
    made = solver(min_gain=0.5)
    assert made.solve((32, 104, 128, 512), cost, 60.0) is None
    assert 0 < made.state.min_waste < made.state.waste
    assert made.state.switches == 0
    assert made.solve((512,), cost, 61.0) == (32, 128, 512)
    assert made.state.switches == 1


def test_edges_follow_a_change_of_lengths():
    made = solver(half_life_s=60.0)
    edges = made.solve((512,), cost, 60.0)
    rng = random.Random(6)
    for row in range(4000):
        made.observe(rng.choice((300, 512)), 60.0 + 600.0 * row / 4000)
    assert made.solve(edges, cost, 660.0) == (304, 512)


@pytest.mark.parametrize(("rows", "acts"), [(499, False), (600, True)])
def test_few_rows_change_nothing(rows, acts):
    assert (solver(rows=rows).solve((512,), cost, 60.0) is not None) is acts


def test_no_server_changes_nothing():
    assert solver().solve((512,), cost, 60.0, servers=0.0) is None


def test_it_is_due_once_a_period():
    made = solver(solve_every_s=60.0)
    assert not made.due(59.0)
    assert made.due(60.0)
    made.solve((512,), cost, 60.0)
    assert not made.due(119.0)
    assert made.due(120.0)


@pytest.mark.parametrize(
    "held", [{"frozen": True}, {"adaptive": False}, {"fixed_shapes": True}, {"pads": False}]
)
def test_edges_that_may_not_change_are_never_due(held):
    assert not solver(**held).due(1e6)


def test_frozen_solver_goes_on_from_where_it_stood():
    made = solver()
    frozen = DispatcherSettings((512,), frozen=True, buckets=BucketSettings(adaptive=True))
    made.adopt(frozen, LeastSeconds())
    for _ in range(5000):
        made.observe(512, 61.0)
    assert not made.due(61.0)
    made.adopt(replace(frozen, frozen=False), LeastSeconds())
    assert made.due(61.0)
    assert made.solve((512,), cost, 61.0) == (32, 128, 512)


def test_new_lengths_start_a_new_count():
    made = solver()
    longer = DispatcherSettings((1024,), buckets=BucketSettings(adaptive=True))
    made.adopt(longer, LeastSeconds())
    assert made.solve((1024,), cost, 60.0) is None
