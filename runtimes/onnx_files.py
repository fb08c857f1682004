"""Which files does an ONNX model keep its tensors in?

The file's protobuf is walked field by field, weights skipped, so that a model of gigabytes takes
no memory and names are found whatever the order of an entry's fields is: `key` and `value` of a
`StringStringEntryProto` may stand either way round, and a field may be given twice. Only what can
hold a tensor is entered: graphs, nodes, their attributes, functions, training information.

What is no such protobuf is refused. Source: onnx.proto of ONNX 1.18; the protobuf encoding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from runtimes.errors import LoadError, RefusedArtifact

_DEPTH = 64  # of graphs in nodes in graphs
_LOCATION = b"location"
# Message → field number → the message in that field. `entry` is a tensor's external_data.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


class _Malformed(Exception):
    """The bytes are no protobuf message."""


def external_data(path: Path) -> set[str]:
    """The names as they stand in the file. Raises `LoadError` for an empty file, `RefusedArtifact`
    for one that is no protobuf, or whose names are no text."""
    if path.stat().st_size == 0:
        raise LoadError(f"{path} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        try:
            return {name.decode() for name in _names(view, 0, len(view), "model", 0)}
        except (_Malformed, UnicodeDecodeError) as error:
            raise RefusedArtifact(f"{path} is no ONNX model: {error}") from None


def _names(view: mmap.mmap, at: int, end: int, message: str, depth: int) -> Iterator[bytes]:
    if depth > _DEPTH:
        raise _Malformed(f"it is nested more than {_DEPTH} deep")
    if message == "entry":
        yield from _location(view, at, end)
        return
    for number, start, stop in _parts(view, at, end):
        inner = _FIELDS[message].get(number)
        if inner is not None:
            yield from _names(view, start, stop, inner, depth + 1)


def _location(view: mmap.mmap, at: int, end: int) -> Iterator[bytes]:
    """Each value of an entry that has the key anywhere: which one a reader takes is its own."""
    parts = [(number, view[start:stop]) for number, start, stop in _parts(view, at, end)]
    if (1, _LOCATION) in parts:
        yield from (content for number, content in parts if number == 2)


def _parts(view: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, stop) of each field that has a length."""
    while at < end:
        tag, at = _varint(view, at, end)
        kind, number = tag & 7, tag >> 3
        if tag >> 32:  # some readers leave out what is above 32 bits, and see another field
            raise _Malformed("the number of a field is larger than any may be")
        if kind == 2:
            size, at = _varint(view, at, end)
            if at + size > end:
                raise _Malformed("a field is longer than what holds it")
            yield number, at, at + size
            at += size
        elif kind == 0:
            _, at = _varint(view, at, end)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _Malformed(f"it has a field of wire type {kind}")
    if at > end:
        raise _Malformed("its last field is cut off")


def _varint(view: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """(value, place behind it)."""
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise _Malformed("a number in it does not end")
