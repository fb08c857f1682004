"""Which lengths does the histogram tell apart, and how fast does it forget?"""

from itertools import pairwise

import pytest

from routers.buckets.edges import LengthHistogram, lattice


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
