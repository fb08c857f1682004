"""A batch survives the way to a replica and back, whatever its shapes and datatypes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deployments.contract.wire import BatchCall, from_ragged, pack, rows_of, to_batch
from runtimes.datatypes import DTYPES
from runtimes.types import Ragged

FIXED = sorted(DTYPES.keys() - {"BYTES"})


def crossed(call: BatchCall) -> BatchCall:
    found: BatchCall = pickle.loads(pickle.dumps(call))
    return found


@pytest.mark.parametrize("datatype", FIXED)
def test_rows_of_every_fixed_width_type_arrive_as_they_left(datatype: str) -> None:
    rows = [np.array([1, 0], dtype=DTYPES[datatype]), np.array([1], dtype=DTYPES[datatype])]
    lengths = np.array([2, 1], dtype=np.int32).tobytes()
    call = BatchCall("g", 1, 1.0, lengths, {"x": pack(datatype, rows, None)}, ("y",))
    batch = to_batch(crossed(call))
    assert (batch.rows, batch.lengths.tolist(), batch.outputs) == (2, [2, 1], ("y",))
    assert batch.lengths.dtype == np.int64
    found = batch.inputs["x"]
    assert (found.datatype, found.shapes) == (datatype, ((2,), (1,)))
    assert found.data.dtype == DTYPES[datatype]
    assert found.data.tobytes() == b"".join(row.tobytes() for row in rows)


def test_bytes_arrive_as_they_left_empty_ones_too() -> None:
    rows = [np.array([b"", b"a\0b"], dtype=object), np.array([b"\xff"], dtype=object)]
    lengths = np.array([2, 1], dtype=np.int32).tobytes()
    call = BatchCall("g", 1, 1.0, lengths, {"x": pack("BYTES", rows, None)}, None)
    assert to_batch(crossed(call)).inputs["x"].data.tolist() == [b"", b"a\0b", b"\xff"]


def test_shapes_of_more_axes_go_along() -> None:
    column = pack("FP32", [np.zeros(6, np.float32)], ((2, 3),))
    call = BatchCall("g", 1, 1.0, np.array([2], np.int32).tobytes(), {"x": column}, None)
    assert to_batch(crossed(call)).inputs["x"].shapes == ((2, 3),)


shapes = st.lists(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), max_size=6)


@given(shapes)
def test_answers_come_back_as_rows_of_their_own_shapes(given_shapes: list[tuple[int, ...]]) -> None:
    sizes = [int(np.prod(shape, dtype=int)) for shape in given_shapes]
    data = np.arange(sum(sizes), dtype=np.float32)
    ragged = Ragged("FP32", data, tuple(given_shapes))
    rows = rows_of(pickle.loads(pickle.dumps(from_ragged({"y": ragged})))["y"])
    assert [row.shape for row in rows] == given_shapes
    assert [v for row in rows for v in row.reshape(-1).tolist()] == data.tolist()


def test_text_answers_come_back_row_by_row() -> None:
    data = np.array([b"a", b"b", b"c"], dtype=object)
    rows = rows_of(from_ragged({"y": Ragged("BYTES", data, ((1,), (2,)))})["y"])
    assert [row.tolist() for row in rows] == [[b"a"], [b"b", b"c"]]


def test_an_element_a_row_is_an_array_of_no_axes() -> None:
    texts = np.empty(2, dtype=object)
    texts[:] = [b"cat", b"dog"]
    for datatype, data in (("BYTES", texts), ("FP32", np.array([1, 2], dtype=np.float32))):
        rows = rows_of(from_ragged({"y": Ragged(datatype, data, ((), ()))})["y"])
        assert [(row.shape, row.item()) for row in rows] == [((), data[0]), ((), data[1])]
