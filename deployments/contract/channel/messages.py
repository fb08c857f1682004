"""What frames between a gateway and a replica carry: batches and their answers; what is generated
is in `stream_messages`.

A message is a header (msgpack) and the raw buffers behind it, one a tensor, which are neither
copied into the header nor out of it. A ragged batch is one contiguous buffer a tensor plus the
rows' shapes; nothing is padded. `shapes` is None when every row is one-dimensional and as long as
its length (the common case). What is read is checked before any of it is used: sizes, shapes and
datatypes account for every byte, or MessageError says what does not.
Times are budgets and durations in seconds, never clock readings.
Source: msgpack as msgspec reads it, strictly by type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, prod
from struct import Struct
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from deployments.contract.channel.frames import HEAD, Buffer
from routers.api.requests import FlowWork
from runtimes.datatypes import DTYPES
from runtimes.types import Batch, Ragged

Shapes = tuple[tuple[int, ...], ...]
T = TypeVar("T")
_SIZE = Struct("<I")
_ALIGNED_BYTES = 8
_MOST_PRIORITIES = 256  # a replica keeps a list of them
_MOST_AXES, _LARGEST_EMPTY = 32, 1 << 30  # of a shape that numpy can make an array of


class MessageError(Exception):
    """A message that does not add up; the frame around it was whole."""


class Column(NamedTuple):
    """One tensor of a batch: datatype, all rows' elements (bytes, or a list of bytes for BYTES).
    What was read holds views where it says bytes."""

    datatype: str
    buffer: bytes | list[bytes]
    shapes: Shapes | None


class BatchCall(NamedTuple):
    """`budget_s`: how long anybody still waits for it. `lengths`: int32 [rows] as bytes.
    `outputs`: wanted names, None for all. rank, predicted_s, charges, waiting: as in
    `api.actions.Dispatch`; waiting None: as said before. `tells_start`: say when it starts."""

    budget_s: float
    lengths: bytes
    inputs: dict[str, Column]
    outputs: tuple[str, ...] | None
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()
    tells_start: bool = False


class RowError(NamedTuple):
    """`callers_fault`: the input is bad (400); `not_finite`: the answer is NaN or infinity (500);
    else the runtime failed on this row alone (503)."""

    row: int
    callers_fault: bool
    message: str
    not_finite: bool = False


class BatchReply(NamedTuple):
    """`busy`: nothing was started. `outputs` hold the rows that did not fail, in order.

    wait_s: from arrival at the replica to the device; service_s: on the device; stages: pad, copy
    in, run, copy out, post-process seconds; duty: share of the last 10 to 20 s of wall time that
    the device was busy. The rest as in `api.requests.Report`, seconds counted from the answer;
    waiting None: as said before.
    """

    busy: bool
    outputs: dict[str, Column]
    errors: tuple[RowError, ...]
    wait_s: float
    service_s: float
    padded_tokens: int
    stages: tuple[float, float, float, float, float]
    inflight: int
    held: int
    seen: int
    retry_in_s: float
    duty: float
    free_in_s: float = 0.0
    virtual_time: tuple[float, ...] = ()
    served: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()

    def transport_s(self, round_trip_s: float) -> float:
        """What of the round trip passed on the way and not at the replica."""
        return max(round_trip_s - self.wait_s - self.service_s, 0.0)


# ---- messages and bytes -----------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """What a runtime says may be numpy's: numbers, bytes."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent")


encoded = msgspec.msgpack.Encoder(enc_hook=_plain).encode


class _ColumnHead(NamedTuple):
    """A column without its buffer, which has `size` bytes; of BYTES the `items` are all."""

    name: str
    datatype: str
    size: int
    items: list[bytes] | None
    shapes: Shapes | None


class _CallHead(NamedTuple):
    call: BatchCall  # with no rows and no inputs
    lengths_bytes: int
    inputs: list[_ColumnHead]


class _ReplyHead(NamedTuple):
    reply: BatchReply  # with no outputs
    outputs: list[_ColumnHead]


_read_call = msgspec.msgpack.Decoder(_CallHead).decode
_read_reply = msgspec.msgpack.Decoder(_ReplyHead).decode


