"""Reads JSON bodies without holding up the event loop, and says what is wrong with one.

Decoding errors become `BadRequest` with the byte or the path of the fault; `name_of` turns the
path's first index into a tensor's name. A number without a fraction is an integer, however it is
written (3.0, 3e0), up to 2^53: JavaScript, R and Lua cannot tell them apart. Of equal keys in an
object the last counts (RFC 8259 §4).
`check_fields` holds a body to a table of what may be in it, where another reads the body itself.
Long arrays of numbers are read a slice at a time, straight into the wanted array, and the thread
sleeps after each millisecond of work so that other threads get the interpreter: two million
integers would hold it for 160 ms. Elements are counted before anything is made of them.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from deployments.contract.errors import BadRequest

NameOf = Callable[[int], str | None]
T = TypeVar("T")
# All that decoding may raise: UnicodeDecodeError is a ValueError, nesting beyond the interpreter's
# stack is a RecursionError.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)

_AT_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_AT_BYTE = re.compile(r"\(byte (?P<byte>\d+)\)$")
_FIRST_INDEX = re.compile(r"`\$\[(\d+)\]")
_INDEXED = re.compile(r"^inputs\[(?P<index>\d+)\]\.?(?P<rest>.*)$")
_NO_INTEGER = re.compile(r"Expected `(?:\w+ \| )*int(?: \| \w+)*`, got `float`")
_WHOLE = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_EXACT = 2.0**53
_values = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LONGEST_PAIR = 14  # bytes of two escapes, and what stands behind them
_NON_NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"-inf")


class Use(Enum):
    """What becomes of a field of a body that is passed on to an engine."""

    READ = auto()  # here: routed, counted or bounded by what reads it
    FREE = auto()  # costs the engine the same whatever its value
    COUNTED = auto()  # may come into the prompt, and counts as if it did
    BOUNDED = auto()  # costs the engine more the larger it is
    IGNORED = auto()  # its API has it, the engine does nothing with it
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """One row of such a table. `max_items`: of its list or object; `max_depth`: of lists and
    objects within each other; `maximum`: of its number; `why`: it is refused. Whether its type is
    right the engine says."""

    use: Use
    max_bytes: int = 1024
    max_items: int | None = None
    max_depth: int | None = None
    maximum: int | None = None
    why: str = ""


_LONGEST_NAME = 64  # of an unknown field, in an error
_MAX_DIGITS = 4300  # as many as pydantic reads of a number; each may be an escape of 6 bytes
_MARKS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_items = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_text = msgspec.json.Decoder(str)


def check_fields(given: Mapping[str, msgspec.Raw], table: Mapping[str, Field]) -> None:
    """Raises BadRequest that names the field. A field that is null is as one that is not there."""
    for name, raw in given.items():
        field = table.get(name)
        if field is None:
            raise _unknown(name, table)
        view = memoryview(raw)
        first = bytes(view[:4])
        if first == b"null":
            continue
        if field.use is Use.REFUSED:
            raise BadRequest(f"{name} is not accepted: {field.why}.", param=name)
        if len(view) > field.max_bytes:
            said = f"{name} has {len(view)} bytes; it may have {field.max_bytes}."
            raise BadRequest(said, param=name)
        if field.max_items is not None and first[:1] in (b"[", b"{"):
            count = len(_items.decode(raw))
            if count > field.max_items:
                said = f"{name} has {count} entries; it may have {field.max_items}."
                raise BadRequest(said, param=name)
        if field.max_depth is not None and _is_deeper(bytes(raw), field.max_depth):
            said = f"{name} is nested too deeply; it may have {field.max_depth} levels."
            raise BadRequest(said, param=name)
        if field.maximum is not None and count_of(raw) > field.maximum:
            raise BadRequest(f"{name} may be {field.maximum} at most.", param=name)


def count_of(raw: msgspec.Raw | None) -> int:
    """A number that an engine judges: of one that it will refuse, 0. It also takes 20.0, "20", and
    "\\u0032\\u0030", which is the same text."""
    written = b"" if raw is None else bytes(raw)
    if len(written) > 6 * _MAX_DIGITS:
        return 0
    try:
        value = float(_text.decode(written) if written[:1] == b'"' else written)
    except DECODE_ERRORS:
        return 0
    return int(min(value, 1e9)) if value > 0.0 else 0


def _unknown(name: str, table: Mapping[str, Field]) -> BadRequest:
    if len(name) > _LONGEST_NAME:
        return BadRequest(f"unknown field '{name[:_LONGEST_NAME]}…'.")
    known = [each for each, field in table.items() if field.use is not Use.REFUSED]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "; it would have no effect, leave it out."
    return BadRequest(f"unknown field '{name}'{hint}", param=name)


def _is_deeper(written: bytes, most: int) -> bool:
    if written.count(b"[") + written.count(b"{") <= most:
        return False
    depth = 0
    for mark in _MARKS.finditer(written):
        first = mark[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth > most:
            return True
    return False


def read(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """The object in a body. Raises BadRequest."""
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        if not is_whole_as_float(error):
            raise fault(error, body) from None
    try:
        return decoder.decode(_with_integers(body))
    except DECODE_ERRORS as error:
        raise fault(error, body) from None


def integers(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """`data` in lists of integers, which `decoder` makes. Raises as decoding does."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        if not is_whole_as_float(error):
            raise
        return msgspec.convert(integer(_values.decode(data)), decoder.type)


