"""A row whose answer is NaN or infinity has none; its neighbours have theirs."""

from __future__ import annotations

import numpy as np
import pytest

from deployments.replica.device import non_finite_rows
from runtimes.datatypes import DTYPES
from runtimes.types import Ragged

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
