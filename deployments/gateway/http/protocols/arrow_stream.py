"""Arrow IPC streams: columns of rows as views of a body, and answers as views of their rows.

A column is a list (ragged rows), fixed-size lists (further axes) or plain values, of numbers,
bools, texts or bytes; a list may hold fixed-size lists, and nothing else is nested. Record batches
are one table. Nulls, dictionaries, compression and other types are refused. Nothing is believed:
every offset is compared with what it points into before it is followed, offsets of lists must rise,
and buffers may not share bytes, so a body never stands for more than it holds. A view of numbers is
no copy; bools are unpacked, texts and bytes become Python's. BF16, which Arrow lacks, is UInt16
with the field's metadata `datatype: BF16`.
Source: Arrow Columnar Format 1.5, "Serialization and IPC", Message.fbs, Schema.fbs; FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import flatbuffers
import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols.tensors import MAX_DIM, MAX_RANK, RowTensor, runs
from deployments.gateway.rows import Array
from runtimes.types import DTYPES

MAX_FIELDS, MAX_PARTS = 64, 2048  # a part is a column of a batch; each takes up to 20 us
MAX_HEAD_BYTES = 262_144  # of a message
MAX_BOOLS = 64 << 20  # of a request: each takes a byte here, and a bit in the body
DATATYPE = "datatype"  # key of a field's metadata
_KEPT_SCHEMA_BYTES = 4096
_NOT_LAST = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3  # of MessageHeader
_INT, _FLOAT, _BINARY, _UTF8, _BOOL, _LIST, _FIXED = 2, 3, 4, 5, 6, 12, 16  # of Type
_LARGE_BINARY, _LARGE_UTF8, _LARGE_LIST = 19, 20, 21
_V4, _V5 = 3, 4  # of MetadataVersion
_FLOATS = ("FP16", "FP32", "FP64")  # by Precision
_STRINGS = {_BINARY: 4, _UTF8: 4, _LARGE_BINARY: 8, _LARGE_UTF8: 8}
_LISTS = {_LIST: 4, _LARGE_LIST: 8}
_U8, _BYTE, _I16 = struct.Struct("<B"), struct.Struct("<?"), struct.Struct("<h")
_U16, _U32, _I32, _I64 = (struct.Struct(f"<{code}") for code in "HIiq")
_PAIR, _MARK = struct.Struct("<qq"), struct.Struct("<II")
_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a column. `offset_bytes`: of a list's offsets, 0: rows have one shape; `sizes`:
    of fixed-size lists; `text_bytes`: of the offsets of texts and bytes, 0: it has none."""

    name: str
    datatype: str
    offset_bytes: int = 0
    sizes: tuple[int, ...] = ()
    text_bytes: int = 0

    @property
    def nodes(self) -> int:
        return 1 + bool(self.offset_bytes) + len(self.sizes)

    @property
    def buffers(self) -> int:
        """One that says what is null for each node, those of offsets, and the values."""
        return self.nodes + bool(self.offset_bytes) + bool(self.text_bytes) + 1


@dataclass(frozen=True, slots=True)
class Part:
    """A column's rows in one batch. `offsets`: of a list; `ends`: of texts and bytes in `values`,
    which are then UINT8."""

    rows: int
    values: Array
    offsets: Array | None = None
    ends: Array | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """`parts`: of each column by its name. `rows`: of each column, in all."""

    columns: tuple[Column, ...]
    metadata: Mapping[str, str]
    parts: Mapping[str, list[Part]]
    rows: int

    def column(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)

    def elements(self, name: str) -> int:
        per_value = 8 if self.column(name).datatype == "BOOL" else 1
        counts = [
            per_value * len(part.values) if part.ends is None else len(part.ends) - 1
            for part in self.parts[name]
        ]
        return sum(counts)

    def split(self, name: str) -> list[Array]:
        """An array a row, of the row's own shape; of numbers read-only views."""
        column, found = self.column(name), []
        for part in self.parts[name]:
            found += _rows(column, part)
        return found


