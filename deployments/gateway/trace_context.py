"""A request's place in its trace, as the W3C's `traceparent` header says it.

Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

_SAMPLED = 0x01
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
