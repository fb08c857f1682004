"""How messages travel through Ray's calls and the cluster's store: as bytes, the version first.

A pickle names modules and classes, so a class that has moved or changed breaks its reader. Here a
message is a byte that names the version (`WIRE`), and a msgpack map with the names of its
fields. A reader ignores fields that it does not know, fills in the defaults of missing ones, and
refuses versions older than it speaks. What needs no class (texts, numbers, plain lists) travels as
it is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, TypeVar, get_origin

import msgspec
import numpy as np

# Counts the layouts of what crosses processes; the rules for a change are in docs/data-channel.md,
# golden bytes of each version hold them. 4: readers ignore further fields and frames of kinds to
# come; 3 refuses both.
WIRE = 4
SPOKEN = (WIRE, WIRE - 1)  # best first
SPOKEN_TEXT = ",".join(map(str, SPOKEN))

T = TypeVar("T")
_OLDEST = min(SPOKEN)


class OtherVersion(ValueError):
    """Bytes of a version that this code does not read."""


def plain(value: Any) -> Any:
    """For msgspec: numpy's scalars as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _counted(kind: Any, value: Any) -> Any:
    """For msgspec, which reads no `Counter` by itself."""
    if get_origin(kind) is Counter:
        return Counter(value)
    raise TypeError(f"a {kind} cannot be read")


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode


class MessageCodec(Generic[T]):
    """Writes and reads messages of one type: a dataclass, or a collection of some. Make it at
    import: msgspec 0.22 crashes when two threads use a type for the first time at once."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._decode = msgspec.msgpack.Decoder(kind, dec_hook=_counted).decode

    def __reduce__(self) -> Any:
        """Ray pickles a class of a main module with the globals that it uses."""
        return MessageCodec, (self.kind,)

    def encode(self, message: T) -> bytes:
        return bytes((WIRE,)) + _encode(message)

    def decode(self, data: bytes) -> T:
        """Raises OtherVersion for an older version than this code speaks, and for bytes that are
        no such message."""
        if not data or data[0] < _OLDEST:
            raise OtherVersion(
                f"a message of version {data[0] if data else 'none'}; this code reads version "
                f"{_OLDEST} and later"
            )
        try:
            found: T = self._decode(memoryview(data)[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as wrong:
            raise OtherVersion(f"a message that cannot be read: {wrong}") from wrong
        return found
