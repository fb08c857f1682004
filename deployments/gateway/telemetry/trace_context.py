"""Which trace does a request belong to, and is it recorded? W3C `traceparent` in and out.

Works without any tracing library, so that a trace that passes through stays whole even where no
collector is configured. A caller's decision is kept (parent-based); without one, the trace id
decides, so that every process with the same ratio decides alike. Identifiers stay integers until
somebody asks for the header. Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

from random import Random

_SAMPLED = 0x01
_LOW_64 = (1 << 64) - 1
_LENGTH = 55  # 00-<32>-<16>-<2>
_HEX = frozenset(b"0123456789abcdef")


class TraceContext:
    """This request's place in its trace. `parent_id` 0: the trace begins here."""

    __slots__ = ("parent_id", "sampled", "span_id", "trace_id")

    def __init__(self, trace_id: int, parent_id: int, span_id: int, sampled: bool) -> None:
        self.trace_id, self.parent_id = trace_id, parent_id
        self.span_id, self.sampled = span_id, sampled

    def traceparent(self) -> bytes:
        """The header for the answer and for calls further on: our span is the parent."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.sampled)


def parse(header: bytes) -> tuple[int, int, bool] | None:
    """(trace id, parent's span id, sampled), or None if the header is not valid."""
    if len(header) < _LENGTH or header[2:3] + header[35:36] + header[52:53] != b"---":
        return None
    fields = header[:2], header[3:35], header[36:52], header[53:55]
    if not all(_HEX.issuperset(field) for field in fields) or fields[0] == b"ff":
        return None
    # Only later versions may be longer, and then by a field of its own.
    if len(header) > _LENGTH and (fields[0] == b"00" or header[55:56] != b"-"):
        return None
    trace_id, parent_id, flags = (int(field, 16) for field in fields[1:])
    return (trace_id, parent_id, bool(flags & _SAMPLED)) if trace_id and parent_id else None


class Sampler:
    """Makes contexts. `ratio`: share of the traces that begin here which are recorded."""

    def __init__(self, ratio: float, random: Random) -> None:
        self._bound = round(ratio * (1 << 64))
        self._bits = random.getrandbits

    def begin(self, header: bytes | None) -> TraceContext:
        bits = self._bits
        if header is not None:
            parent = parse(header)
            if parent is not None:
                return TraceContext(parent[0], parent[1], bits(64) or 1, parent[2])
        trace_id = bits(128) or 1
        return TraceContext(trace_id, 0, bits(64) or 1, trace_id & _LOW_64 < self._bound)
