"""Shapes prepared beforehand: which holds a batch, and which were captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.cuda.captured import CapturedShapes
from runtimes.shapes import edge_of, fitting, fixed_edges
from runtimes.types import Limits, RuntimeSettings, TensorSpec

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