def encode_call(call: BatchCall) -> list[Buffer]:
    heads, buffers = _apart(call.inputs)
    bare = call._replace(lengths=b"", inputs={})
    return [_header(_CallHead(bare, len(call.lengths), heads)), call.lengths, *buffers]


def decode_call(body: memoryview) -> BatchCall:
    """Raises MessageError."""
    head, buffers = _apart_again(body, _read_call)
    size = head.lengths_bytes
    check_times(head.call.budget_s, head.call.predicted_s)
    check_turn(head.call.rank, head.call.charges, head.call.waiting)
    if not 0 < size <= len(buffers) or size % 4:
        raise MessageError(f"{size} bytes of lengths in a message with {len(buffers)} behind it")
    lengths = np.frombuffer(buffers[:size], dtype=np.int32)
    if int(lengths.min()) < 0:
        raise MessageError("a row of less than no elements")
    inputs = _together(head.inputs, buffers[size:], len(lengths), int(lengths.sum()))
    lengths_view: Any = buffers[:size]
    return head.call._replace(lengths=lengths_view, inputs=inputs)


def encode_reply(reply: BatchReply) -> list[Buffer]:
    heads, buffers = _apart(reply.outputs)
    return [_header(_ReplyHead(reply._replace(outputs={}), heads)), *buffers]


def decode_reply(body: memoryview) -> BatchReply:
    """Raises MessageError."""
    head, buffers = _apart_again(body, _read_reply)
    return head.reply._replace(outputs=_together(head.outputs, buffers))


def _header(head: Any) -> bytes:
    """With its size before it; padded, so that buffers begin where arrays of any type may."""
    header = encoded(head)
    return b"".join((_SIZE.pack(len(header)), header, bytes(_padding(len(header)))))


def _padding(header_bytes: int) -> int:
    return -(HEAD.size + _SIZE.size + header_bytes) % _ALIGNED_BYTES


def _apart_again(body: memoryview, read: Callable[[Any], T]) -> tuple[T, memoryview]:
    """The header, and the view of what is behind it."""
    if len(body) < _SIZE.size:
        raise MessageError("a message without a header")
    (size,) = _SIZE.unpack_from(body)
    end = _SIZE.size + size
    behind = end + _padding(size)
    if behind > len(body):
        raise MessageError("a header longer than its message")
    return read_header(body[_SIZE.size : end], read), body[behind:]


