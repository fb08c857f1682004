"""The grid of warm-up batches: what it covers, its bounds, its order."""

from __future__ import annotations

import pytest

from runtimes.warmup import grid, sizes


@pytest.mark.parametrize(
    ("max_size", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))],
)
def test_sizes_double_up_to_the_largest(max_size, expected):
    assert sizes(max_size) == expected


def test_every_edge_gets_every_size():
    assert set(grid((8, 16), 2, 1000)) == {(1, 8), (2, 8), (1, 16), (2, 16)}


def test_tokens_bound_the_rows():
    assert all(rows * length <= 64 for rows, length in grid((8, 16, 32), 32, 64))


def test_largest_size_that_fits_is_tried():
    assert (3, 16) in set(grid((16,), 8, 50))


def test_single_row_longer_than_the_token_bound_is_still_tried():
    assert list(grid((128,), 8, 64)) == [(1, 128)]


def test_most_tokens_come_first():
    tokens = [rows * length for rows, length in grid((8, 64), 8, 512)]
    assert tokens == sorted(tokens, reverse=True)


def test_no_edges_give_nothing():
    assert list(grid((), 8, 64)) == []
