"""Where did a traced request's time go? OpenTelemetry spans, made after the fact.

Times are taken anyway; a sampled request's spans are made from them once it has ended, so that an
unsampled one pays for two random numbers only. Spans: the request (SERVER) with its stages below
it; a batch, child of its first sampled request and linked to all of them; the runtime's run below
that, from the times that ride on the replica's answer (replicas export nothing themselves).
OpenTelemetry is imported only if a collector is configured: it costs 10 MB and 0.1 s. Callers
may ask for traces; what they can make us record is bounded per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from deployments.gateway.telemetry.span_times import Attributes, SpanTimes
from deployments.gateway.telemetry.trace_context import Sampler, TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from deployments.gateway.telemetry.spans import SpanWriter


_MOST_TRACES_PER_S = 100


class Tracing:
    """For one thread, the event loop's. `processor` replaces OTLP over HTTP to `otlp_endpoint`."""

    def __init__(
        self,
        service_name: str,
        otlp_endpoint: str | None = None,
        sample_ratio: float = 0.01,
        *,
        processor: SpanProcessor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer: SpanWriter | None = None
        if otlp_endpoint is not None or processor is not None:
            from deployments.gateway.telemetry import spans

            self._writer = spans.SpanWriter(
                service_name, processor or spans.otlp_processor(otlp_endpoint or "")
            )
        self._recording = self._writer is not None
        ratio = sample_ratio if self._recording else 0.0
        self._sampler = Sampler(ratio, Random(SystemRandom().getrandbits(128)))
        self._clock = clock
        self._second = self._traces = 0

    def begin(self, headers: Mapping[bytes, bytes]) -> TraceContext:
        """The context of a request that arrives; always there, for the answer's `traceparent`."""
        context = self._sampler.begin(headers.get(b"traceparent"))
        if context.sampled and self._recording and not self._within_bound():
            context.sampled = False
        return context

    def _within_bound(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._traces = second, 0
        self._traces += 1
        return self._traces <= _MOST_TRACES_PER_S

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