def read(body: bytes | memoryview) -> Stream:
    """The table of a whole stream. Raises BadRequest for anything else."""
    view = memoryview(body).cast("B")
    try:
        return _read(view)
    except (struct.error, UnicodeDecodeError, OverflowError):
        raise _malformed("a message's metadata cannot be read") from None


def _read(view: memoryview) -> Stream:
    messages = _messages(view)
    kind, header, _ = next(messages, (0, None, view))
    if kind != _SCHEMA or header is None:
        raise _malformed("it does not begin with a schema")
    head = bytes(header.view)
    columns, metadata = (_kept_schema if len(head) <= _KEPT_SCHEMA_BYTES else _schema)(head)
    parts: dict[str, list[Part]] = {column.name: [] for column in columns}
    rows = made_parts = bools = 0
    for kind, header, data in messages:
        if kind != _RECORD_BATCH or header is None:
            raise _malformed("only record batches may follow the schema, and no dictionaries")
        made_parts += len(columns) or 1
        if made_parts > MAX_PARTS:
            raise BadRequest(
                f"The Arrow stream has more record batches than {MAX_PARTS} by its fields; send "
                "larger ones."
            )
        count, made = _batch(columns, header, data)
        rows += count
        for column, part in zip(columns, made, strict=True):
            parts[column.name].append(part)
            bools += len(part.values) * 8 if column.datatype == "BOOL" else 0
    if bools > MAX_BOOLS:
        raise BadRequest(f"The Arrow stream has more than {MAX_BOOLS} bools.")
    return Stream(columns, metadata, parts, rows)


def _malformed(why: str) -> BadRequest:
    return BadRequest(f"The body is no Arrow IPC stream that can be read: {why}.")


