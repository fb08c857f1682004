"""A gzip body within a bound: what it inflates to, or a refusal before memory is spent on it.

The bound is in inflated bytes. One gzip member is taken, which is what HTTP clients send; anything
after it is refused (a body of many tiny members would be work without end). Knows no JSON.

Source: RFC 1952; RFC 9110 §8.4.1.3.
"""

from __future__ import annotations

import zlib

from deployments.contract.errors import BadRequest, BodyTooLarge

# Deflate's best: 258 bytes from two bits. 64 KiB of gzip are up to 68 MB, and 70 ms to inflate.
MOST_INFLATION = 1032
_GZIP = 16 + zlib.MAX_WBITS


def inflate(body: bytes, limit_bytes: int) -> bytes:
    """At most `limit_bytes`; `BodyTooLarge` over it, `BadRequest` for anything but whole gzip."""
    stream = zlib.decompressobj(wbits=_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error:
        raise BadRequest("The body is not valid gzip, as its content-encoding says.") from None
    if len(inflated) > limit_bytes:
        raise BodyTooLarge(f"The body inflates to more than {limit_bytes} bytes.")
    if not stream.eof:
        raise BadRequest("The gzip body ends too early.")
    if stream.unused_data:
        raise BadRequest("The gzip body has data after its end; one gzip member is taken.")
    return inflated
