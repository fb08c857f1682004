"""Which trace a request belongs to, whether it is recorded, and its spans, made afterwards.

W3C `traceparent` in and out works without any tracing library, so that a trace that passes through
stays whole even where no collector is configured. A caller's decision is kept (parent-based);
without one, the trace id decides, so that every process with the same ratio decides alike. What
callers can make us record is bounded per second. A sampled request's spans are made from its
measured times once it has ended, so that an unsampled one pays for two random numbers only.
Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random, SystemRandom
from typing import NamedTuple, Protocol

from deployments.process.logs import PerSecond

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


_MAX_TRACES_PER_S = 100
_LOW_64 = (1 << 64) - 1


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


Attributes = Mapping[str, str | int | float | bool]


class SpanTimes(NamedTuple):
    """One span below a request or a batch: wall-clock nanoseconds since the epoch."""

    name: str
    start_ns: int
    end_ns: int


class SpanWriter(Protocol):
    """Where recorded spans go: `spans.OpenTelemetrySpans`."""

    def request(
        self, context: TraceContext, times: SpanTimes, attributes: Attributes, failed: str
    ) -> None:
        """The request's own span; `failed`: the error's message, for a 5xx."""

    def batch(
        self, members: Sequence[TraceContext], times: SpanTimes, attributes: Attributes
    ) -> int:
        """The batch's span below its first member's, linked to all; returns its span id."""
        ...

    def below(
        self, trace_id: int, parent_id: int, times: SpanTimes, attributes: Attributes
    ) -> None:
        """A span below another one."""

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for at most `timeout_s`."""


class Tracing:
    """For one thread, the event loop's. Without a `writer` nothing is recorded. `sample_ratio`:
    share of the traces that begin here which are."""

    def __init__(
        self,
        writer: SpanWriter | None = None,
        sample_ratio: float = 0.01,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._recording = writer is not None
        ratio = sample_ratio if self._recording else 0.0
        self._sampler = Sampler(ratio, Random(SystemRandom().getrandbits(128)))
        self._clock = clock
        self._bound = PerSecond(_MAX_TRACES_PER_S)

    def begin(self, headers: Mapping[bytes, bytes]) -> TraceContext:
        """The context of a request that arrives; always there, for the answer's `traceparent`."""
        context = self._sampler.begin(headers.get(b"traceparent"))
        if context.sampled and self._recording and not self._bound.take(self._clock()):
            context.sampled = False
        return context

    def records(self, context: TraceContext) -> bool:
        """Whether `finish_request` will do anything: ask before gathering what it takes."""
        return self._recording and context.sampled

    def finish_request(
        self,
        context: TraceContext,
        times: SpanTimes,
        attributes: Attributes,
        stages: Iterable[SpanTimes] = (),
        *,
        failed: str = "",
    ) -> None:
        """The request's span and one below it a stage. `failed`: the error's message, for a 5xx."""
        if self._writer is not None and context.sampled:
            self._writer.request(context, times, attributes, failed)
            for stage in stages:
                self._writer.below(context.trace_id, context.span_id, stage, {})

    def batch(
        self,
        members: Iterable[TraceContext],
        times: SpanTimes,
        attributes: Attributes,
        parts: Iterable[SpanTimes] = (),
    ) -> None:
        """The batch's span, if a request of it is sampled, and its parts (the runtime) below."""
        if self._writer is None:
            return
        sampled = [member for member in members if member.sampled]
        if sampled:
            span_id = self._writer.batch(sampled, times, attributes)
            for part in parts:
                self._writer.below(sampled[0].trace_id, span_id, part, attributes)

    def close(self, timeout_s: float = 2.0) -> None:
        """Sends what waits, for at most `timeout_s`; blocks, so call it off the loop."""
        if self._writer is not None:
            self._writer.close(timeout_s)
