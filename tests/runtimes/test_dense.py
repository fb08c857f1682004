"""Ragged rows to dense arrays and back: for a signature, and the padding beneath."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.errors import BadRows, RunError
from runtimes.graph import dense
from runtimes.graph.dense import Signature, cut, mask, pad
from runtimes.types import Batch, Limits, Ragged, TensorSpec

IDS = TensorSpec("input_ids", "INT64", (-1, -1))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))
HIDDEN = TensorSpec("hidden", "FP32", (-1, -1, 2))
TEXT = Limits(
    (IDS, MASK),
    (HIDDEN,),
    max_length=10,
    length_input="input_ids",
    mask_input="attention_mask",
    optional_inputs=("attention_mask",),
)
PIXELS = TensorSpec("pixels", "FP32", (-1, 1, -1))
IMAGE = Limits((PIXELS,), (TensorSpec("y", "FP32", (-1,)),))


def texts(*rows: list[int], **more: Ragged) -> Batch:
    lengths = np.array([len(row) for row in rows], np.int64)
    data = np.array([token for row in rows for token in row], np.int64)
    ids = Ragged("INT64", data, tuple((len(row),) for row in rows))
    return Batch(len(rows), lengths, {"input_ids": ids, **more})


def images(*widths: int) -> Batch:
    shapes = tuple((1, width) for width in widths)
    data = np.arange(sum(widths), dtype=np.float32)
    ones = np.ones(len(widths), np.int64)
    return Batch(len(widths), ones, {"pixels": Ragged("FP32", data, shapes)})


def test_rows_are_padded_to_the_longest_and_the_mask_is_made() -> None:
    arrays, longest = dense.feed(texts([1, 2, 3], [4]), Signature(TEXT, {}))
    assert longest == 3
    assert arrays["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert arrays["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_mask_of_the_caller_is_kept_and_padded() -> None:
    mask = Ragged("INT64", np.array([1, 0, 1]), ((2,), (1,)))
    batch = texts([1, 2], [3], attention_mask=mask)
    arrays, _ = dense.feed(batch, Signature(TEXT, {}))
    assert arrays["attention_mask"].tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize(("longest", "padded"), [(1, 4), (4, 4), (5, 8), (9, 10), (10, 10)])
def test_lengths_are_rounded_up_within_the_models_limit(longest, padded) -> None:
    arrays, found = dense.feed(texts([1] * longest), Signature(TEXT, {}, pad_multiple=4))
    assert found == padded
    assert arrays["input_ids"].shape == (1, padded)


@pytest.mark.parametrize("token", [-1, 7, 2**40])
def test_id_outside_its_table_names_row_and_bound(token) -> None:
    with pytest.raises(BadRows, match=rf"row 1 .* holds {token}, it must be 0 to 6"):
        dense.feed(texts([0, 6], [3, token]), Signature(TEXT, {"input_ids": 7}))


def test_ids_at_both_ends_of_the_table_pass() -> None:
    arrays, _ = dense.feed(texts([0, 6]), Signature(TEXT, {"input_ids": 7}))
    assert arrays["input_ids"].tolist() == [[0, 6]]


def test_empty_row_is_named() -> None:
    with pytest.raises(BadRows, match="row 1 of input 'input_ids' is empty"):
        dense.feed(texts([1], []), Signature(TEXT, {}))
    with pytest.raises(BadRows, match="row 0"):
        dense.feed(images(0), Signature(IMAGE, {}))


def test_second_input_must_be_as_long_as_the_row() -> None:
    other = TensorSpec("weights", "FP32", (-1, -1))
    limits = Limits((IDS, other), (HIDDEN,), length_input="input_ids")
    given = Ragged("FP32", np.ones(3, np.float32), ((2,), (1,)))
    with pytest.raises(BadRows, match=r"row 1 of input 'weights'"):
        dense.feed(texts([1, 2], [3, 4], weights=given), Signature(limits, {}))
    arrays, _ = dense.feed(texts([1, 2], [3], weights=given), Signature(limits, {}))
    assert arrays["weights"].tolist() == [[1, 1], [1, 0]]


def test_rows_without_length_stack_only_when_alike() -> None:
    arrays, longest = dense.feed(images(2, 2), Signature(IMAGE, {}))
    assert (arrays["pixels"].shape, longest) == ((2, 1, 2), 1)
    with pytest.raises(BadRows, match="alike"):
        dense.feed(images(2, 3), Signature(IMAGE, {}))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_fixed_batch_is_filled_up_with_valid_rows(rows) -> None:
    limits = Limits((PIXELS,), IMAGE.outputs, max_rows=3)
    signature = Signature(limits, {}, fixed_rows=3)
    batch = images(*[2] * rows)
    arrays, _ = dense.feed(batch, signature)
    assert arrays["pixels"].shape == (3, 1, 2)
    answer = dense.rows_of(np.arange(3, dtype=np.float32), IMAGE.outputs[0], batch, signature)
    assert answer.data.tolist() == list(range(rows))
    with pytest.raises(BadRows):
        dense.feed(images(2, 2, 2, 2), signature)


def test_output_is_cut_on_the_axes_that_follow_the_length() -> None:
    batch = texts([1, 2], [3])
    square = TensorSpec("attention", "FP32", (-1, -1, -1))
    array = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    one = Signature(TEXT, {}, length_axes={"hidden": (1,)})
    assert dense.rows_of(array, HIDDEN, batch, one).shapes == ((2, 2), (1, 2))
    both = Signature(TEXT, {}, length_axes={"attention": (1, 2)})
    cut = dense.rows_of(array, square, batch, both)
    assert cut.shapes == ((2, 2), (1, 1))
    assert cut.data.tolist() == [0, 1, 2, 3, 4]
    whole = dense.rows_of(array, HIDDEN, batch, Signature(TEXT, {}))
    assert whole.shapes == ((2, 2), (2, 2))


@pytest.mark.parametrize("array", [np.zeros(()), np.zeros((3, 2, 2))])
def test_output_without_the_batch_is_a_run_error(array) -> None:
    with pytest.raises(RunError, match="for 2 rows"):
        dense.rows_of(array, HIDDEN, texts([1], [2]), Signature(TEXT, {}))


def ragged(*shapes: tuple[int, ...], datatype: str = "INT64") -> Ragged:
    size = sum(map(math.prod, shapes))
    return Ragged(datatype, np.arange(1, size + 1), shapes)


@pytest.mark.parametrize(
    ("shapes", "to", "padded"),
    [
        (((1,), (3,), (0,)), None, [[1, 0, 0], [2, 3, 4], [0, 0, 0]]),
        (((1,), (2,)), 3, [[1, 0, 0], [2, 3, 0]]),
        (((1,), (1,)), 2, [[1, 0], [2, 0]]),
        (((), (), ()), None, [1, 2, 3]),
        (((1, 2), (2, 1)), None, [[[1, 2], [0, 0]], [[3, 0], [4, 0]]]),
    ],
)
def test_rows_are_padded_to_the_longest_or_as_far_as_asked(shapes, to, padded):
    assert pad(ragged(*shapes), to=to).tolist() == padded


def test_row_longer_than_the_asked_width_is_bad():
    with pytest.raises(BadRows, match="3 does not fit into 2"):
        pad(ragged((3,)), to=2)


def test_equal_rows_are_not_copied():
    rows = ragged((2,), (2,))
    assert np.shares_memory(pad(rows), rows.data)


def test_no_rows_give_an_empty_array():
    assert pad(Ragged("INT64", np.zeros(0, np.int64), ())).shape[0] == 0


def test_rows_of_different_rank_are_bad():
    with pytest.raises(BadRows, match="number of axes"):
        pad(ragged((2,), (1, 2)))


def test_buffer_of_another_size_is_bad():
    with pytest.raises(BadRows, match="hold 3 values, 2 were given"):
        pad(Ragged("INT64", np.zeros(2, np.int64), ((1,), (2,))))


def test_bytes_are_padded_with_empty_strings():
    rows = Ragged("BYTES", np.array([b"a", b"b", b"c"], dtype=object), ((1,), (2,)))
    assert pad(rows).tolist() == [[b"a", b""], [b"b", b"c"]]


def test_mask_marks_the_real_tokens():
    marked = mask(np.array([0, 1, 3]), 3)
    assert marked.dtype == np.int64
    assert marked.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("array", "lengths", "axis", "shapes", "data"),
    [
        (np.arange(6).reshape(2, 3), [1, 2], 1, ((1,), (2,)), [0, 3, 4]),
        (np.arange(12).reshape(2, 3, 2), [1, 3], 1, ((1, 2), (3, 2)), [0, 1, *range(6, 12)]),
        (np.arange(12).reshape(2, 2, 3), [1, 3], 2, ((2, 1), (2, 3)), [0, 3, *range(6, 12)]),
    ],
)
def test_rows_are_cut_to_their_lengths_on_their_axis(array, lengths, axis, shapes, data):
    back = cut(array, np.array(lengths), axis, "INT64")
    assert back.shapes == shapes
    assert back.data.tolist() == data


def test_without_an_axis_rows_stay_as_they_are():
    array = np.arange(4).reshape(2, 2)
    back = cut(array, np.array([1, 2]), None, "INT64")
    assert back.shapes == ((2,), (2,))
    assert np.shares_memory(back.data, array)


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
