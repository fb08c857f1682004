"""The format of Arrow's messages: tables of a flatbuffer, and the types of columns.

Reading raises struct.error for whatever points outside of the buffer, and never looks before it.
Source: Arrow Columnar Format 1.5, "Serialization and IPC", Message.fbs, Schema.fbs; FlatBuffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from deployments.contract.errors import BadRequest

MAX_FIELDS = 64
DATATYPE = "datatype"  # key of a field's metadata
NOT_LAST = 0xFFFFFFFF
SCHEMA, RECORD_BATCH = 1, 3  # of MessageHeader
INT, FLOAT, BINARY, UTF8, BOOL, LIST, FIXED = 2, 3, 4, 5, 6, 12, 16  # of Type
LARGE_BINARY, LARGE_UTF8, LARGE_LIST = 19, 20, 21
V4, V5 = 3, 4  # of MetadataVersion
FLOATS = ("FP16", "FP32", "FP64")  # by Precision
U8, BYTE, I16 = struct.Struct("<B"), struct.Struct("<?"), struct.Struct("<h")
U16, U32, I32, I64 = (struct.Struct(f"<{code}") for code in "HIiq")
PAIR, MARK = struct.Struct("<qq"), struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a column. `offset_bytes`: of a list's offsets, 0: rows have one shape; `sizes`:
    of fixed-size lists; `text_bytes`: of the offsets of texts and bytes, 0: it has none."""

    name: str
    datatype: str
    offset_bytes: int = 0
    sizes: tuple[int, ...] = ()
    text_bytes: int = 0


class Table:
    """A table of a flatbuffer. Raises struct.error for what points outside of it."""

    __slots__ = ("pos", "size", "view", "vtable")

    def __init__(self, view: memoryview, pos: int) -> None:
        self.view, self.pos = view, pos
        self.vtable = pos - I32.unpack_from(view, pos)[0]
        if self.vtable < 0:
            raise struct.error
        self.size: int = U16.unpack_from(view, self.vtable)[0]

    def at(self, slot: int) -> int:
        """Where the field is, 0: it has its default."""
        entry = 4 + 2 * slot
        if entry + 2 > self.size:
            return 0
        offset: int = U16.unpack_from(self.view, self.vtable + entry)[0]
        return self.pos + offset if offset else 0

    def value(self, slot: int, kind: struct.Struct) -> Any:
        at = self.at(slot)
        return kind.unpack_from(self.view, at)[0] if at else 0

    def table(self, slot: int) -> Table | None:
        at = self.at(slot)
        return Table(self.view, at + U32.unpack_from(self.view, at)[0]) if at else None

    def vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Where its items begin, and how many they are."""
        at = self.at(slot)
        if not at:
            return 0, 0
        start = at + U32.unpack_from(self.view, at)[0]
        count = U32.unpack_from(self.view, start)[0]
        if start + 4 + count * item_bytes > len(self.view):
            raise struct.error
        return start + 4, count

    def tables(self, slot: int) -> list[Table]:
        start, count = self.vector(slot, 4)
        if count > MAX_FIELDS:
            raise BadRequest(f"The Arrow schema lists {count} of something, of {MAX_FIELDS}.")
        places = range(start, start + 4 * count, 4)
        return [Table(self.view, at + U32.unpack_from(self.view, at)[0]) for at in places]

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        start, count = self.vector(slot, PAIR.size)
        return list(PAIR.iter_unpack(self.view[start : start + PAIR.size * count]))

    def text(self, slot: int) -> str:
        start, count = self.vector(slot, 1)
        return str(self.view[start : start + count], "utf-8")

    def metadata(self, slot: int) -> dict[str, str]:
        return {pair.text(0): pair.text(1) for pair in self.tables(slot)}
