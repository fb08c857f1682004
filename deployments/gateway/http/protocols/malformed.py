"""Reads JSON bodies, and says what is wrong with one in words a caller can act on.

Turns msgspec's and Python's decoding errors into `BadRequest`: syntax errors with the byte where
they are, invalid UTF-8, nesting too deep, and values of the wrong type with their path. Runs only
for bodies that failed to decode, so it may read them again. Knows no protocol; a caller may hand in
`name_of`, which turns the path's first index into the tensor's name.

A number without a fraction is an integer, however it is written: 3.0 and 3e0 are 3, in every field
and tensor of every protocol. JavaScript, R and Lua cannot tell them apart. Up to 2^53, where a
double stops being exact.

Duplicate keys in one object are not detected: the last one counts (RFC 8259 §4 leaves it open).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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


def read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
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


def _with_integers(body: bytes) -> bytes:
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
    return BadRequest(f"{label}: {where}{path}: {what}.")


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