def is_whole_as_float(error: Exception) -> bool:
    """Whether decoding failed for a number with a point, which may be an integer all the same."""
    return _NO_INTEGER.match(str(error)) is not None


def integer(value: Any) -> Any:
    """A float that is a whole number becomes one, also in lists; else the value as it is."""
    if isinstance(value, list):
        return [integer(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


def _with_integers(body: bytes | memoryview) -> bytes:
    """An object's own numbers, rewritten; all else stays byte for byte."""
    given = _fields.decode(body)
    for name, raw in given.items():
        if _WHOLE.fullmatch(memoryview(raw)):
            given[name] = msgspec.Raw(msgspec.json.encode(integer(float(bytes(raw)))))
    return msgspec.json.encode(given)


def fault(error: Exception, body: bytes | memoryview, name_of: NameOf | None = None) -> BadRequest:
    """The `BadRequest` for an error of `DECODE_ERRORS` raised while decoding `body`."""
    if isinstance(error, RecursionError):
        return BadRequest("The JSON body is nested too deeply.")
    if isinstance(error, UnicodeDecodeError):
        return BadRequest(_utf8(bytes(body)))
    if isinstance(error, msgspec.ValidationError):
        return _wrong_value(str(error), name_of)
    return BadRequest(_syntax(str(error), bytes(body)))


def element(error: Exception, label: str, where: str = "data") -> BadRequest:
    """The same for an error raised while decoding a part of a body that parsed: a tensor's data."""
    if isinstance(error, RecursionError):
        return BadRequest(f"{label}: {where} is nested too deeply.")
    if isinstance(error, UnicodeDecodeError):
        return BadRequest(f"{label}: {where} holds text that is not valid UTF-8.")
    what, path = _split(str(error))
    dot = "." if path and not path.startswith("[") else ""
    return BadRequest(f"{label}: {where}{dot}{path}: {what}.")


def moved(error: Exception, by: int) -> Exception:
    """The same error of an array's part, as if the whole array had been decoded: the part begins
    at element `by`."""
    what = _FIRST_INDEX.sub(lambda index: f"`$[{int(index[1]) + by}]", str(error))
    return msgspec.ValidationError(what) if isinstance(error, msgspec.ValidationError) else error


def _split(text: str) -> tuple[str, str]:
    """`Expected `int`, got `str` - at `$.a[0]`` → (expected int, got str; a[0])."""
    match = _AT_PATH.search(text)
    path = match["path"] if match else ""
    what = _AT_PATH.sub("", text).replace("`", "")
    return what[:1].lower() + what[1:], path


def _wrong_value(text: str, name_of: NameOf | None) -> BadRequest:
    what, path = _split(text)
    param = re.split(r"[.\[]", path, maxsplit=1)[0] or None
    indexed = _INDEXED.match(path)
    name = name_of(int(indexed["index"])) if indexed and name_of else None
    if indexed and name is not None:
        where = f"Tensor '{name}': {indexed['rest']}: " if indexed["rest"] else f"Tensor '{name}': "
    else:
        where = f"{path}: " if path else "The JSON body: "
    return BadRequest(f"{where}{what}.", param=param)


def _utf8(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"The JSON body is not valid UTF-8 (byte {error.start})."
    return "The JSON body is not valid UTF-8."


def _syntax(text: str, body: bytes) -> str:
    if not body.strip():
        return "The body is empty; a JSON object is expected."
    what = text.removeprefix("JSON is malformed: ").replace("Input data was", "it is")
    match = _AT_BYTE.search(text)
    at = int(match["byte"]) if match else len(body)
    if half := _half_pair(body, at):
        return f"The JSON body is malformed: {half}."
    if body.startswith(_NON_NUMBERS, at):
        return f"The JSON body is malformed: NaN and Infinity are no JSON numbers (byte {at})."
    return f"The JSON body is malformed: {what}{'' if match else f' (byte {at})'}."


def _half_pair(body: bytes, at: int) -> str | None:
    """What is wrong, if decoding failed at this byte because half of a surrogate pair stands alone,
    for which the decoder has several names. Source: RFC 8259 §8.2."""
    start = max(at - _LONGEST_PAIR, 0)
    window = body[start : at + 1]
    found = list(_SURROGATE.finditer(window))
    if not found or (at == len(body) and b'"' not in window[found[-1].end() :]):
        return None
    first = found[0]
    return (
        f"the escape {first[0].decode()} is half of a surrogate pair, which is no character "
        f"(byte {start + first.start()})"
    )


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
            part = integers(decoder, b"[%b]" % bytes(view[begin:cut]))
        except DECODE_ERRORS as error:
            raise moved(error, at) from None
        yield at, part
        at += len(part)
        begin = cut + 1
        breaks.take()


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[kind])
