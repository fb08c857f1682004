"""Writes spans with given identifiers and times by OpenTelemetry's SDK.

The only file that imports OpenTelemetry, and it is imported only when spans are wanted: it costs 10
MB and 0.1 s. The SDK makes identifiers itself; ours are already in the answer's `traceparent`, so
its generator is told which to give next (single-threaded by contract). The sampling decision has
been taken: everything that gets here is recorded. Export runs on the SDK's own thread with a
bounded queue; what does not fit is dropped and the request never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from deployments.gateway.tracing import Attributes, SpanTimes, TraceContext

_EXPORT_TIMEOUT_S = 5
_EXPORT_EVERY_MS = 1000
_WAITING_SPANS = 4096
_FLAGS = TraceFlags(TraceFlags.SAMPLED)


class _GivenIds(IdGenerator):
    """Gives the identifiers it was told to give next; else random ones."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next_trace_id = self.next_span_id = 0

    def generate_trace_id(self) -> int:
        given, self.next_trace_id = self.next_trace_id, 0
        return given or self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        given, self.next_span_id = self.next_span_id, 0
        return given or self._random.generate_span_id()


class OpenTelemetrySpans:
    def __init__(self, service_name: str, processor: SpanProcessor) -> None:
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service_name}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace")

    def request(
        self, context: TraceContext, times: SpanTimes, attributes: Attributes, failed: str
    ) -> None:
        self._ids.next_trace_id, self._ids.next_span_id = context.trace_id, context.span_id
        parent = (
            _under(context.trace_id, context.parent_id, remote=True) if context.parent_id else None
        )
        span = self._tracer.start_span(
            times.name,
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=times.start_ns,
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR, failed))
        span.end(times.end_ns)
        self._ids.next_trace_id = 0  # not asked for when there is a parent

    def batch(
        self, members: Sequence[TraceContext], times: SpanTimes, attributes: Attributes
    ) -> int:
        """Makes the batch's span below its first member's; returns its span id."""
        first = members[0]
        span = self._tracer.start_span(
            times.name,
            context=_under(first.trace_id, first.span_id),
            attributes=attributes,
            links=[Link(_span_context(member.trace_id, member.span_id)) for member in members],
            start_time=times.start_ns,
        )
        span.end(times.end_ns)
        return int(span.get_span_context().span_id)

    def below(
        self, trace_id: int, parent_id: int, times: SpanTimes, attributes: Attributes
    ) -> None:
        span = self._tracer.start_span(
            times.name,
            context=_under(trace_id, parent_id),
            attributes=attributes,
            start_time=times.start_ns,
        )
        span.end(times.end_ns)

    def close(self, timeout_s: float) -> None:
        # The SDK's own shutdown waits for a collector that may not be there; we don't.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_s)


def otlp_processor(endpoint: str) -> SpanProcessor:
    """OTLP over HTTP. A bare `http://host:4318` gets the protocol's own path, `/v1/traces`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
    return BatchSpanProcessor(
        exporter, max_queue_size=_WAITING_SPANS, schedule_delay_millis=_EXPORT_EVERY_MS
    )


def _span_context(trace_id: int, span_id: int, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=_FLAGS)


def _under(trace_id: int, span_id: int, remote: bool = False) -> Context:
    return set_span_in_context(NonRecordingSpan(_span_context(trace_id, span_id, remote)))
