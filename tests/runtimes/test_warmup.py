"""The grid of warm-up batches: what it covers, its bounds, its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtimes import rows
from runtimes.datatypes import DTYPES
from runtimes.errors import LoadError, RunError
from runtimes.types import Batch, Limits, RuntimeSettings, TensorSpec
from runtimes.warmup import batch, briefly, grid, shapes, sizes, warm


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
    made = shapes(settings(edges=(8, 64)), TEXT)
    assert set(made) == {(1, 8), (2, 8), (1, 16), (2, 16)}


def test_batches_leave_optional_inputs_out():
    made = batch(TEXT, 2, 16)
    rows.check(made, TEXT)
    assert set(made.inputs) == {"ids"}


def test_rows_without_length_are_warmed_by_size_alone():
    image = Limits(inputs=(TensorSpec("x", "FP32", (-1, 3, 4, 4)),), outputs=())
    assert shapes(settings(max_size=4), image) == ((4, 1), (2, 1), (1, 1))
    assert batch(image, 4, 1).inputs["x"].shapes == ((3, 4, 4),) * 4


def test_every_shape_is_run_and_progress_told():
    ran, told = [], []
    chosen = settings(edges=(8,), max_size=2, progress=lambda *step: told.append(step))
    warm(chosen, TEXT, lambda made: ran.append((made.rows, int(made.lengths[0]))), 1e9)
    assert ran == [(2, 8), (1, 8)]
    assert told == [("warming", 0.0), ("warming", 0.5), ("warming", 1.0)]


def test_briefly_runs_one_row_of_each_length_and_at_least_one():
    ran = []
    for seconds in (1e9, -1.0):
        briefly(settings(edges=(4, 8), max_size=2), TEXT, ran.append, seconds)
    assert [(made.rows, int(made.lengths[0])) for made in ran] == [(1, 4), (1, 8), (1, 4)]


def test_nothing_is_started_after_the_time_is_up():
    ran = []
    warm(settings(), TEXT, ran.append, -1.0)
    assert len(ran) == 1


def test_batch_that_fails_is_a_load_error_that_says_which():
    def fail(made: Batch) -> None:
        raise RunError("table of 8 places")

    with pytest.raises(LoadError, match=r"2 rows of 16 .* table of 8 places"):
        warm(settings(), TEXT, fail, 1e9)


def test_every_datatype_can_be_warmed():
    for datatype in DTYPES:
        inputs = (TensorSpec("x", datatype, (-1, -1)), TensorSpec("fixed", datatype, (-1, 4)))
        spec = Limits(inputs, outputs=(), length_input="x")
        made = batch(spec, 2, 3)
        rows.check(made, spec)
        assert made.inputs["x"].data.dtype == DTYPES[datatype]
        assert made.inputs["x"].shapes == ((3,), (3,))
        assert made.inputs["fixed"].shapes == ((4,), (4,))
