"""What gRPC puts around messages: their frames, deadlines, statuses and texts. No I/O.

A message has 5 bytes before it: whether it is compressed, and its length. A call ends with a status
among its trailers, or among its headers where nothing else is answered. A refusal says in
`grpc-retry-pushback-ms` when the client may ask again, and with -1 that it shall not.
Source: grpc/grpc, doc/PROTOCOL-HTTP2.md; gRFC A6, "Pushback"; doc/statuscodes.md.
"""

from __future__ import annotations

import math
import re
import struct
from urllib.parse import quote_from_bytes

from deployments.contract import errors
from deployments.gateway.http.body import BodyLimits, Inflation
from yaml_document.credentials import without_keys

CONTENT_TYPE = b"application/grpc"
PREFIX_BYTES = 5
ACCEPTED = (b"grpc-accept-encoding", b"identity,gzip,deflate")
OK = (b"grpc-status", b"0")
_PREFIX = struct.Struct("!BI")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NEVER = -1
_MAX_RETRY_MS = 86_400_000  # a day
MAX_TEXT = 2048  # of a status: heads have bounds at clients, too
# Errors by their HTTP status; errors of one status mean one thing here (contract/errors.py).
_CODES = {
    400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 414: 8, 415: 12, 422: 9, 429: 8,
    431: 8, 499: 1, 500: 13, 503: 14, 504: 4,
}  # fmt: skip
_UNKNOWN = 2


def prefix(size_bytes: int, *, compressed: bool = False) -> bytes:
    """What stands before a message of so many bytes."""
    return _PREFIX.pack(compressed, size_bytes)


def read_prefix(head: bytes | bytearray | memoryview) -> tuple[bool, int]:
    """Whether the message is compressed, and its bytes. Raises BadRequest."""
    flag, size = _PREFIX.unpack_from(head)
    if flag > 1:
        raise errors.BadRequest(f"a message begins with {flag}; must be 0 or 1 (compressed)")
    return flag == 1, size


def inflated(message: bytes | memoryview, encoding: bytes, limits: BodyLimits) -> bytes:
    """A short message that was sent compressed. Raises BadRequest and BodyTooLarge."""
    inflation = Inflation(message, limits, encoding=encoding)
    while not inflation.is_measured:
        inflation.measure()
    return inflation.take()


def timeout_s(value: bytes) -> float:
    """Seconds of a `grpc-timeout`. Raises BadRequest."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise errors.BadRequest("grpc-timeout must be 1 to 8 digits and one of H M S m u n")
    return int(found[1]) * _SECONDS[found[2]]


def code(error: errors.HeadraceError) -> int:
    """The status code of an error."""
    return _CODES.get(error.status, _UNKNOWN)


def status(error: errors.HeadraceError) -> list[tuple[bytes, bytes]]:
    """The trailers of a call that ends with this error."""
    pushback_ms = _NEVER
    if error.retry_after_s > 0:
        pushback_ms = min(math.ceil(error.retry_after_s * 1000), _MAX_RETRY_MS)
    return [
        (b"grpc-status", b"%d" % code(error)),
        (b"grpc-message", text(without_keys(error.message))),
        (b"grpc-retry-pushback-ms", b"%d" % pushback_ms),
    ]


def text(message: str) -> bytes:
    """A status message, in the form of the header: percent-encoded UTF-8, cut to a length that
    every client takes."""
    safe = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"
    message = message[:MAX_TEXT]
    while True:
        encoded = quote_from_bytes(message.encode("utf-8", "replace"), safe=safe)
        if len(encoded) <= MAX_TEXT:
            return encoded.encode()
        message = message[: len(message) * MAX_TEXT // len(encoded)]
