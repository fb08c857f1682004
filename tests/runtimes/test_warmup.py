"""Warm-up batches, and shapes that were prepared beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtimes import rows
from runtimes.errors import LoadError, RunError
from runtimes.types import DTYPES, Batch, Limits, RuntimeSettings, TensorSpec
from runtimes.warmup import (
    CapturedShapes,
    batch,
    briefly,
    edge_of,
    fitting,
    fixed_edges,
    grid,
    shapes,
    sizes,
    warm,
)


@pytest.mark.parametrize(
    ("max_size", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))],
)
def test_sizes_double_up_to_the_largest(max_size, expected):
    assert sizes(max_size) == expected


@pytest.mark.parametrize(
    ("edges", "max_size", "max_tokens", "expected"),
    [
        ((8, 16), 2, 1000, [(2, 16), (1, 16), (2, 8), (1, 8)]),  # the most tokens first
        ((16,), 8, 50, [(3, 16), (2, 16), (1, 16)]),
        ((128,), 8, 64, [(1, 128)]),
        ((), 8, 64, []),
    ],
)
def test_every_edge_gets_every_size_within_the_bound_on_tokens(
    edges, max_size, max_tokens, expected
):
    made = list(grid(edges, max_size, max_tokens))
    assert sorted(made) == sorted(expected)
    tokens = [size * length for size, length in made]
    assert tokens == sorted(tokens, reverse=True)


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


PREPARED = ((1, 16), (8, 16), (1, 64), (4, 64))


@pytest.mark.parametrize(
    ("rows", "length", "shape"),
    [
        (1, 1, (1, 16)),
        (1, 16, (1, 16)),
        (1, 17, (1, 64)),
        (2, 16, (8, 16)),
        (2, 17, (4, 64)),
        (5, 17, None),
        (1, 65, None),
        (9, 1, None),
    ],
)
def test_least_shape_that_holds_the_batch(rows, length, shape):
    assert fitting(rows, length, PREPARED) == shape


def test_edge_is_the_next_one_up_or_the_length_itself():
    assert [edge_of(length, (64, 16)) for length in (1, 16, 17, 64, 65)] == [16, 16, 64, 64, 65]


def test_fixed_edges_end_at_the_longest_row():
    ids = TensorSpec("ids", "INT64", (-1, -1))
    limits = Limits((ids,), (), max_length=40, length_input="ids")
    settings = RuntimeSettings("m", "torch", None, Path("unused"), edges=(16, 32, 64))
    assert fixed_edges(settings, limits) == (16, 32, 40)
    assert fixed_edges(settings, Limits((ids,), ())) == ()


class Graphs:
    """Stands in for a device: remembers captures and refuses a second one of a shape."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def capture(self, shape: tuple[int, int]) -> str:
        assert shape not in self.made
        self.made.append(shape)
        return f"graph {shape}"


def test_captured_shapes_are_replayed_and_others_run_as_they_come():
    graphs = Graphs()
    shapes = CapturedShapes(PREPARED, graphs.capture)
    assert shapes.shape_for(2, 10) == (2, 10)
    shapes.capture((4, 64))
    shapes.capture((4, 64))
    assert graphs.made == [(4, 64)]
    assert shapes.shape_for(2, 10) == (4, 64)
    assert shapes.replay_of((4, 64)) == "graph (4, 64)"
    assert shapes.shape_for(5, 10) == (5, 10)
    assert shapes.replay_of((5, 10)) is None


def test_shape_that_was_not_wanted_is_not_captured():
    graphs = Graphs()
    shapes = CapturedShapes(PREPARED, graphs.capture)
    shapes.capture((3, 3))
    assert not graphs.made


def test_nothing_is_replayed_after_the_end():
    shapes = CapturedShapes(PREPARED, Graphs().capture)
    shapes.capture((1, 16))
    shapes.clear()
    shapes.capture((1, 16))
    assert shapes.captured == ()
    assert shapes.shape_for(1, 3) == (1, 3)
