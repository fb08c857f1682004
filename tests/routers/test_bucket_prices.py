"""What do buckets cost: padding, the fixed part of a batch, and the rate that is kept up with?"""

from math import inf

import pytest

from routers.api.settings import DispatcherSettings
from routers.estimates.edge_prices import (
    BatchBounds,
    BatchPrices,
    LengthShares,
    padding_price,
    total,
)

BOUNDS = BatchBounds(max_size=32, max_tokens=16384, longest_s=0.045, cycle_s=0.055)


def cost(rows, width):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


def lengths(**weights):
    return LengthShares.of([int(name[1:]) for name in weights], list(weights.values()))


def test_padding_is_what_rows_of_a_bucket_lack_to_its_edge():
    price = padding_price(lengths(l10=3, l20=1))
    assert price(0, 2) == 20.0
    assert price(0, 1) + price(1, 2) == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("edge", "rows"),
    [(8, 32), (128, 32), (512, 9), (4000, 1), (100_000, 1)],
)
def test_full_batch_keeps_rows_tokens_and_seconds_in_bounds(edge, rows):
    assert BOUNDS.fit(cost, edge) == rows


def test_full_batch_keeps_its_tokens_in_bounds():
    assert BatchBounds(32, 1024, inf, 1.0).fit(cost, 256) == 4


def test_bounds_leave_a_row_that_waited_a_whole_cycle_time_for_the_longest_batch():
    bounds = BatchBounds.of(DispatcherSettings((512,), slo_s=0.1, max_slo_share=0.45))
    assert (bounds.longest_s, bounds.cycle_s) == pytest.approx((0.045, 0.055))


@pytest.mark.parametrize("share", [0.9, 1.0, inf])
def test_a_cycle_holds_its_longest_batch(share):
    bounds = BatchBounds.of(DispatcherSettings((512,), slo_s=0.1, max_slo_share=share))
    assert bounds.cycle_s == bounds.longest_s


def test_fixed_size_bounds_the_batch():
    assert BatchBounds.of(DispatcherSettings((512,), fixed_size=4)).max_size == 4


def test_rows_that_come_one_a_cycle_cost_a_batch_each_however_they_are_split():
    prices = BatchPrices(lengths(l8=1, l128=1), cost, BOUNDS).at(1.0)
    alone = (cost(1, 8) + cost(1, 128)) / 2
    assert prices(0, 1) + prices(1, 2) == pytest.approx(alone)
    assert prices(0, 2) == pytest.approx(alone)


def test_full_batches_pay_for_padding_and_share_the_fixed_part():
    prices = BatchPrices(lengths(l8=1, l128=1), cost, BOUNDS).at(inf)
    assert prices(0, 1) == pytest.approx(cost(32, 8) / 64)
    together = cost(32, 68 + 60 * 31 / 33) / 32
    assert prices(0, 2) == pytest.approx(together)
    assert together > prices(0, 1) + prices(1, 2)


def test_a_bucket_that_nothing_arrives_in_costs_nothing():
    assert BatchPrices(lengths(l8=1, l128=0), cost, BOUNDS).at(100.0)(1, 2) == 0.0


@pytest.mark.parametrize("servers", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("edges", [(128,), (8, 128), (8, 64, 128)])
def test_capacity_is_the_rate_at_which_servers_are_just_busy(edges, servers):
    prices = BatchPrices(lengths(l8=7, l64=1, l128=2), cost, BOUNDS)
    rate = prices.capacity(edges, servers)
    busy = rate * total(prices.at(rate), prices.lengths.ends(edges))
    assert busy == pytest.approx(servers, rel=1e-4)


def test_floor_is_below_every_choice_of_edges():
    prices = BatchPrices(lengths(l8=7, l64=1, l128=2), cost, BOUNDS)
    for edges in ((128,), (8, 128), (8, 64, 128)):
        assert total(prices.at(500.0), prices.lengths.ends(edges)) > prices.floor()


def test_edges_between_points_divide_at_the_point_below():
    assert lengths(l8=1, l16=1, l32=1).ends((12, 32)) == [0, 1, 3]
