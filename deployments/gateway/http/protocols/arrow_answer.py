"""Answers as Arrow IPC streams: one record batch, whose numbers are views of the answer's rows.

A message's head is built once for its form and filled in; the buffers behind it are sent as they
lie in a replica's frame. Bools are packed, texts and bytes put together.
Source: as `arrow_messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import flatbuffers
import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols.arrow_messages import (
    BINARY,
    BOOL,
    DATATYPE,
    FIXED,
    FLOAT,
    FLOATS,
    I64,
    INT,
    LIST,
    MARK,
    NOT_LAST,
    PAIR,
    RECORD_BATCH,
    SCHEMA,
    U32,
    V5,
    Column,
    Table,
)
from deployments.gateway.http.protocols.tensors import MAX_DIM, RowTensor, runs
from deployments.gateway.rows import Array
from runtimes.types import DTYPES

_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Written:
    """A stream that is to be sent: its bytes in order, and how many they are."""

    parts: Iterator[bytes | memoryview]
    size: int


def column_of(tensor: RowTensor, *, ragged: bool) -> Column:
    """The type of an output: a list where rows are `ragged`, else fixed-size lists. Raises
    BadRequest for rows that differ in another axis than that."""
    shapes = {row.shape[1:] if ragged else row.shape for row in tensor.rows}
    if len(shapes) > 1 or (ragged and not tensor.rows[0].ndim):
        raise BadRequest(
            f"The rows of output '{tensor.name}' differ in more than their first axis, which "
            "Arrow's lists cannot say; ask for JSON (Accept: application/json)."
        )
    sizes = next(iter(shapes))
    text_bytes = 4 if tensor.datatype == "BYTES" else 0
    return Column(tensor.name, tensor.datatype, 4 if ragged else 0, sizes, text_bytes)


def write(
    tensors: Sequence[RowTensor], columns: Sequence[Column], metadata: Mapping[str, str], most: int
) -> Written:
    """The table of these rows as one record batch; views of large numbers, at most `most` bytes
    each."""
    rows = len(tensors[0].rows)
    nodes: list[int] = []
    sizes: list[int] = []
    data: list[_Data] = []
    for tensor, column in zip(tensors, columns, strict=True):
        for each in _buffers(tensor, column, nodes):
            data.append(each)
            sizes.append(each.size)
    places: list[int] = []
    at = 0
    for size in sizes:
        places += (at, size)
        at += -(-size // _ALIGNED) * _ALIGNED
    schema = _schema_message(tuple(columns), tuple(metadata.items()))
    batch = _batch_message(rows, nodes, places, at)
    end = MARK.pack(NOT_LAST, 0)

    def parts() -> Iterator[bytes | memoryview]:
        yield schema + batch
        for each in data:
            yield from each.pieces(most)
            yield bytes(-each.size % _ALIGNED)
        yield end

    return Written(parts(), len(schema) + len(batch) + at + len(end))


@dataclass(frozen=True, slots=True)
class _Data:
    """One buffer: numbers as they lie in memory, or bytes."""

    size: int
    runs: Sequence[Array] = ()
    made: bytes = b""

    def pieces(self, most: int) -> Iterator[bytes | memoryview]:
        yield self.made
        for run in self.runs:
            view = run.view(np.uint8).data
            for start in range(0, len(view), most):
                yield view[start : start + most]


def _buffers(tensor: RowTensor, column: Column, nodes: list[int]) -> Iterator[_Data]:
    """Of a column, in the order of its fields; the lengths of these go to `nodes`."""
    count = len(tensor.rows)
    nodes.append(count)
    yield _Data(0)  # nothing is null
    if column.offset_bytes:
        lengths = [len(row) for row in tensor.rows]
        yield _offsets(lengths, tensor.name)
        count = sum(lengths)
        nodes.append(count)
        yield _Data(0)
    for size in column.sizes:
        count *= size
        nodes.append(count)
        yield _Data(0)
    if column.datatype == "BYTES":
        items = [item for row in tensor.rows for item in row.reshape(-1).tolist()]
        yield _offsets([len(item) for item in items], tensor.name)
        made = b"".join(items)
        yield _Data(len(made), made=made)
    elif column.datatype == "BOOL":
        flat = np.concatenate([row.reshape(-1) for row in tensor.rows])
        made = np.packbits(flat, bitorder="little").tobytes()
        yield _Data(len(made), made=made)
    else:
        yield _Data(count * DTYPES[column.datatype].itemsize, list(runs(tensor.rows)))


def _offsets(lengths: Sequence[int], name: str) -> _Data:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > MAX_DIM:
        raise BadRequest(f"Output '{name}' has {ends[-1]} elements, of at most {MAX_DIM}.")
    made = ends.astype(np.int32).tobytes()
    return _Data(len(made), made=made)


def _framed(builder: flatbuffers.Builder) -> bytes:
    head = bytes(builder.Output())
    padding = -(MARK.size + len(head)) % _ALIGNED
    return MARK.pack(NOT_LAST, len(head) + padding) + head + bytes(padding)


def _message(builder: flatbuffers.Builder, kind: int, header: int, body_bytes: int) -> bytes:
    builder.StartObject(5)
    builder.PrependInt16Slot(0, V5, 0)
    builder.PrependUint8Slot(1, kind, 0)
    builder.PrependUOffsetTRelativeSlot(2, header, 0)
    builder.PrependInt64Slot(3, body_bytes, 0)
    builder.Finish(builder.EndObject())
    return _framed(builder)


@lru_cache(64)
def _schema_message(columns: tuple[Column, ...], metadata: tuple[tuple[str, str], ...]) -> bytes:
    builder = flatbuffers.Builder(1024)
    fields = _offset_vector(builder, [_field(builder, column) for column in columns])
    pairs = _key_values(builder, metadata)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, fields, 0)
    builder.PrependUOffsetTRelativeSlot(2, pairs, 0)
    return _message(builder, SCHEMA, builder.EndObject(), 0)


def _offset_vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _key_values(builder: flatbuffers.Builder, pairs: Sequence[tuple[str, str]]) -> int:
    made = []
    for key, value in pairs:
        texts = builder.CreateString(key), builder.CreateString(value)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, texts[0], 0)
        builder.PrependUOffsetTRelativeSlot(1, texts[1], 0)
        made.append(builder.EndObject())
    return _offset_vector(builder, made)


def _field(builder: flatbuffers.Builder, column: Column) -> int:
    """The field with its children, the innermost made first."""
    kinds: list[tuple[int, int]] = [(LIST, 0)] if column.offset_bytes else []
    kinds += [(FIXED, size) for size in column.sizes]
    kinds.append((0, 0))
    field = 0
    for depth in reversed(range(len(kinds))):
        kind, of_type = _type(builder, *kinds[depth], column.datatype)
        name = builder.CreateString("item" if depth else column.name)
        children = _offset_vector(builder, [field] if field else [])
        note = [(DATATYPE, "BF16")] if not depth and column.datatype == "BF16" else []
        pairs = _key_values(builder, note)
        builder.StartObject(7)
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        builder.PrependUint8Slot(2, kind, 0)
        builder.PrependUOffsetTRelativeSlot(3, of_type, 0)
        builder.PrependUOffsetTRelativeSlot(5, children, 0)
        builder.PrependUOffsetTRelativeSlot(6, pairs, 0)
        field = builder.EndObject()
    return field


def _type(builder: flatbuffers.Builder, kind: int, size: int, datatype: str) -> tuple[int, int]:
    """Which of the types, and its table. `kind` 0: of the elements."""
    builder.StartObject(2)
    if kind == FIXED:
        builder.PrependInt32Slot(0, size, 0)
    elif not kind and datatype in FLOATS:
        kind = FLOAT
        builder.PrependInt16Slot(0, FLOATS.index(datatype), 0)
    elif not kind and datatype in ("BOOL", "BYTES"):
        kind = BOOL if datatype == "BOOL" else BINARY
    elif not kind:
        kind = INT
        builder.PrependInt32Slot(0, 8 * DTYPES[datatype].itemsize, 0)
        builder.PrependBoolSlot(1, datatype.startswith("INT"), False)
    return kind, builder.EndObject()


def _batch_message(
    rows: int, nodes: Sequence[int], places: Sequence[int], body_bytes: int
) -> bytes:
    made = bytearray(_batch_form(len(nodes), len(places) // 2))
    view = memoryview(made)[MARK.size :]
    message = Table(view, U32.unpack_from(view, 0)[0])
    header = message.table(2)
    assert header is not None
    I64.pack_into(view, message.at(3), body_bytes)
    I64.pack_into(view, header.at(0), rows)
    lengths = [each for node in nodes for each in (node, 0)]
    struct.pack_into(f"<{len(lengths)}q", view, header.vector(1, PAIR.size)[0], *lengths)
    struct.pack_into(f"<{len(places)}q", view, header.vector(2, PAIR.size)[0], *places)
    return bytes(made)


@lru_cache(64)
def _batch_form(nodes: int, buffers: int) -> bytes:
    """A record batch's message in which numbers are still to be put."""
    builder = flatbuffers.Builder(1024)
    vectors = []
    for count in (nodes, buffers):
        builder.StartVector(PAIR.size, count, _ALIGNED)
        for _ in range(2 * count):
            builder.PrependInt64(0)
        vectors.append(builder.EndVector())
    builder.StartObject(5)
    builder.PrependInt64Slot(0, 1, 0)  # a default would have no place
    builder.PrependUOffsetTRelativeSlot(1, vectors[0], 0)
    builder.PrependUOffsetTRelativeSlot(2, vectors[1], 0)
    return _message(builder, RECORD_BATCH, builder.EndObject(), 1)
