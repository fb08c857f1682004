"""The grid of warm-up batches: what it covers, its bounds, its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtimes import rows
from runtimes.datatypes import DTYPES
from runtimes.types import Limits, RuntimeSettings, TensorSpec
from runtimes.warmup import batch, batches, grid, sizes


@pytest.mark.parametrize(
    ("max_size", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))],
)
def test_sizes_double_up_to_the_largest(max_size, expected):
    assert sizes(max_size) == expected


def test_every_edge_gets_every_size():
    assert set(grid((8, 16), 2, 1000)) == {(1, 8), (2, 8), (1, 16), (2, 16)}


def test_tokens_bound_the_rows():
    assert all(size * length <= 64 for size, length in grid((8, 16, 32), 32, 64))


def test_largest_size_that_fits_is_tried():
    assert (3, 16) in set(grid((16,), 8, 50))


def test_single_row_longer_than_the_token_bound_is_still_tried():
    assert list(grid((128,), 8, 64)) == [(1, 128)]


def test_most_tokens_come_first():
    tokens = [size * length for size, length in grid((8, 64), 8, 512)]
    assert tokens == sorted(tokens, reverse=True)


def test_no_edges_give_nothing():
    assert list(grid((), 8, 64)) == []


TEXT = Limits(
    inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1))),
    outputs=(),
    length_input="ids",
    mask_input="mask",
    optional_inputs=("mask",),
    max_length=16,
    max_rows=2,
)


def settings(**fields: Any) -> RuntimeSettings:
    return RuntimeSettings("m", "torch", None, Path("unused"), **fields)


def test_batches_stay_within_what_the_model_takes():
    made = batches(settings(edges=(8, 64)), TEXT)
    shapes = {(one.rows, int(one.lengths[0])) for one in made}
    assert shapes == {(1, 8), (2, 8), (1, 16), (2, 16)}


def test_batches_leave_optional_inputs_out():
    rows.check(batches(settings(), TEXT)[0], TEXT)
    assert set(batches(settings(), TEXT)[0].inputs) == {"ids"}


def test_rows_without_length_are_warmed_by_size_alone():
    image = Limits(inputs=(TensorSpec("x", "FP32", (-1, 3, 4, 4)),), outputs=())
    made = batches(settings(max_size=4), image)
    assert [one.rows for one in made] == [4, 2, 1]
    assert made[0].inputs["x"].shapes[0] == (3, 4, 4)


def test_every_datatype_can_be_warmed():
    for datatype in DTYPES:
        spec = Limits(inputs=(TensorSpec("x", datatype, (-1, -1)),), outputs=(), length_input="x")
        made = batch(spec, 2, 3)
        rows.check(made, spec)
        assert made.inputs["x"].data.dtype == DTYPES[datatype]