class _Table:
    """A table of a flatbuffer. Raises struct.error for what points outside of it."""

    __slots__ = ("pos", "size", "view", "vtable")

    def __init__(self, view: memoryview, pos: int) -> None:
        self.view, self.pos = view, pos
        self.vtable = pos - _I32.unpack_from(view, pos)[0]
        if self.vtable < 0:
            raise struct.error
        self.size: int = _U16.unpack_from(view, self.vtable)[0]

    def at(self, slot: int) -> int:
        """Where the field is, 0: it has its default."""
        entry = 4 + 2 * slot
        if entry + 2 > self.size:
            return 0
        offset: int = _U16.unpack_from(self.view, self.vtable + entry)[0]
        return self.pos + offset if offset else 0

    def value(self, slot: int, kind: struct.Struct) -> Any:
        at = self.at(slot)
        return kind.unpack_from(self.view, at)[0] if at else 0

    def table(self, slot: int) -> _Table | None:
        at = self.at(slot)
        return _Table(self.view, at + _U32.unpack_from(self.view, at)[0]) if at else None

    def vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Where its items begin, and how many they are."""
        at = self.at(slot)
        if not at:
            return 0, 0
        start = at + _U32.unpack_from(self.view, at)[0]
        count = _U32.unpack_from(self.view, start)[0]
        if start + 4 + count * item_bytes > len(self.view):
            raise struct.error
        return start + 4, count

    def tables(self, slot: int) -> list[_Table]:
        start, count = self.vector(slot, 4)
        if count > MAX_FIELDS:
            raise BadRequest(f"The Arrow schema lists {count} of something, of {MAX_FIELDS}.")
        places = range(start, start + 4 * count, 4)
        return [_Table(self.view, at + _U32.unpack_from(self.view, at)[0]) for at in places]

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        start, count = self.vector(slot, _PAIR.size)
        return list(_PAIR.iter_unpack(self.view[start : start + _PAIR.size * count]))

    def text(self, slot: int) -> str:
        start, count = self.vector(slot, 1)
        return str(self.view[start : start + count], "utf-8")

    def metadata(self, slot: int) -> dict[str, str]:
        return {pair.text(0): pair.text(1) for pair in self.tables(slot)}


def _messages(view: memoryview) -> Iterator[tuple[int, _Table | None, memoryview]]:
    """Of each message the kind of its header, the header, and the bytes that belong to it."""
    at = 0
    while at < len(view):
        if len(view) - at < _MARK.size:
            raise _malformed("it ends within a message")
        mark, size = _MARK.unpack_from(view, at)
        if mark != _NOT_LAST:
            raise _malformed(
                "a message begins with other bytes (a file, or the format before 0.15)"
            )
        at += _MARK.size
        if not size:
            if at != len(view):
                raise _malformed(f"{len(view) - at} bytes follow its end")
            return
        if size > MAX_HEAD_BYTES:
            raise _malformed(f"a message's metadata has {size} bytes, of at most {MAX_HEAD_BYTES}")
        head = view[at : at + size]
        message = _Table(head, _U32.unpack_from(head, 0)[0])
        if message.value(0, _I16) not in (_V4, _V5):
            raise _malformed("its metadata is of another version than V4 or V5")
        at += size
        length = message.value(3, _I64)
        if not 0 <= length <= len(view) - at or len(head) < size:
            raise _malformed("it ends within a message")
        yield message.value(1, _U8), message.table(2), view[at : at + length]
        at += length


# ---- the schema -------------------------------------------------------------------------------


def _schema(head: bytes) -> tuple[tuple[Column, ...], dict[str, str]]:
    view = memoryview(head)
    schema = _Table(view, _U32.unpack_from(view, 0)[0]).table(2)
    assert schema is not None
    if schema.value(0, _I16):
        raise BadRequest("The Arrow stream is big-endian; send it little-endian.")
    columns = tuple([_column(field) for field in schema.tables(1)])
    if len({column.name for column in columns}) != len(columns):
        raise BadRequest("Two fields of the Arrow schema have one name; names must be unique.")
    return columns, schema.metadata(2)


_kept_schema = lru_cache(64)(_schema)


def _column(field: _Table) -> Column:
    name, sizes, offset_bytes = field.text(0), [], 0
    datatype = field.metadata(6).get(DATATYPE, "")
    kind = field.value(2, _U8)
    if kind in _LISTS:
        _refuse_dictionary(field, name)
        field, offset_bytes = _child(field, name), _LISTS[kind]
        kind = field.value(2, _U8)
    while kind == _FIXED:
        _refuse_dictionary(field, name)
        of_type = field.table(3)
        size = 0 if of_type is None else of_type.value(0, _I32)
        sizes.append(size)
        if size < 1 or prod(sizes) > MAX_DIM or len(sizes) + 2 > MAX_RANK:
            raise BadRequest(
                f"Field '{name}': fixed-size lists have 1 to {MAX_DIM} entries in all, and "
                f"{MAX_RANK} axes at most."
            )
        field = _child(field, name)
        kind = field.value(2, _U8)
    _refuse_dictionary(field, name)
    datatype = datatype or field.metadata(6).get(DATATYPE, "")
    text_bytes = _STRINGS.get(kind, 0)
    found = "BYTES" if text_bytes else _datatype(field, kind, name)
    if datatype == "BF16" and found == "UINT16":
        found = "BF16"
    elif datatype not in ("", found):
        raise BadRequest(f"Field '{name}' is {found}, and its metadata says {datatype[:20]}.")
    return Column(name, found, offset_bytes, tuple(sizes), text_bytes)


def _child(field: _Table, name: str) -> _Table:
    children = field.tables(5)
    if len(children) != 1:
        raise _malformed(f"field '{name}' is a list of {len(children)} types")
    return children[0]


def _refuse_dictionary(field: _Table, name: str) -> None:
    if field.at(4):
        raise BadRequest(f"Field '{name}' is dictionary-encoded; send its values themselves.")


def _datatype(field: _Table, kind: int, name: str) -> str:
    of_type = field.table(3)
    if kind == _BOOL:
        return "BOOL"
    if kind == _FLOAT and of_type is not None:
        precision = of_type.value(0, _I16)
        if 0 <= precision < len(_FLOATS):
            return _FLOATS[precision]
    if kind == _INT and of_type is not None:
        found = f"{'' if of_type.value(1, _BYTE) else 'U'}INT{of_type.value(0, _I32)}"
        if found in DTYPES:
            return found
    raise BadRequest(
        f"Field '{name}' has a type that is not supported; send (a list of) integers, floats, "
        "bools, utf8 or binary, with fixed-size lists for further axes."
    )


# ---- batches ----------------------------------------------------------------------------------


class _Batch:
    """Hands out a batch's nodes and buffers in order."""

    def __init__(self, header: _Table, data: memoryview) -> None:
        self._nodes, self._buffers = iter(header.pairs(1)), iter(header.pairs(2))
        self._data, self._left = data, len(data)

    def node(self, name: str) -> int:
        """The length of the next node."""
        length, nulls = next(self._nodes)
        if nulls:
            raise BadRequest(f"Field '{name}' has nulls; every value must be there.")
        if length < 0:
            raise _malformed(f"field '{name}' has a negative length")
        return length

    def skip(self) -> None:
        """The buffer that says what is null: nothing is."""
        next(self._buffers)

    def buffer(self, name: str, least: int) -> memoryview:
        """The next buffer's first `least` bytes. Buffers together take no more than there is."""
        offset, size = next(self._buffers)
        if not 0 <= offset <= offset + size <= len(self._data):
            raise _malformed(f"a buffer of field '{name}' lies outside of its message")
        self._left -= least
        if size < least or self._left < 0:
            raise _malformed(f"a buffer of field '{name}' has {size} bytes, of {least}")
        return self._data[offset : offset + least]

    def offsets(self, name: str, item_bytes: int, count: int) -> Array:
        """Of so many lists or texts: rising, from 0 on or later."""
        if not count:
            next(self._buffers)
            return np.zeros(1, np.int64)
        view = self.buffer(name, (count + 1) * item_bytes)
        found: Array = np.frombuffer(view, np.int32 if item_bytes == 4 else np.int64)
        if found[0] < 0 or (found[1:] < found[:-1]).any():
            raise _malformed(f"the offsets of field '{name}' do not rise")
        return found


