"""Answers that are too large to encode at once: the same bytes, a part at a time.

Parts are bytes that follow each other. One takes about a millisecond to make, in which the
interpreter is kept from the event loop, and never more than the few hundred kilobytes that it is
long, so that an answer of any size costs no memory beside the arrays that it is made of. What is
found wrong with an answer is raised before its first part.
Measured: orjson writes 16,384 FP32 in 0.8 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from deployments.gateway.http.protocols.slices import Breaks
from deployments.gateway.http.protocols.tensors import HALVES
from deployments.gateway.rows import Array

STEP = 16_384  # elements
TEXT_STEP = 65_536  # characters
PIECE_BYTES = 262_144
_TURN_S = 0.004
Parts = Iterator[bytes | memoryview]


@dataclass(slots=True)
class LargeAnswer:
    """`parts`: of the body, from which other parts can't be taken again. `headers`: those that
    belong to its format; complete when the first part that is not empty has been made."""

    parts: Parts
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def take(self, breaks: Breaks | None = None) -> tuple[bytes, bool]:
        """The next `PIECE_BYTES`, or what some milliseconds make of it; whether more follows.
        `breaks`: of the thread, where it is not the event loop's."""
        began, made, size = time.perf_counter(), [], 0
        for part in self.parts:
            made.append(part)
            size += len(part)
            if size >= PIECE_BYTES or time.perf_counter() - began > _TURN_S:
                return b"".join(made), True
            if breaks is not None:
                breaks.take()
        return b"".join(made), False


def listed(items: Iterable[Parts]) -> Parts:
    """A JSON array of these values."""
    before = b"["
    for item in items:
        yield before
        yield from item
        before = b","
    yield b"[]" if before == b"[" else b"]"


def nested(array: Array, datatype: str, text: Callable[[bytes], Any]) -> Parts:
    """An array of any rank as nested JSON arrays; one without axes as the bare value. `text`: what
    an element of BYTES is written as."""
    if datatype == "BYTES":
        return _nested_texts(array.tolist(), text)
    return _nested(array, datatype)


def _nested(array: Array, datatype: str) -> Parts:
    if array.ndim == 0:
        yield orjson.dumps(array.item())
    elif array.size <= STEP:
        yield _dumped(array, datatype)
    elif array.ndim > 1:
        yield from listed(_nested(inner, datatype) for inner in array)
    else:
        yield b"["
        yield from flat([array], datatype)
        yield b"]"


def flat(rows: Iterable[Array], datatype: str) -> Parts:
    """All elements of the rows in order, with commas between them, without brackets."""
    before = b""
    for row in rows:
        elements = row.reshape(-1)
        for start in range(0, len(elements), STEP):
            yield before + _dumped(elements[start : start + STEP], datatype)[1:-1]
            before = b","


def _dumped(array: Array, datatype: str) -> bytes:
    dtype = np.float32 if datatype in HALVES else None
    return orjson.dumps(np.ascontiguousarray(array, dtype), option=orjson.OPT_SERIALIZE_NUMPY)


def _nested_texts(value: Any, text: Callable[[bytes], Any]) -> Parts:
    if isinstance(value, list):
        yield from listed(_nested_texts(item, text) for item in value)
    else:
        yield from string(text(value))


def flat_texts(rows: Iterable[Array], text: Callable[[bytes], Any]) -> Parts:
    before = b""
    for row in rows:
        for item in row.reshape(-1).tolist():
            yield before
            yield from string(text(item))
            before = b","


def string(value: Any) -> Parts:
    """A text, or anything that is short."""
    if not isinstance(value, str) or len(value) <= TEXT_STEP:
        yield orjson.dumps(value)
        return
    yield b'"'
    for start in range(0, len(value), TEXT_STEP):
        yield orjson.dumps(value[start : start + TEXT_STEP])[1:-1]
    yield b'"'
