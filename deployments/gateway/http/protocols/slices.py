"""Long JSON arrays of numbers, read a slice at a time, so that nothing else waits for them.

Decoding keeps the interpreter to itself: two million integers take 80 ms as one list and as much
again to become an array, in which the event loop stands still. Here about a millisecond's worth is
decoded at once, straight into the array that is wanted; after it the thread sleeps for a moment,
which is what hands the interpreter on. Elements are counted before anything is made of them. For
pool threads; what is shorter than a slice is decoded whole.

The Raw was skipped over when the body was decoded, so it is valid JSON; whether its elements are
numbers is found out here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import malformed

SLICE_BYTES = 65_536
_SCAN_BYTES = 1 << 20  # counted at once: 0.3 ms
_WORK_S = 0.001
_BREAK_S = 5e-5  # the least that a timer can do; a thread that waits takes over within it
_NESTED = re.compile(rb"\s*\[\s*\[")
_COMMA = re.compile(rb",")
_LISTS = msgspec.json.Decoder(list[msgspec.Raw])
_COMMA_BYTE, _OPEN_BYTE = 44, 91
_MAX_PLACES = 4096
_TOO_MANY = "of at most length"
_LONGEST_PIECE_BYTES = 4 * SLICE_BYTES
Array = np.ndarray[Any, Any]


class Breaks:
    """Of one piece of work on a thread: `take` after each step lets others run, in good time."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def take(self) -> None:
        if time.perf_counter() - self._since > _WORK_S:
            time.sleep(_BREAK_S)
            self._since = time.perf_counter()


def is_long(data: msgspec.Raw) -> bool:
    return len(memoryview(data)) > SLICE_BYTES


def is_array(data: msgspec.Raw) -> bool:
    return bytes(memoryview(data)[:1]) == b"["


def is_nested(data: msgspec.Raw) -> bool:
    return _NESTED.match(memoryview(data)) is not None


def count_bytes(data: bytes | memoryview, of: int, breaks: Breaks) -> int:
    """How often the byte `of` occurs."""
    octets, count = np.frombuffer(data, dtype=np.uint8), 0
    for start in range(0, len(octets), _SCAN_BYTES):
        count += int(np.count_nonzero(octets[start : start + _SCAN_BYTES] == of))
        breaks.take()
    return count


def elements(data: msgspec.Raw) -> int:
    """Of an array of numbers, at any depth: no list in it is empty. At least 1."""
    return 1 + count_bytes(memoryview(data), _COMMA_BYTE, Breaks())


def lists(data: msgspec.Raw) -> int:
    """Those in an array, it included."""
    return count_bytes(memoryview(data), _OPEN_BYTE, Breaks())


def rows(data: msgspec.Raw, most: int) -> list[msgspec.Raw]:
    """The array's own entries: all of them, or more than `most` where it has more, but never many
    more. Raises as decoding does."""
    if most > _MAX_PLACES:
        return _LISTS.decode(data)
    try:
        array = _array_decoder(1 << most.bit_length()).decode(data)
        return [entry for entry in msgspec.structs.astuple(array) if entry]
    except msgspec.ValidationError as error:
        if _TOO_MANY not in str(error):
            raise
        return [msgspec.Raw()] * (most + 1)


@cache
def places(count: int, kind: Any = msgspec.Raw) -> Any:
    """The type of an array of so many `kind`s at most, UNSET where it has fewer. A list would be
    made before it is counted; of this the first one too many is refused where it stands."""
    fields = [(f"_{place}", kind | msgspec.UnsetType, msgspec.UNSET) for place in range(count)]
    return msgspec.defstruct("Places", fields, array_like=True, forbid_unknown_fields=True)


@cache
def _array_decoder(count: int) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(places(count))


def pieces(data: msgspec.Raw, kind: Any) -> Iterator[tuple[int, list[Any]]]:
    """A flat array of `kind`s in parts: the index of the part's first element, and its elements.

    Raises `malformed.DECODE_ERRORS`, with paths from the array's beginning, and BadRequest.
    """
    view, decoder, breaks = memoryview(data), _decoder(kind), Breaks()
    begin, end, at = 1, len(view) - 1, 0  # without the brackets
    while begin < end:
        most = min(end, begin + _LONGEST_PIECE_BYTES + 1)  # looked through: not all there is
        comma = (
            _COMMA.search(view, begin + SLICE_BYTES, most) if most - begin > SLICE_BYTES else None
        )
        cut = most if comma is None else comma.start()
        if cut - begin > _LONGEST_PIECE_BYTES:
            raise BadRequest(f"a number takes more than {_LONGEST_PIECE_BYTES} bytes")
        try:
            part = malformed.integers(decoder, b"[%b]" % bytes(view[begin:cut]))
        except malformed.DECODE_ERRORS as error:
            raise malformed.moved(error, at) from None
        yield at, part
        at += len(part)
        begin = cut + 1
        breaks.take()


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[kind])