def read_header(data: memoryview, read: Callable[[Any], T]) -> T:
    try:
        return read(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise MessageError(f"a header that cannot be read: {fault}") from fault


def check_turn(
    rank: tuple[int, int, float],
    charges: tuple[FlowWork, ...],
    waiting: tuple[FlowWork, ...] | None,
) -> None:
    """Whose turn it is, and who pays. Raises MessageError."""
    _, priority, tag = rank
    if not 0 <= priority < _MOST_PRIORITIES:
        raise MessageError(f"a lease of priority {priority}")
    check_times(tag, *[work[2] for work in (*charges, *(waiting or ()))])


def check_times(*seconds: float) -> None:
    """Of the other gateways too: a replica keeps the highest tag, and a timer that is no number
    holds up those behind it."""
    if not all(map(isfinite, seconds)):
        raise MessageError("a time that is no number, or has no end")


def _apart(columns: Mapping[str, Column]) -> tuple[list[_ColumnHead], list[Buffer]]:
    heads: list[_ColumnHead] = []
    buffers: list[Buffer] = []
    for name, (datatype, buffer, shapes) in columns.items():
        if isinstance(buffer, list):
            heads.append(_ColumnHead(name, datatype, 0, buffer, shapes))
        else:
            heads.append(_ColumnHead(name, datatype, len(buffer), None, shapes))
            buffers.append(buffer)
    return heads, buffers


def _together(
    heads: Sequence[_ColumnHead], buffers: memoryview, rows: int = 0, elements: int = 0
) -> dict[str, Column]:
    """Columns with their buffers, all bytes accounted for. `rows`, `elements`: of a column that
    tells no shapes of its own."""
    columns: dict[str, Column] = {}
    at = 0
    for head in heads:
        count = _elements(head, rows, elements)
        if head.items is not None:
            if head.datatype != "BYTES" or head.size or len(head.items) != count:
                raise MessageError(f"{head.name}: {len(head.items)} items for {count} elements")
            columns[head.name] = Column(head.datatype, head.items, head.shapes)
            continue
        if head.datatype not in DTYPES or head.datatype == "BYTES":
            raise MessageError(f"{head.name}: datatype {head.datatype} has no buffer")
        if head.size != count * np.dtype(DTYPES[head.datatype]).itemsize:
            raise MessageError(f"{head.name}: {head.size} bytes for {count} {head.datatype}")
        buffer: Any = buffers[at : at + head.size]
        columns[head.name] = Column(head.datatype, buffer, head.shapes)
        at += head.size
    if len(columns) != len(heads) or at != len(buffers):
        raise MessageError(f"{len(buffers)} bytes behind a header that accounts for {at}")
    return columns


def _elements(head: _ColumnHead, rows: int, elements: int) -> int:
    if head.shapes is None:
        if not rows:
            raise MessageError(f"{head.name}: rows without shapes")
        return elements
    if rows and len(head.shapes) != rows:
        raise MessageError(f"{head.name}: {len(head.shapes)} shapes for {rows} rows")
    count = 0
    for shape in head.shapes:
        if len(shape) > _MOST_AXES:  # the product of thousands takes minutes
            raise MessageError(f"{head.name}: a shape that no array has")
        size = prod(shape)
        if shape and min(shape) < 0:
            raise MessageError(f"{head.name}: a shape of less than no elements")
        if not size and prod(filter(None, shape)) > _LARGEST_EMPTY:
            raise MessageError(f"{head.name}: a shape that no array has")
        count += size
    return count


# ---- columns and arrays -----------------------------------------------------------------------


def pack(datatype: str, rows: Sequence[np.ndarray[Any, Any]], shapes: Shapes | None) -> Column:
    """`rows`: flat arrays, one a row."""
    if datatype == "BYTES":
        return Column(datatype, [item for row in rows for item in row.tolist()], shapes)
    joins = datatype != "BF16"  # whose arrays have no buffer that Python knows
    parts: list[Any] = [r if joins and r.flags.c_contiguous else r.tobytes() for r in rows]
    return Column(datatype, b"".join(parts), shapes)


def to_batch(call: BatchCall) -> Batch:
    lengths = np.frombuffer(call.lengths, dtype=np.int32).astype(np.int64)
    default = tuple([(n,) for n in lengths.tolist()])
    inputs = {
        name: Ragged(c.datatype, _array(c), default if c.shapes is None else c.shapes)
        for name, c in call.inputs.items()
    }
    return Batch(len(default), lengths, inputs, call.outputs)


def from_ragged(outputs: Mapping[str, Ragged]) -> dict[str, Column]:
    return {name: Column(r.datatype, _buffer(r), r.shapes) for name, r in outputs.items()}


def rows_of(column: Column) -> list[np.ndarray[Any, Any]]:
    """Each row as an array of its own shape (views of one buffer)."""
    flat = _array(column)
    shapes = column.shapes or ()
    if len(set(shapes)) == 1:
        grid = flat.reshape((len(shapes), *shapes[0]))
        # Of single elements a list would hold scalars, bare bytes even, and no arrays.
        return list(grid) if shapes[0] else [grid[row, ...] for row in range(len(shapes))]
    rows, start = [], 0
    for shape in shapes:
        size = prod(shape)
        rows.append(flat[start : start + size].reshape(shape))
        start += size
    return rows


def _array(column: Column) -> np.ndarray[Any, Any]:
    if column.datatype == "BYTES":
        flat = np.empty(len(column.buffer), dtype=object)
        flat[:] = column.buffer
        return flat
    array = np.frombuffer(column.buffer, dtype=DTYPES[column.datatype])  # type: ignore[arg-type]
    # Behind another frame of the same read a buffer may begin anywhere.
    return array if array.flags.aligned else array.copy()


def _buffer(ragged: Ragged) -> bytes | list[bytes]:
    return ragged.data.tolist() if ragged.datatype == "BYTES" else ragged.data.tobytes()
