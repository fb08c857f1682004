"""Arrow IPC streams: columns of rows as views of a body. `arrow_answer` writes them.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols.arrow_messages import (
    BINARY,
    BOOL,
    BYTE,
    DATATYPE,
    FIXED,
    FLOAT,
    FLOATS,
    I16,
    I32,
    I64,
    INT,
    LARGE_BINARY,
    LARGE_LIST,
    LARGE_UTF8,
    LIST,
    MARK,
    NOT_LAST,
    RECORD_BATCH,
    SCHEMA,
    U8,
    U32,
    UTF8,
    V4,
    V5,
    Column,
    Table,
)
from deployments.gateway.http.protocols.tensors import MAX_DIM, MAX_RANK
from deployments.gateway.rows import Array
from runtimes.types import DTYPES

MAX_PARTS = 2048  # a part is a column of a batch; each takes up to 20 us
MAX_HEAD_BYTES = 262_144  # of a message
MAX_BOOLS = 64 << 20  # of a request: each takes a byte here, and a bit in the body
_KEPT_SCHEMA_BYTES = 4096
_STRINGS = {BINARY: 4, UTF8: 4, LARGE_BINARY: 8, LARGE_UTF8: 8}
_LISTS = {LIST: 4, LARGE_LIST: 8}


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
    if kind != SCHEMA or header is None:
        raise _malformed("it does not begin with a schema")
    head = bytes(header.view)
    columns, metadata = (_kept_schema if len(head) <= _KEPT_SCHEMA_BYTES else _schema)(head)
    parts: dict[str, list[Part]] = {column.name: [] for column in columns}
    rows = made_parts = bools = 0
    for kind, header, data in messages:
        if kind != RECORD_BATCH or header is None:
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


def _messages(view: memoryview) -> Iterator[tuple[int, Table | None, memoryview]]:
    """Of each message the kind of its header, the header, and the bytes that belong to it."""
    at = 0
    while at < len(view):
        if len(view) - at < MARK.size:
            raise _malformed("it ends within a message")
        mark, size = MARK.unpack_from(view, at)
        if mark != NOT_LAST:
            raise _malformed(
                "a message begins with other bytes (a file, or the format before 0.15)"
            )
        at += MARK.size
        if not size:
            if at != len(view):
                raise _malformed(f"{len(view) - at} bytes follow its end")
            return
        if size > MAX_HEAD_BYTES:
            raise _malformed(f"a message's metadata has {size} bytes, of at most {MAX_HEAD_BYTES}")
        head = view[at : at + size]
        message = Table(head, U32.unpack_from(head, 0)[0])
        if message.value(0, I16) not in (V4, V5):
            raise _malformed("its metadata is of another version than V4 or V5")
        at += size
        length = message.value(3, I64)
        if not 0 <= length <= len(view) - at or len(head) < size:
            raise _malformed("it ends within a message")
        yield message.value(1, U8), message.table(2), view[at : at + length]
        at += length


# ---- the schema -------------------------------------------------------------------------------


def _schema(head: bytes) -> tuple[tuple[Column, ...], dict[str, str]]:
    view = memoryview(head)
    schema = Table(view, U32.unpack_from(view, 0)[0]).table(2)
    assert schema is not None
    if schema.value(0, I16):
        raise BadRequest("The Arrow stream is big-endian; send it little-endian.")
    columns = tuple([_column(field) for field in schema.tables(1)])
    if len({column.name for column in columns}) != len(columns):
        raise BadRequest("Two fields of the Arrow schema have one name; names must be unique.")
    return columns, schema.metadata(2)


_kept_schema = lru_cache(64)(_schema)


def _column(field: Table) -> Column:
    name, sizes, offset_bytes = field.text(0), [], 0
    datatype = field.metadata(6).get(DATATYPE, "")
    kind = field.value(2, U8)
    if kind in _LISTS:
        _refuse_dictionary(field, name)
        field, offset_bytes = _child(field, name), _LISTS[kind]
        kind = field.value(2, U8)
    while kind == FIXED:
        _refuse_dictionary(field, name)
        of_type = field.table(3)
        size = 0 if of_type is None else of_type.value(0, I32)
        sizes.append(size)
        if size < 1 or prod(sizes) > MAX_DIM or len(sizes) + 2 > MAX_RANK:
            raise BadRequest(
                f"Field '{name}': fixed-size lists have 1 to {MAX_DIM} entries in all, and "
                f"{MAX_RANK} axes at most."
            )
        field = _child(field, name)
        kind = field.value(2, U8)
    _refuse_dictionary(field, name)
    datatype = datatype or field.metadata(6).get(DATATYPE, "")
    text_bytes = _STRINGS.get(kind, 0)
    found = "BYTES" if text_bytes else _datatype(field, kind, name)
    if datatype == "BF16" and found == "UINT16":
        found = "BF16"
    elif datatype not in ("", found):
        raise BadRequest(f"Field '{name}' is {found}, and its metadata says {datatype[:20]}.")
    return Column(name, found, offset_bytes, tuple(sizes), text_bytes)


def _child(field: Table, name: str) -> Table:
    children = field.tables(5)
    if len(children) != 1:
        raise _malformed(f"field '{name}' is a list of {len(children)} types")
    return children[0]


def _refuse_dictionary(field: Table, name: str) -> None:
    if field.at(4):
        raise BadRequest(f"Field '{name}' is dictionary-encoded; send its values themselves.")


def _datatype(field: Table, kind: int, name: str) -> str:
    of_type = field.table(3)
    if kind == BOOL:
        return "BOOL"
    if kind == FLOAT and of_type is not None:
        precision = of_type.value(0, I16)
        if 0 <= precision < len(FLOATS):
            return FLOATS[precision]
    if kind == INT and of_type is not None:
        found = f"{'' if of_type.value(1, BYTE) else 'U'}INT{of_type.value(0, I32)}"
        if found in DTYPES:
            return found
    raise BadRequest(
        f"Field '{name}' has a type that is not supported; send (a list of) integers, floats, "
        "bools, utf8 or binary, with fixed-size lists for further axes."
    )


# ---- batches ----------------------------------------------------------------------------------


class _Batch:
    """Hands out a batch's nodes and buffers in order."""

    def __init__(self, header: Table, data: memoryview) -> None:
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


def _batch(columns: tuple[Column, ...], header: Table, data: memoryview) -> tuple[int, list[Part]]:
    if header.at(3):
        raise BadRequest("The Arrow stream is compressed; send it uncompressed.")
    rows = header.value(0, I64)
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