def _batch(columns: tuple[Column, ...], header: _Table, data: memoryview) -> tuple[int, list[Part]]:
    if header.at(3):
        raise BadRequest("The Arrow stream is compressed; send it uncompressed.")
    rows = header.value(0, _I64)
    batch = _Batch(header, data)
    try:
        parts = [_part(column, batch, rows) for column in columns]
    except StopIteration:
        raise _malformed("a record batch has fewer buffers than its schema needs") from None
    return rows, parts


def _part(column: Column, batch: _Batch, rows: int) -> Part:
    name, needed, offsets = column.name, rows, None
    if batch.node(name) != rows:
        raise _malformed(f"field '{name}' has another length than its record batch")
    batch.skip()
    held = rows
    if column.offset_bytes:
        offsets = batch.offsets(name, column.offset_bytes, rows)
        needed, held = int(offsets[-1]), batch.node(name)
        batch.skip()
    for size in column.sizes:
        _check_held(name, needed, held)
        needed, held = needed * size, batch.node(name)
        batch.skip()
    _check_held(name, needed, held)
    if column.text_bytes:
        ends = batch.offsets(name, column.text_bytes, needed)
        values = np.frombuffer(batch.buffer(name, int(ends[-1])), np.uint8)
        return Part(rows, values, offsets, ends)
    if column.datatype == "BOOL":
        return Part(rows, np.frombuffer(batch.buffer(name, -(-needed // 8)), np.uint8), offsets)
    dtype = DTYPES[column.datatype]
    view = batch.buffer(name, needed * dtype.itemsize)
    return Part(rows, np.frombuffer(view, dtype), offsets)


def _check_held(name: str, needed: int, held: int) -> None:
    if needed > held:
        raise _malformed(f"the lists of field '{name}' end behind their values")


def _rows(column: Column, part: Part) -> list[Array]:
    offsets = part.offsets
    lists = part.rows if offsets is None else int(offsets[-1])
    shape = (lists, *column.sizes)
    values = part.values
    if part.ends is not None:
        values = _bytes(part.ends, values)
    elif column.datatype == "BOOL":
        values = np.unpackbits(values, count=prod(shape), bitorder="little").view(np.bool_)
    dense = values.reshape(shape)
    if offsets is None:
        return [dense[row, ...] for row in range(lists)]
    ends = offsets.tolist()
    return [dense[start:end] for start, end in pairwise(ends)]


def _bytes(ends: Array, values: Array) -> Array:
    data, at = values.data, ends.tolist()
    found = np.empty(len(at) - 1, dtype=object)
    found[:] = [bytes(data[start:end]) for start, end in pairwise(at)]
    return found


# ---- answers ----------------------------------------------------------------------------------


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
    end = _MARK.pack(_NOT_LAST, 0)

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
    padding = -(_MARK.size + len(head)) % _ALIGNED
    return _MARK.pack(_NOT_LAST, len(head) + padding) + head + bytes(padding)


def _message(builder: flatbuffers.Builder, kind: int, header: int, body_bytes: int) -> bytes:
    builder.StartObject(5)
    builder.PrependInt16Slot(0, _V5, 0)
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
    return _message(builder, _SCHEMA, builder.EndObject(), 0)


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
    kinds: list[tuple[int, int]] = [(_LIST, 0)] if column.offset_bytes else []
    kinds += [(_FIXED, size) for size in column.sizes]
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
    if kind == _FIXED:
        builder.PrependInt32Slot(0, size, 0)
    elif not kind and datatype in _FLOATS:
        kind = _FLOAT
        builder.PrependInt16Slot(0, _FLOATS.index(datatype), 0)
    elif not kind and datatype in ("BOOL", "BYTES"):
        kind = _BOOL if datatype == "BOOL" else _BINARY
    elif not kind:
        kind = _INT
        builder.PrependInt32Slot(0, 8 * DTYPES[datatype].itemsize, 0)
        builder.PrependBoolSlot(1, datatype.startswith("INT"), False)
    return kind, builder.EndObject()


def _batch_message(
    rows: int, nodes: Sequence[int], places: Sequence[int], body_bytes: int
) -> bytes:
    made = bytearray(_batch_form(len(nodes), len(places) // 2))
    view = memoryview(made)[_MARK.size :]
    message = _Table(view, _U32.unpack_from(view, 0)[0])
    header = message.table(2)
    assert header is not None
    _I64.pack_into(view, message.at(3), body_bytes)
    _I64.pack_into(view, header.at(0), rows)
    lengths = [each for node in nodes for each in (node, 0)]
    struct.pack_into(f"<{len(lengths)}q", view, header.vector(1, _PAIR.size)[0], *lengths)
    struct.pack_into(f"<{len(places)}q", view, header.vector(2, _PAIR.size)[0], *places)
    return bytes(made)


@lru_cache(64)
def _batch_form(nodes: int, buffers: int) -> bytes:
    """A record batch's message in which numbers are still to be put."""
    builder = flatbuffers.Builder(1024)
    vectors = []
    for count in (nodes, buffers):
        builder.StartVector(_PAIR.size, count, _ALIGNED)
        for _ in range(2 * count):
            builder.PrependInt64(0)
        vectors.append(builder.EndVector())
    builder.StartObject(5)
    builder.PrependInt64Slot(0, 1, 0)  # a default would have no place
    builder.PrependUOffsetTRelativeSlot(1, vectors[0], 0)
    builder.PrependUOffsetTRelativeSlot(2, vectors[1], 0)
    return _message(builder, _RECORD_BATCH, builder.EndObject(), 1)
