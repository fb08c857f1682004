"""What a batch may look like and whose word holds on its lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtimes import rows
from runtimes.errors import BadRows, LoadError
from runtimes.rows import axis, longest, settled
from runtimes.types import Batch, Limits, Ragged, RuntimeSettings, TensorSpec

LIMITS = Limits(
    inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1))),
    outputs=(TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1,))),
    length_input="ids",
    mask_input="mask",
    optional_inputs=("mask",),
    max_rows=3,
    max_length=4,
)


def ids(*lengths: int, datatype: str = "INT64") -> Ragged:
    return Ragged(datatype, np.zeros(sum(lengths), np.int64), tuple((n,) for n in lengths))


def batch(*lengths: int, **more: Ragged) -> Batch:
    return Batch(len(lengths), np.array(lengths), {"ids": ids(*lengths), **more})


@pytest.mark.parametrize("lengths", [(0,), (1,), (4,), (1, 2, 4)])
def test_batch_within_the_limits_passes(lengths):
    rows.check(batch(*lengths), LIMITS)


def test_optional_input_may_be_given():
    rows.check(batch(1, 2, mask=ids(1, 2)), LIMITS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (batch(), "at least one row"),
        (batch(1, 1, 1, 1), "4 rows, the model takes 3"),
        (batch(5), "a row of 5, the model takes 4"),
        (batch(1, other=ids(1)), "unknown input 'other', the model takes ids, mask"),
        (Batch(1, np.array([1]), {"mask": ids(1)}), "'ids' is missing"),
        (replace(batch(1), inputs={"ids": ids(1, datatype="INT32")}), "INT32, it must be INT64"),
        (
            replace(batch(2), inputs={"ids": Ragged("INT64", np.zeros(2), ((2,),))}),
            "holds float64, not INT64",
        ),
        (replace(batch(1, 1), inputs={"ids": ids(1)}), "has 1 rows, the batch 2"),
        (replace(batch(2), lengths=np.array([1])), "lengths are not those of input 'ids'"),
        (batch(2, mask=ids(1)), "'mask' and 'ids' differ in shape"),
        (
            replace(batch(2), inputs={"ids": Ragged("INT64", np.zeros(2, int), ((1, 2),))}),
            r"is \(1, 2\), it must be \(-1,\)",
        ),
        (
            replace(batch(2), inputs={"ids": Ragged("INT64", np.zeros(3, int), ((2,),))}),
            "has 3 values",
        ),
        (
            replace(batch(2), inputs={"ids": Ragged("INT64", np.zeros(2, int), ((-2,),))}),
            r"is \(-2,\)",
        ),
    ],
)
def test_wrong_batch_is_told_what_is_right(wrong, message):
    with pytest.raises(BadRows, match=message):
        rows.check(wrong, LIMITS)


def test_fixed_axis_of_another_size_is_bad():
    fixed = replace(LIMITS, inputs=(TensorSpec("ids", "INT64", (-1, 3)),), optional_inputs=())
    rows.check(batch(3), fixed)
    with pytest.raises(BadRows, match=r"must be \(3,\)"):
        rows.check(batch(2), fixed)


def test_rows_without_length_need_no_lengths():
    images = replace(LIMITS, length_input=None, mask_input=None, max_length=None)
    rows.check(replace(batch(2), lengths=np.array([1])), images)


def test_all_outputs_are_wanted_unless_some_are_named():
    assert rows.wanted(batch(1), LIMITS) == ("a", "b")
    assert rows.wanted(replace(batch(1), outputs=("b",)), LIMITS) == ("b",)


def test_unknown_output_is_bad():
    with pytest.raises(BadRows, match="unknown output 'c', the model has a, b"):
        rows.wanted(replace(batch(1), outputs=("c",)), LIMITS)


FOLDER = Limits((), (), max_length=64, length_input="ids", mask_input="mask")


def settings(**fields) -> RuntimeSettings:
    return RuntimeSettings("m", "torch", None, Path("unused"), **fields)


@pytest.mark.parametrize(
    ("asked", "taken", "expected"),
    [(None, None, None), (None, 64, 64), (1, None, 1), (1, 64, 1), (63, 64, 63), (64, 64, 64)],
)
def test_longest_row_is_the_settings_or_else_the_models(asked, taken, expected):
    assert longest(settings(max_length=asked), taken) == expected


@pytest.mark.parametrize("asked", [65, 512])
def test_more_than_the_model_takes_is_refused_with_what_would_do(asked):
    with pytest.raises(LoadError, match=rf"lengths\.max is {asked}, .* to 64 or less"):
        longest(settings(max_length=asked), 64)


def test_length_follows_the_batch_unless_settings_say():
    assert [axis(settings()), axis(settings(length_axis=2))] == [1, 2]


def test_naming_what_the_model_has_anyway_is_fine():
    named = settings(length_input="ids", length_axis=1, mask_input="mask", max_length=8)
    assert settled(FOLDER, named).max_length == 8
    assert settled(FOLDER, settings()) == FOLDER


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length_input": "mask"}, r"lengths\.input is mask .* where it is ids"),
        ({"length_axis": 2}, r"lengths\.axis is 2 .* where it is 1"),
        ({"mask_input": "ids"}, r"lengths\.mask is ids .* where it is mask"),
    ],
)
def test_length_that_stands_elsewhere_is_refused(fields, message):
    with pytest.raises(LoadError, match=message):
        settled(FOLDER, settings(**fields))


def test_mask_for_a_model_without_one_is_refused():
    with pytest.raises(LoadError, match="which has none: leave it out"):
        settled(Limits((), (), length_input="ids"), settings(mask_input="mask"))
