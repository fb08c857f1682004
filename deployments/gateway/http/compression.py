"""May HAProxy compress this answer?

HAProxy does it, outside of any gateway's interpreter lock and where `gateway.compression` is set:
whole JSON of status 200 to 203, for who asks (`control/ingress/haproxy_rules.py`). What it
cannot know or gets wrong is said here, in a header that it obeys and always takes out: an answer
too short to gain by it, `gzip;q=0` beside `*`, or what is preferred uncompressed. Who does not ask
costs one look-up.
Source: RFC 9110 §12.5.3 (Accept-Encoding), RFC 9111 §5.2.2.6 (no-transform).
"""

from __future__ import annotations

from functools import lru_cache

MIN_BYTES = 4096
AS_IT_IS = (b"cache-control", b"no-transform")
_COMPRESSED = b"application/json"
_MAX_KEPT = 256
_LONGEST_KEPT = 200


def stays_as_it_is(accept_encoding: bytes, content_type: bytes, size_bytes: int) -> bool:
    """Of JSON; nothing else is compressed anyway."""
    if content_type != _COMPRESSED:
        return False
    if size_bytes < MIN_BYTES or len(accept_encoding) > _LONGEST_KEPT:
        return True
    return not prefers_gzip(accept_encoding)


@lru_cache(_MAX_KEPT)
def prefers_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is accepted, and nothing uncompressed is asked for before it."""
    weights = dict(_weighed(part) for part in accept_encoding.lower().split(b","))
    gzip = weights.get(b"gzip", weights.get(b"*", 0.0))
    return gzip > 0.0 and gzip >= weights.get(b"identity", 0.0)


def _weighed(part: bytes) -> tuple[bytes, float]:
    name, _, parameters = part.partition(b";")
    weight = parameters.strip().removeprefix(b"q=")
    if not parameters:
        return name.strip(), 1.0
    try:
        return name.strip(), min(max(float(weight), 0.0), 1.0)
    except ValueError:
        return name.strip(), 0.0
