"""The limits of request bodies: bytes on the wire, inflated, and held by all requests together.

Bytes are counted as read and as inflated, of bodies that did not arrive whole with their headers;
those small ones are not counted. A request that would exceed the limit on all is refused and may
come again; a body that is alone is always let in, so that the limit never forbids what
`max_body_bytes` allows. One gzip member is taken, which is what HTTP clients send; anything after
it is refused (a body of many tiny members would be work without end). What parsing makes of a body
is not counted: the pool's few workers bound that.

Source: RFC 1952; RFC 9110 §8.4.1.3.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from deployments.contract.errors import BadRequest, BodyTooLarge, Overloaded

_RETRY_S = 1.0
# Deflate's best: 258 bytes from two bits. 64 KiB of gzip are up to 68 MB, and 70 ms to inflate.
MOST_INFLATION = 1032
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`max_bytes` on the wire, `max_inflated_bytes` after gzip, `timeout_s` for the whole body;
    `room`: what all bodies share; `limit_name`: what a refusal calls `max_bytes`."""

    max_bytes: int
    max_inflated_bytes: int
    timeout_s: float
    room: BodyRoom
    limit_name: str = "gateway.limits.max_body_bytes"


def small_body(limit_name: str) -> BodyLimits:
    """Of a request that says a word or two: 4 KiB, in 10 s."""
    return BodyLimits(4096, 4096, 10.0, BodyRoom(1 << 20), limit_name)


class BodyRoom:
    """`held_bytes` of `limit_bytes`. Whoever takes gives back, whatever the request's ending."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes

    def take(self, size_bytes: int, own_bytes: int) -> None:
        """`own_bytes`: what this request holds already. Raises Overloaded, having taken nothing."""
        others = self.held_bytes - own_bytes
        if others and self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded(
                "the gateway holds too many large bodies (gateway.limits.max_held_bytes)",
                retry_after_s=_RETRY_S,
                reason="bodies_full",
            )
        self.held_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes


def inflate(body: bytes, limit_bytes: int) -> bytes:
    """At most `limit_bytes`; `BodyTooLarge` over it, `BadRequest` for anything but whole gzip."""
    stream = zlib.decompressobj(wbits=_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error:
        raise BadRequest("The body is not valid gzip, which its Content-Encoding claims.") from None
    if len(inflated) > limit_bytes:
        raise BodyTooLarge(f"The body inflates to more than {limit_bytes} bytes.")
    if not stream.eof:
        raise BadRequest("The gzip body is incomplete.")
    if stream.unused_data:
        raise BadRequest("The gzip body has data after its end; send a single gzip member.")
    return inflated
