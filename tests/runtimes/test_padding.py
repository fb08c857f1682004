"""Ragged to padded and back: shapes, zeros, order, and the errors of rows that do not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.errors import BadRows, RunError
from runtimes.padding import cut, mask, pad
from runtimes.types import Ragged


def ragged(*shapes: tuple[int, ...], datatype: str = "INT64") -> Ragged:
    size = sum(map(math.prod, shapes))
    return Ragged(datatype, np.arange(1, size + 1), shapes)


def test_shorter_rows_are_filled_with_zeros():
    assert pad(ragged((1,), (3,), (0,))).tolist() == [[1, 0, 0], [2, 3, 4], [0, 0, 0]]


def test_rows_can_be_widened_past_the_longest():
    assert pad(ragged((1,), (2,)), to=3).tolist() == [[1, 0, 0], [2, 3, 0]]


def test_widening_equal_rows_still_pads():
    assert pad(ragged((1,), (1,)), to=2).tolist() == [[1, 0], [2, 0]]


def test_row_longer_than_the_asked_width_is_bad():
    with pytest.raises(BadRows, match="3 does not fit into 2"):
        pad(ragged((3,)), to=2)


def test_equal_rows_are_not_copied():
    rows = ragged((2,), (2,))
    assert np.shares_memory(pad(rows), rows.data)


def test_single_row_keeps_its_length():
    assert pad(ragged((2,))).tolist() == [[1, 2]]


def test_rows_without_axes_become_one_axis():
    assert pad(ragged((), (), ())).tolist() == [1, 2, 3]


def test_no_rows_give_an_empty_array():
    assert pad(Ragged("INT64", np.zeros(0, np.int64), ())).shape[0] == 0


def test_every_axis_is_padded_to_its_longest():
    padded = pad(ragged((1, 2), (2, 1)))
    assert padded.tolist() == [[[1, 2], [0, 0]], [[3, 0], [4, 0]]]


def test_rows_of_different_rank_are_bad():
    with pytest.raises(BadRows, match="number of axes"):
        pad(ragged((2,), (1, 2)))


def test_buffer_of_another_size_is_bad():
    with pytest.raises(BadRows, match="hold 3 values, 2 were given"):
        pad(Ragged("INT64", np.zeros(2, np.int64), ((1,), (2,))))


def test_bytes_are_padded_with_empty_strings():
    rows = Ragged("BYTES", np.array([b"a", b"b", b"c"], dtype=object), ((1,), (2,)))
    assert pad(rows).tolist() == [[b"a", b""], [b"b", b"c"]]


def test_datatype_survives_padding():
    rows = Ragged("FP32", np.ones(3, np.float32), ((1,), (2,)))
    assert pad(rows).dtype == np.float32


def test_mask_marks_the_real_tokens():
    marked = mask(np.array([0, 1, 3]), 3)
    assert marked.dtype == np.int64
    assert marked.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_rows_are_cut_to_their_lengths():
    back = cut(np.arange(6).reshape(2, 3), np.array([1, 2]), 1, "INT64")
    assert back.shapes == ((1,), (2,))
    assert back.data.tolist() == [0, 3, 4]


def test_trailing_axes_stay_whole_when_cut():
    back = cut(np.arange(12).reshape(2, 3, 2), np.array([1, 3]), 1, "FP32")
    assert back.shapes == ((1, 2), (3, 2))
    assert back.data.tolist() == [0, 1, 6, 7, 8, 9, 10, 11]


def test_a_later_axis_can_be_the_length():
    back = cut(np.arange(12).reshape(2, 2, 3), np.array([1, 3]), 2, "FP32")
    assert back.shapes == ((2, 1), (2, 3))
    assert back.data.tolist() == [0, 3, 6, 7, 8, 9, 10, 11]


def test_without_an_axis_rows_stay_as_they_are():
    array = np.arange(4).reshape(2, 2)
    back = cut(array, np.array([1, 2]), None, "INT64")
    assert back.shapes == ((2,), (2,))
    assert np.shares_memory(back.data, array)


def test_one_value_a_row_has_no_axes():
    assert cut(np.array([1.0, 2.0]), np.array([5, 6]), None, "FP32").shapes == ((), ())


def test_full_rows_are_not_copied():
    array = np.arange(4).reshape(2, 2)
    assert np.shares_memory(cut(array, np.array([2, 2]), 1, "INT64").data, array)


def test_output_shorter_than_a_row_is_an_error():
    with pytest.raises(RunError, match="2 places on axis 1"):
        cut(np.zeros((1, 2)), np.array([3]), 1, "FP32")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_cutting_undoes_padding(lengths: list[int]):
    rows = ragged(*((length,) for length in lengths))
    back = cut(pad(rows), np.array(lengths), 1, "INT64")
    assert back.shapes == rows.shapes
    assert back.data.tolist() == rows.data.tolist()
