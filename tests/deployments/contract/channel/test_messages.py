"""A batch, an answer, what is generated: all arrive as they left, and what does not add up is
refused, whatever it says."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import astuple, replace
from ragged_rows import ragged, same

from deployments.contract.channel.frames import (
    HEAD,
    BatchCall,
    BatchReply,
    Buffer,
    MessageError,
    RowError,
    Scattered,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
    rows_of,
    to_batch,
)
from deployments.contract.channel.stream_messages import (
    MAX_HASHES,
    BlocksMessage,
    GenerateCall,
    Piece,
    SharesMessage,
    StepMessage,
    StreamEnd,
    decode_generate,
    decode_steps,
    encode_generate,
    encode_steps,
    packed,
    unpacked,
)
from runtimes.types import DTYPES, EngineLoad, Ragged

FIXED = sorted(DTYPES.keys() - {"BYTES"})


def body(parts: Sequence[Buffer], at: int = 0) -> memoryview:
    """As it is read: a view of a larger buffer, in which it begins anywhere."""
    return memoryview(bytes(at) + b"".join(parts))[at:]


def lengths(*values: int) -> bytes:
    return np.array(values, dtype=np.int32).tobytes()


def call_of(column: Ragged, *sizes: int, outputs: tuple[str, ...] | None = None) -> BatchCall:
    return BatchCall(1.0, lengths(*sizes), {"x": column}, outputs)


def reply_of(**outputs: Ragged) -> BatchReply:
    return BatchReply(False, outputs, (), 0.0, 0.0, 0, (0.0,) * 5, 0, 0, 0, 0.0, 0.0)


def crossed(call: BatchCall, at: int = 0) -> BatchCall:
    return decode_call(body(encode_call(call), at))


def answered(at: int = 0, **outputs: Ragged) -> dict[str, Ragged]:
    return decode_reply(body(encode_reply(reply_of(**outputs)), at)).outputs


# ---- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", FIXED)
def test_rows_of_every_fixed_width_type_arrive_as_they_left(datatype: str) -> None:
    rows = [np.array([1, 0], dtype=DTYPES[datatype]), np.array([1], dtype=DTYPES[datatype])]
    call = call_of(ragged(datatype, rows), 2, 1, outputs=("y",))
    batch = to_batch(crossed(call))
    assert (batch.rows, batch.lengths.tolist(), batch.outputs) == (2, [2, 1], ("y",))
    assert batch.lengths.dtype == np.int64
    found = batch.inputs["x"]
    assert (found.datatype, found.shapes) == (datatype, ((2,), (1,)))
    assert found.data.dtype == DTYPES[datatype]
    assert found.data.tobytes() == b"".join(row.tobytes() for row in rows)


def test_bytes_arrive_as_they_left_empty_ones_too() -> None:
    rows = [np.array([b"", b"a\0b"], dtype=object), np.array([b"\xff"], dtype=object)]
    batch = to_batch(crossed(call_of(ragged("BYTES", rows), 2, 1)))
    assert batch.inputs["x"].data.tolist() == [b"", b"a\0b", b"\xff"]


def test_shapes_of_more_axes_go_along() -> None:
    column = ragged("FP32", [np.zeros(6, np.float32)], ((2, 3),))
    assert to_batch(crossed(call_of(column, 2))).inputs["x"].shapes == ((2, 3),)


def test_all_that_a_batch_says_arrives() -> None:
    call = BatchCall(
        2.5, lengths(1), {}, ("a", "b"), (1, 2, 3.5), 0.25, ((0, "x", 1.0),), None, True
    )
    found = crossed(call)
    assert replace(found, lengths=bytes(found.lengths)) == call
    assert crossed(replace(call, waiting=((1, "y", 2.0),))).waiting == ((1, "y", 2.0),)


@pytest.mark.parametrize("at", range(9))
def test_columns_arrive_wherever_in_a_read_their_message_begins(at: int) -> None:
    columns = {
        "flags": ragged("BOOL", [np.array([True]), np.array([False, True])]),
        "wide": ragged("FP64", [np.array([1.0]), np.array([2.0, 3.0])]),
        "half": ragged("BF16", [np.array([1]).astype(DTYPES["BF16"])] * 2, ((1,), (1,))),
        "texts": ragged("BYTES", [np.array([b"a"], object), np.array([b"", b"c"], object)]),
    }
    batch = to_batch(crossed(BatchCall(1.0, lengths(1, 2), columns, None), at))
    assert batch.inputs["flags"].data.tolist() == [True, False, True]
    assert batch.inputs["wide"].data.tolist() == [1.0, 2.0, 3.0]
    assert batch.inputs["half"].data.astype(float).tolist() == [1.0, 1.0]
    assert batch.inputs["texts"].data.tolist() == [b"a", b"", b"c"]
    assert all(ragged.data.flags.aligned for ragged in batch.inputs.values())


def test_a_first_column_is_neither_copied_nor_moved_where_a_read_begins_with_its_frame() -> None:
    column = ragged("FP64", [np.arange(3.0)])
    read = HEAD.pack(0, 0, 0) + b"".join(encode_reply(reply_of(y=column)))
    outputs = decode_reply(memoryview(read)[HEAD.size :]).outputs
    assert np.shares_memory(outputs["y"].data, np.frombuffer(read, np.uint8))
    (row,) = rows_of(outputs["y"])
    assert row.base is not None
    assert row.tolist() == [0.0, 1.0, 2.0]


# ---- answers ------------------------------------------------------------------------------------

shapes = st.lists(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), max_size=6)


@given(shapes, st.integers(0, 8))
def test_answers_come_back_as_rows_of_their_own_shapes(
    given_shapes: list[tuple[int, ...]], at: int
) -> None:
    sizes = [int(np.prod(shape, dtype=int)) for shape in given_shapes]
    data = np.arange(sum(sizes), dtype=np.float32)
    rows = rows_of(answered(at, y=Ragged("FP32", data, tuple(given_shapes)))["y"])
    assert [row.shape for row in rows] == given_shapes
    assert [v for row in rows for v in row.reshape(-1).tolist()] == data.tolist()


def test_text_answers_come_back_row_by_row() -> None:
    data = np.array([b"a", b"b", b"c"], dtype=object)
    rows = rows_of(answered(y=Ragged("BYTES", data, ((1,), (2,))))["y"])
    assert [row.tolist() for row in rows] == [[b"a"], [b"b", b"c"]]


def test_an_element_a_row_is_an_array_of_no_axes() -> None:
    texts = np.empty(2, dtype=object)
    texts[:] = [b"cat", b"dog"]
    for datatype, data in (("BYTES", texts), ("FP32", np.array([1, 2], dtype=np.float32))):
        rows = rows_of(answered(y=Ragged(datatype, data, ((), ())))["y"])
        assert [(row.shape, row.item()) for row in rows] == [((), data[0]), ((), data[1])]


def test_all_that_a_reply_says_arrives() -> None:
    reply = BatchReply(
        True, {}, (RowError(3, True, "bad"),), 0.1, 0.2, 7, (1.0, 2.0, 3.0, 4.0, 5.0), 1, 2, 3,
        0.5, 0.75, 0.25, (1.0, 2.0), ((0, "x", 1.0),), ((1, "y", 2.0),),
    )  # fmt: skip
    for each in (reply, replace(reply, waiting=None, busy=False)):
        assert decode_reply(body(encode_reply(each))) == each


def test_numbers_and_texts_of_numpy_go_like_others() -> None:
    texts = np.empty(2, dtype=object)
    texts[:] = [np.bytes_(b"a"), b"b"]
    columns = {"y": Ragged("BYTES", texts, ((np.int64(2),),))}
    reply = replace(
        reply_of(**columns),
        padded_tokens=np.int64(9),
        service_s=np.float64(0.5),
        errors=(RowError(np.int64(1), np.bool_(True), "bad"),),  # type: ignore[arg-type]
    )
    found = decode_reply(body(encode_reply(reply)))
    assert (found.padded_tokens, found.service_s) == (9, 0.5)
    assert found.errors == (RowError(1, True, "bad"),)
    assert same(found.outputs["y"], Ragged("BYTES", np.array([b"a", b"b"], object), ((2,),)))


# ---- what is generated --------------------------------------------------------------------------


def test_a_request_to_generate_arrives_as_it_left() -> None:
    call = GenerateCall("chat", b'{"a": "\xff"}', 12.5, 3)
    work = ((1, "t", 0.5),)
    paid = replace(call, rank=(1, 2, 0.5), charges=work, waiting=None, input_s=0.1, output_s=0.2)
    for at, each in enumerate((call, paid, replace(paid, waiting=work))):
        assert decode_generate(body(encode_generate(each), at)) == each


def test_steps_arrive_as_they_left() -> None:
    pieces = (
        Piece(1, b"data: x\n\n", 3, 1, 2, 16, 0.5),
        *(Piece(n, b"", 0, 0, 0, 0, 0.0, 400, end) for n, end in enumerate(StreamEnd, start=2)),
    )
    message = StepMessage(pieces, 4, 5, 6, EngineLoad(1, 2, 0.5, 3, 4, 5, 6, 8, 7))
    shares = SharesMessage((0.5, 1.5), ((0, "t", 2.5),), ((1, "u", 3.5),))
    for each in (
        message,
        replace(message, pieces=()),
        replace(message, shares=shares),
        replace(message, shares=replace(shares, waiting=None)),
    ):
        assert decode_steps(body(encode_steps(each), 1)) == each


# ---- other versions' messages --------------------------------------------------------------------


def test_further_elements_are_ignored_and_missing_ones_have_their_defaults() -> None:
    generate = GenerateCall("chat", b"", 1.0)
    for fields in ([*astuple(generate), {"new": [1]}], ["chat", b"", 1.0]):
        assert decode_generate(memoryview(msgspec.msgpack.encode(fields))) == generate
    head = [[*CALL, [1, 2, 3.5]], len(ROWS), [[*column(), "new"]], 7]
    found = decode_call(raw(head, ROWS + bytes(24)))
    assert (found.rank, found.charges) == ((1, 2, 3.5), ())
    assert found.inputs["x"].shapes == ((2,), (1,))


def test_an_end_that_only_a_later_version_knows_counts_as_a_failure() -> None:
    piece = [1, b"", 0, 0, 0, 0, 0.0, 200, "paused"]
    message = decode_steps(memoryview(msgspec.msgpack.encode([[piece], 0, 0, 0, {}])))
    assert message.pieces[0].end is StreamEnd.FAILED


def test_what_version_3_lacks_is_cut_for_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Piece, "fields_in_3", 7)
    monkeypatch.setattr(StepMessage, "fields_in_3", 5)
    message = StepMessage((Piece(1, b"x", 3, 1, 2, 16, 0.5, 400),), 4, 5, 6, EngineLoad(1))
    pieces, *others = msgspec.msgpack.decode(encode_steps(message, 3)[0])
    assert (len(pieces[0]), len(others)) == (7, 4)
    pieces, *others = msgspec.msgpack.decode(encode_steps(message, 4)[0])
    assert (len(pieces[0]), len(others)) == (9, 9)


# ---- messages that do not add up ----------------------------------------------------------------

READERS: dict[str, Callable[[memoryview], Any]] = {
    "call": decode_call, "reply": decode_reply, "generate": decode_generate, "steps": decode_steps,
}  # fmt: skip
ROWS = lengths(2, 1)
CALL = [1.0, b"", {}, None]
REPLY = list(astuple(reply_of()))
INT64S = ["x", "INT64", 24, None, None]


def raw(head: Any, behind: bytes = b"") -> memoryview:
    """A message with any header, well or not."""
    header = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    padding = bytes(-(HEAD.size + 4 + len(header)) % 8)
    return body([struct.pack("<I", len(header)), header, padding, behind])


def column(**changes: Any) -> list[Any]:
    """Of three INT64, or something else."""
    fields = dict(zip(("name", "datatype", "size", "items", "shapes"), INT64S, strict=True))
    return list({**fields, **changes}.values())


def call_with(*columns: Any, rows: bytes = ROWS, said: Any = None, behind: int = 24) -> memoryview:
    return raw([CALL, len(rows) if said is None else said, columns], rows + bytes(behind))


def test_the_messages_that_lies_are_made_of_are_well() -> None:
    assert to_batch(decode_call(call_with(column()))).inputs["x"].data.tolist() == [0, 0, 0]
    shaped = raw([REPLY, [column(shapes=[[1, 2], []])]], bytes(24))
    assert [row.shape for row in rows_of(decode_reply(shaped).outputs["x"])] == [(1, 2), ()]


LYING_COLUMNS = {
    "a size that is less than its elements": column(size=16),
    "a size that is more than its elements": column(size=32),
    "a size below nothing": column(size=-24),
    "elements that are not behind it": column(size=2**40, shapes=[[2**37], [0]]),
    "a datatype that does not exist": column(datatype="INT65"),
    "a datatype of another width": column(datatype="INT32"),
    "BYTES as a buffer": column(datatype="BYTES"),
    "items of another datatype": column(size=0, items=[b"a", b"b", b"c"]),
    "fewer items than elements": column(datatype="BYTES", size=0, items=[b"a", b"b"]),
    "more items than elements": column(datatype="BYTES", size=0, items=[b"a"] * 4),
    "items and a buffer": column(datatype="BYTES", items=[b"a", b"b", b"c"]),
    "fewer shapes than rows": column(shapes=[[3]]),
    "more shapes than rows": column(shapes=[[1], [1], [1]]),
    "shapes of other elements": column(shapes=[[2], [2]]),
    "a negative shape": column(shapes=[[4], [-1]]),
    "two negative axes that make up for each other": column(shapes=[[-1, -2], [1]]),
    "more axes than arrays have": column(shapes=[[1] * 65, [2]]),
    "nothing, of an axis that no array has": column(size=0, shapes=[[0, 2**62], [0, 2**63]]),
    "nothing, of axes that no array has": column(size=0, shapes=[[0, 2**40, 2**40], [0]]),
    "an axis past all numbers": column(shapes=[[2**64 - 1] * 40, [1]]),
    "a name that is no text": column(name=1),
    "a shape of texts": column(shapes=[["1"], ["2"]]),
}


@pytest.mark.parametrize("lie", LYING_COLUMNS.values(), ids=LYING_COLUMNS.keys())
def test_a_column_that_lies_is_refused_in_a_batch_and_in_an_answer(lie: list[Any]) -> None:
    behind = 24 if lie[2] else 0
    with pytest.raises(MessageError):
        decode_call(call_with(lie, behind=behind))
    if lie[4] is None or len(lie[4]) == 2:  # an answer may have any number of rows
        with pytest.raises(MessageError):
            decode_reply(raw([REPLY, [lie]], bytes(behind)))


def test_a_shape_of_a_hundred_thousand_axes_is_refused_at_once() -> None:
    lie = column(shapes=[[2**63] * 100_000, [1]])
    began = time.process_time()
    with pytest.raises(MessageError, match="no array"):
        decode_call(call_with(lie))
    assert time.process_time() - began < 1.0  # multiplied out it takes 20 s


def test_a_column_twice_is_refused() -> None:
    with pytest.raises(MessageError):
        decode_call(call_with(column(), column(), behind=48))


@pytest.mark.parametrize("behind", [0, 23, 25, 48])
def test_bytes_that_no_column_accounts_for_are_refused(behind: int) -> None:
    with pytest.raises(MessageError):
        decode_call(call_with(column(), behind=behind))
    with pytest.raises(MessageError):
        decode_reply(raw([REPLY, [column(shapes=[[3]])]], bytes(behind)))


@pytest.mark.parametrize("said", [-4, 0, 3, 7, 12, 36, 2**40])
def test_lengths_that_are_not_there_are_refused(said: int) -> None:
    with pytest.raises(MessageError):
        decode_call(call_with(column(), said=said))


def test_a_batch_of_no_rows_or_of_negative_ones_is_refused() -> None:
    with pytest.raises(MessageError):
        decode_call(call_with(rows=b"", behind=0))
    with pytest.raises(MessageError, match="less than no elements"):
        decode_call(call_with(column(), rows=lengths(4, -1)))


def test_rows_whose_sum_is_past_what_a_length_can_be_are_refused() -> None:
    with pytest.raises(MessageError):
        decode_call(call_with(column(), rows=lengths(*[2**31 - 1] * 4)))


def test_an_answer_without_shapes_is_refused() -> None:
    with pytest.raises(MessageError, match="without shapes"):
        decode_reply(raw([REPLY, [column()]], bytes(24)))


@pytest.mark.parametrize("priority", [-1, 2**10, 2**40])
def test_a_priority_that_no_gateway_has_is_refused(priority: int) -> None:
    head = [[*CALL, [0, priority, 0.0]], len(ROWS), []]
    with pytest.raises(MessageError, match="priority"):
        decode_call(raw(head, ROWS))
    call = GenerateCall("chat", b"", 1.0, rank=(0, priority, 0.0))
    with pytest.raises(MessageError, match="priority"):
        decode_generate(body(encode_generate(call)))


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_is_refused(time_s: float) -> None:
    call, work = call_of(ragged("INT64", [np.array([1])]), 1), ((0, "t", time_s),)
    assert crossed(call).budget_s == 1.0
    for lie in (
        replace(call, budget_s=time_s),
        replace(call, rank=(0, 0, time_s)),
        replace(call, predicted_s=time_s),
        replace(call, charges=work),
        replace(call, waiting=work),
    ):
        with pytest.raises(MessageError, match="a time"):
            crossed(lie)
    generate = GenerateCall("chat", b"", 1.0)
    for wrong in (
        replace(generate, budget_s=time_s),
        replace(generate, rank=(0, 0, time_s)),
        replace(generate, charges=work),
        replace(generate, waiting=work),
        replace(generate, input_s=time_s),
        replace(generate, output_s=time_s),
    ):
        with pytest.raises(MessageError, match="a time"):
            decode_generate(body(encode_generate(wrong)))


@pytest.mark.parametrize("name", READERS)
def test_a_header_longer_than_its_message_is_refused(name: str) -> None:
    for message in (b"", b"\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x02\0\0\0\x90"):
        with pytest.raises(MessageError):
            READERS[name](memoryview(message))


HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "half of it": msgspec.msgpack.encode([CALL, 8, []])[:-1],
    "more than it": msgspec.msgpack.encode([CALL, 8, []]) + b"\0",
    "another type": msgspec.msgpack.encode({"call": CALL}),
    "a text that is none": msgspec.msgpack.encode([[1.0, b"", {}, ["a"]], 8, []]).replace(
        b"\xa1a", b"\xa1\xff"
    ),
    "a list of four thousand million": b"\x93" + msgspec.msgpack.encode(CALL) + b"\x08\xdd" +
    b"\xff" * 4,
    "lists in lists": b"\x91" * 100_000,
    "a list in four thousand million lists": b"\xdd\xff\xff\xff\xff" * 1000,
}  # fmt: skip


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_cannot_be_read_is_refused_and_takes_little_memory(header: bytes) -> None:
    tracemalloc.start()
    for name in ("call", "reply"):
        with pytest.raises(MessageError):
            READERS[name](raw(header, ROWS))
    for name in ("generate", "steps"):
        with pytest.raises(MessageError):
            READERS[name](memoryview(header))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * len(header) + (1 << 20)


@pytest.mark.parametrize("name", ["generate", "steps"])
def test_more_than_a_message_is_refused(name: str) -> None:
    call = GenerateCall("chat", b"", 1.0)
    message = encode_generate(call) if name == "generate" else encode_steps(
        StepMessage((), 0, 0, 0, EngineLoad())
    )  # fmt: skip
    with pytest.raises(MessageError):
        READERS[name](body([*message, b"\0"]))


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("shapes", [((3,), (2,)), ((3, 1), (1, 2))])
def test_rows_that_lie_apart_are_sent_as_one_tensor(shapes: Any, at: int) -> None:
    rows = [np.arange(3, dtype=np.int64), np.arange(9, dtype=np.int64)[7:]]
    apart: Any = Scattered("INT64", rows, shapes)
    together = Ragged("INT64", np.concatenate(rows), shapes)
    parts = encode_call(call_of(apart, 3, 2))
    assert b"".join(parts) == b"".join(encode_call(call_of(together, 3, 2)))
    assert all(
        np.shares_memory(np.frombuffer(p, np.uint8), r)
        for p, r in zip(parts[2:], rows, strict=True)
    )
    found = decode_call(body(parts, at)).inputs["x"]
    assert (found.data.tolist(), found.shapes) == ([0, 1, 2, 7, 8], shapes)


@pytest.mark.parametrize("size", [1, 7, 9, 8 * MAX_HASHES + 8])
def test_hashes_that_are_none_or_too_many_are_refused(size: int) -> None:
    call = GenerateCall("chat", b"", 1.0, hashes=bytes(size))
    with pytest.raises(MessageError, match="hashes"):
        decode_generate(body(encode_generate(call)))
    for told in (BlocksMessage(1, bytes(size)), BlocksMessage(1, b"", bytes(size))):
        message = StepMessage((), 0, 0, 0, EngineLoad(), blocks=told)
        with pytest.raises(MessageError, match="hashes"):
            decode_steps(body(encode_steps(message)))


@pytest.mark.parametrize("count", [0, 1, 2, MAX_HASHES])
def test_hashes_come_back_as_they_were(count: int) -> None:
    hashes = tuple(2**64 - 1 - at for at in range(count))
    call = GenerateCall("chat", b"", 1.0, hashes=packed(hashes))
    assert unpacked(decode_generate(body(encode_generate(call))).hashes) == hashes
