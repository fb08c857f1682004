"""A row whose answer is NaN or infinity has none; its neighbours have theirs."""

from __future__ import annotations

import numpy as np
import pytest

from deployments.replica.finite import non_finite_rows, without
from runtimes.datatypes import DTYPES
from runtimes.types import Ragged, Result, StageTimes

SHAPES = ((2,), (0,), (1, 2), ())


def ragged(values: list[float], datatype: str = "FP32") -> Ragged:
    return Ragged(datatype, np.array(values).astype(DTYPES[datatype]), SHAPES)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_row_with_an_odd_element_is_found(datatype: str, odd: float) -> None:
    assert non_finite_rows({"y": ragged([1, 2, 3, odd, 5], datatype)}) == [2]
    assert non_finite_rows({"y": ragged([1, odd, 3, 4, odd], datatype)}) == [0, 3]


def test_the_largest_numbers_are_finite_and_so_is_what_is_no_number() -> None:
    largest = float(np.finfo(np.float32).max)
    words = Ragged("BYTES", np.array([b"nan"] * 5, dtype=object), SHAPES)
    found = {"y": ragged([largest] * 5), "n": ragged([1, 2, 3, 4, 5], "INT64"), "w": words}
    assert non_finite_rows(found) == []


def test_a_row_is_odd_if_any_of_its_outputs_is() -> None:
    outputs = {"a": ragged([np.nan, 2, 3, 4, 5]), "b": ragged([1, 2, 3, 4, np.inf])}
    assert non_finite_rows(outputs) == [0, 3]


def test_what_is_left_is_the_other_rows_in_all_outputs() -> None:
    words = Ragged("BYTES", np.array([b"a", b"b", b"c", b"d", b"e"], dtype=object), SHAPES)
    result = Result({"y": ragged([1, 2, 3, 4, 5]), "w": words}, StageTimes(), 9)
    left = without(result, [0, 1])
    assert left.outputs["y"].data.tolist() == [3, 4, 5]
    assert left.outputs["y"].shapes == ((1, 2), ())
    assert left.outputs["w"].data.tolist() == [b"c", b"d", b"e"]
    assert left.padded_tokens == 9


def test_nothing_is_left_of_a_result_without_a_finite_row() -> None:
    result = Result({"y": ragged([1, 2, 3, 4, 5])}, StageTimes(), 9)
    left = without(result, [0, 1, 2, 3]).outputs["y"]
    assert (left.data.size, left.shapes, left.data.dtype) == (0, (), np.float32)
