"""Rows of different shapes run apart and come back in order; what fits no shape is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtimes.equal_shapes import EqualShapes
from runtimes.errors import BadRows, LoadError, RunError, Unhealthy
from runtimes.types import (
    Batch,
    Limits,
    Ragged,
    Result,
    RowShapes,
    RuntimeSettings,
    StageTimes,
    TensorSpec,
)

SHAPES = RowShapes(None, ((1, (1, 2, 2)), (4, (1, 3, 3)), (4, (1, 1, 9))))


class Sums:
    """Gives each row's sum and the row itself; fails on rows that differ, as a device would."""

    def __init__(self, **changes: object) -> None:
        inputs = (TensorSpec("image", "FP32", (-1, 1, -1, -1)),)
        outputs = (TensorSpec("sum", "FP32", (-1,)), TensorSpec("same", "FP32", (-1, 1, -1, -1)))
        self.own = replace(Limits(inputs=inputs, outputs=outputs), **changes)
        self.batches: list[Batch] = []
        self.broken = self.closed = False

    def load(self) -> None: ...
    def warm(self) -> None: ...

    def health(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def limits(self) -> Limits:
        return self.own

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        image = batch.inputs["image"]
        if self.broken or len(set(image.shapes)) > 1:
            raise RunError("no")
        rows = image.data.reshape(batch.rows, -1)
        outputs = {"sum": Ragged("FP32", rows.sum(axis=1), ((),) * batch.rows), "same": image}
        return Result(outputs, StageTimes(run_s=1.0), batch.rows)


def wrapped(inner: Sums, shapes: RowShapes = SHAPES) -> EqualShapes:
    settings = RuntimeSettings("m", "sums", None, Path("."), max_size=4, row_shapes=shapes)
    made = EqualShapes(inner, settings)
    made.load()
    return made


def batch(*shapes: tuple[int, ...], lengths: list[int] | None = None) -> Batch:
    """Row n is full of n + 1."""
    data = np.concatenate(
        [np.full(int(np.prod(s)), n + 1, np.float32) for n, s in enumerate(shapes)]
    )
    found = lengths or [1 if shape == (1, 2, 2) else 4 for shape in shapes]
    return Batch(len(shapes), np.array(found, np.int64), {"image": Ragged("FP32", data, shapes)})


def test_equal_rows_run_at_once():
    inner = Sums()
    result = wrapped(inner).run(batch((1, 2, 2), (1, 2, 2)))
    assert result.outputs["sum"].data.tolist() == [4, 8]
    assert len(inner.batches) == 1
    assert result.padded_tokens == 2


def test_mixed_rows_run_by_shape_and_come_back_in_order():
    inner = Sums()
    given = batch((1, 3, 3), (1, 2, 2), (1, 1, 9), (1, 3, 3), (1, 2, 2))
    result = wrapped(inner).run(given)
    assert result.outputs["sum"].data.tolist() == [9, 8, 27, 36, 20]
    assert (result.outputs["same"].data == given.inputs["image"].data).all()
    assert result.outputs["same"].shapes == given.inputs["image"].shapes
    assert [each.rows for each in inner.batches] == [2, 2, 1]
    assert result.times.run_s == 3.0
    assert result.padded_tokens == 14


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (batch((1, 2, 3)), "known are"),
        (batch((1, 2, 2), lengths=[4]), "of length 4"),
        (batch((2, 2, 2)), "must be"),
    ],
)
def test_rows_of_no_known_shape_are_the_callers_fault(given, said):
    with pytest.raises(BadRows, match=said):
        wrapped(Sums()).run(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": (TensorSpec("image", "FP32", (-1, -1, -1, 1)),)}, r"rows of \[-1, -1, 1\]"),
        ({"inputs": (TensorSpec("image", "FP32", (-1, 5)),)}, "one input of 4 axes"),
        (
            {"inputs": tuple(TensorSpec(name, "FP32", (-1, 1, -1, -1)) for name in "ab")},
            "one input of 4 axes",
        ),
        (
            {"inputs": (*Sums().own.inputs, TensorSpec("more", "FP32", (-1, 2)))},
            "also needs more",
        ),
    ],
)
def test_a_model_without_a_place_for_the_rows_does_not_start(changes, said):
    inner = Sums(**changes)
    with pytest.raises(LoadError, match=said):
        wrapped(inner)
    assert inner.closed


def test_an_input_may_be_named():
    inputs = tuple(TensorSpec(name, "FP32", (-1, 1, -1, -1)) for name in ("image", "other"))
    inner = Sums(inputs=inputs, optional_inputs=("other",))
    made = wrapped(inner, replace(SHAPES, input="image"))
    assert made.limits().row_shapes == replace(SHAPES, input="image")
    with pytest.raises(LoadError, match="'x' is no input of 4 axes"):
        wrapped(inner, replace(SHAPES, input="x"))


def test_warm_up_runs_every_length_with_its_own_shape():
    inner = Sums()
    shapes = RowShapes(None, ((1, (1, 2, 2)), (9, (1, 3, 3))))
    wrapped(inner, shapes).warm()
    seen = {(each.rows, *each.inputs["image"].shapes[0]) for each in inner.batches}
    assert seen == {(n, 1, side, side) for n in (1, 2, 4) for side in (2, 3)}


def test_a_backend_that_counts_an_axis_as_length_is_told_that_axis():
    inner = Sums(length_input="image", length_axis=2)
    wrapped(inner).run(batch((1, 3, 3)))
    assert inner.batches[0].lengths.tolist() == [3]


def test_after_a_failure_it_is_well_only_if_the_smallest_batch_runs():
    inner = Sums()
    made = wrapped(inner)
    inner.broken = True
    with pytest.raises(RunError):
        made.run(batch((1, 3, 3)))
    with pytest.raises(Unhealthy, match="smallest"):
        made.health()
    inner.broken = False
    made.health()
    assert inner.batches[-1].inputs["image"].shapes == ((1, 2, 2),)
    made.close()
    with pytest.raises(Unhealthy):
        made.limits()
