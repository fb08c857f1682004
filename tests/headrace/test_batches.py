"""What a class sees of a batch, and what becomes of what it returns."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from headrace.batch import AnswerError, Batch, Column, RowError, answer
from headrace.declaration import Declared, TensorType


def column(written, rows):
    of = TensorType.parsed(written, "x")
    arrays = [np.asarray(row) for row in rows]
    flat = np.concatenate([row.reshape(-1) for row in arrays])
    return Column(of, flat, [row.shape for row in arrays])


def texts(*rows, kind="text"):
    flat = np.empty(len(rows), object)
    flat[:] = rows
    return Column(TensorType.parsed(kind, "x"), flat, ((),) * len(rows))


def test_rows_are_views_of_one_buffer():
    ragged = column("INT64[?]", [[1, 2], [3], [4, 5, 6]])
    assert [row.tolist() for row in ragged] == [[1, 2], [3], [4, 5, 6]]
    assert ragged[-1].tolist() == [4, 5, 6]
    assert [row.tolist() for row in ragged[1:]] == [[3], [4, 5, 6]]
    assert np.shares_memory(ragged[1], ragged.flat)
    with pytest.raises(IndexError):
        ragged[3]


def test_rows_of_one_shape_stack_without_a_copy():
    same = column("FP32[2, 2]", [[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert same.stacked.shape == (2, 2, 2)
    assert np.shares_memory(same.stacked, same.flat)
    assert np.shares_memory(same.padded(), same.flat)
    assert np.asarray(same).tolist() == same.stacked.tolist()
    assert np.asarray(same, np.float64).dtype == np.float64


def test_ragged_rows_do_not_stack_and_pad_where_asked():
    ragged = column("FP32[?, 2]", [[[1, 2]], [[3, 4], [5, 6]]])
    with pytest.raises(ValueError, match="differ in shape"):
        ragged.stacked  # noqa: B018 - it raises
    assert ragged.padded(-1).tolist() == [[[1, 2], [-1, -1]], [[3, 4], [5, 6]]]


def test_texts_and_images_come_as_themselves():
    assert list(texts("ä".encode(), memoryview(b"b"))) == ["ä", "b"]
    assert list(texts(b"\xff\xd8", kind="image")) == [b"\xff\xd8"]


@pytest.mark.parametrize(("padded", "kind"), [(False, Column), (True, np.ndarray)])
def test_batch_has_columns_or_arrays(padded, kind):
    columns = {"x": column("INT64[?]", [[1, 2], [3]]), "t": texts(b"a", b"b")}
    batch = Batch(np.array([2, 1]), columns, padded)
    assert isinstance(batch["x"], kind)
    assert list(batch["t"]) == ["a", "b"]
    assert (batch.rows, list(batch)) == (2, ["x", "t"])


OUTPUTS = {"n": "INT32", "v": "FP32[?]", "t": "text", "half": "FP16[1]"}


def checked(returned, rows=2, wanted=None):
    types = {name: TensorType.parsed(each, name) for name, each in OUTPUTS.items()}
    wanted = (wanted,) if isinstance(wanted, str) else wanted or tuple(returned)
    return answer(returned, Declared({}, types), rows, wanted)


def values(found, name):
    flat, shapes = found.outputs[name]
    return flat.tolist(), shapes


def test_arrays_and_lists_are_taken_row_by_row():
    found = checked({"n": np.array([1, 2]), "v": [[1.5], [2, 3]], "t": ["ä", b"b"]})
    assert values(found, "n") == ([1, 2], ((), ()))
    assert values(found, "v") == ([1.5, 2.0, 3.0], ((1,), (2,)))
    assert values(found, "t") == (["ä".encode(), b"b"], ((), ()))
    assert found.outputs["n"][0].dtype == np.int32


def test_rows_fail_singly_wherever_they_say_so():
    found = checked({"n": [1, RowError("no"), 3], "v": [RowError("late"), [1.0], [2.0]]}, rows=3)
    assert values(found, "n") == ([3], ((),))
    assert values(found, "v") == ([2.0], ((1,),))
    assert {row: str(error) for row, error in found.failed.items()} == {0: "late", 1: "no"}


def test_all_rows_may_fail():
    found = checked({"n": [RowError("a"), RowError("b", invalid=False)]})
    assert values(found, "n") == ([], ())
    assert [error.invalid for error in found.failed.values()] == [True, False]


def test_float_too_large_for_its_type_becomes_infinite():
    assert values(checked({"half": [[1e9], [1.0]]}), "half")[0] == [float("inf"), 1.0]


def test_only_output_needs_no_name():
    only = Declared({}, {"n": TensorType.parsed("INT32", "n")})
    assert answer([1, 2], only, 2, ("n",)).outputs["n"][0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned nothing; must be a dictionary with n, v, t, half"),
        ([1, 2], "must be a dictionary"),
        ({"n": [1]}, "returned 1 rows of 'n' for a batch of 2"),
        ({"n": 3}, "a value of type int for 'n'"),
        ({"n": np.array(3)}, "one value for 'n'"),
        ({"n": "ab"}, "a value of type str for 'n'"),
        ({"n": [1.5, 2.0]}, "returned float64 for 'n'; declared is INT32"),
        ({"n": [1, None]}, "returned object for 'n'"),
        ({"n": [1, 2**40]}, "does not fit into INT32"),
        ({"n": np.zeros((2, 1), np.int32)}, r"row 0 of 'n' has shape \[1\]; declared is INT32"),
        ({"v": [[1.0], 2.0]}, r"row 1 of 'v' has shape \[\]"),
        ({"v": [[1.0], [[1.0], [1.0, 2.0]]]}, "no arrays"),
        ({"t": ["a", 3]}, "row 1 of 't' holds a value of type int"),
        ({"t": [["a"], "b"]}, r"row 0 of 't' has shape \[1\]"),
        ({"no": [1, 2]}, "returned 'no', which is not declared"),
    ],
)
def test_answer_that_does_not_fit_is_told_why(returned, said):
    with pytest.raises(AnswerError, match=said):
        checked(returned, wanted=("n",) if not isinstance(returned, dict) else None)


def test_output_that_is_left_out_is_missed():
    with pytest.raises(AnswerError, match="returned no 'v'"):
        checked({"n": [1, 2]}, wanted=("n", "v"))


class Tensor:
    detach = numpy = None


class Frame:
    def __len__(self):
        return 2

    def __iter__(self):
        return iter(("column", "column"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (Tensor(), r"return n\.detach\(\)\.cpu\(\)\.numpy\(\)"),
        (Frame(), "a value of type Frame for 'n'; must be a NumPy array, or a list"),
        ({"a": 1, "b": 2}.values(), "type dict_values"),
        (np.ma.array([1, 2], mask=[0, 1]), "type MaskedArray"),
        ((each for each in (1, 2)), "type generator"),
    ],
)
def test_only_arrays_and_lists_are_rows(values, said):
    with pytest.raises(AnswerError, match=said):
        checked({"n": values})


def test_answers_are_copies_of_what_the_class_may_use_again():
    own = np.array([[1.0], [2.0]], np.float32)
    found = checked({"v": own})
    own[:] = 7
    assert values(found, "v")[0] == [1.0, 2.0]


@pytest.mark.parametrize("listed", [True, False])
def test_answers_are_copied_once(listed):
    own = np.zeros((4, 1 << 18), np.float32)
    given = {"v": list(own) if listed else own}
    declared = Declared({}, {"v": TensorType.parsed("FP32[?]", "v")})
    tracemalloc.start()
    try:
        found = answer(given, declared, 4, ("v",))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not np.shares_memory(found.outputs["v"][0], own)
    assert peak < 1.5 * own.nbytes


def test_row_fails_where_only_an_output_that_nobody_asked_for_says_so():
    found = checked({"n": [1, 2], "t": ["a", RowError("no")]}, wanted=("n",))
    assert (values(found, "n")[0], list(found.failed)) == ([1], [1])


def test_empty_rows_and_nested_bytes_are_taken():
    types = {"i": TensorType.parsed("INT64[?]", "i"), "b": TensorType.parsed("BYTES[2, 2]", "b")}
    given = {"i": [[1], []], "b": [[["a", "b"], ["c", b"d"]]] * 2}
    found = answer(given, Declared({}, types), 2, ("i", "b"))
    assert values(found, "i") == ([1], ((1,), (0,)))
    assert values(found, "b") == ([b"a", b"b", b"c", b"d"] * 2, ((2, 2),) * 2)


def test_text_that_has_no_utf8_is_told():
    with pytest.raises(AnswerError, match="row 1 of 't' is no text"):
        checked({"t": ["a", "\ud800"]})


def test_rows_are_read_only_and_copies_are_copies():
    own = column("FP32[2]", [[1.0, 2], [3, 4]])
    with pytest.raises(ValueError, match="read-only"):
        own.stacked[0] = 5
    copied = np.array(own)
    copied[:] = 0
    assert own.stacked.tolist() == [[1, 2], [3, 4]]
    assert not np.shares_memory(copied, own.flat)
