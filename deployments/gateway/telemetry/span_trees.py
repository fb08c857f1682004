"""Which spans does a request or a batch have, and how long is each?

A request has one span and one below it per stage that it went through; a batch has one, linked to
the requests in it, and one for the run of the model below it. Spans are made afterwards from times
that were measured anyway.
"""

from __future__ import annotations

import time

from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.services import Generated, RequestContext
from deployments.gateway.tracing import SpanTimes, SpanWriter, TraceContext, Tracing
from yaml_document.credentials import without_keys


def span_writer(otlp_endpoint: str | None) -> SpanWriter | None:
    """What sends spans to a collector; None: there is none."""
    if otlp_endpoint is None:
        return None
    from deployments.gateway.telemetry import spans  # slow to import

    return spans.OpenTelemetrySpans("headrace", spans.otlp_processor(otlp_endpoint))


def trace_request(tracing: Tracing, context: RequestContext, total_s: float) -> None:
    """The spans of a request that has ended, `total_s` after its headers came."""
    end_ns = time.time_ns()
    start_ns = end_ns - int(total_s * 1e9)
    at, spans = start_ns, []
    for name, seconds in _spans(context):
        spans.append(SpanTimes(name, at, at + int(seconds * 1e9)))
        at = spans[-1].end_ns
    attributes: dict[str, str | int | float | bool] = {
        "http.request.method": context.exchange.method,
        "http.response.status_code": context.status,
        "url.path": without_keys(context.exchange.path),
        "headrace.model": context.model,
        "headrace.model_version": context.version,
        "headrace.outcome": context.outcome,
        "headrace.request_id": context.exchange.request_id.decode("latin-1"),
    }
    if context.generated is not None:
        attributes |= _run_attributes(context.generated)
    name = f"{context.exchange.method} {context.protocol}"
    failed = context.reason if context.status >= 500 else ""
    tracing.finish_request(
        context.trace, SpanTimes(name, start_ns, end_ns), attributes, spans, failed=failed
    )


def trace_batch(
    tracing: Tracing, model: str, record: BatchRecord, traced: list[TraceContext]
) -> None:
    """The spans of a batch that came back; `traced`: of its requests, those that are recorded."""
    end_ns = time.time_ns()
    start_ns = end_ns - int(record.round_trip_s * 1e9)
    reply = record.reply
    back_s = (record.round_trip_s - reply.wait_s - reply.service_s) / 2
    ran_ns = end_ns - int(max(back_s, 0.0) * 1e9)
    run = SpanTimes("runtime", ran_ns - int(reply.service_s * 1e9), ran_ns)
    attributes: dict[str, str | int | float | bool] = {
        "headrace.model": model,
        "headrace.replica": record.replica_id,
        "headrace.batch_size": record.size,
        "headrace.bucket": record.bucket,
    }
    tracing.batch(traced, SpanTimes("batch", start_ns, end_ns), attributes, [run])


def _spans(context: RequestContext) -> list[tuple[str, float]]:
    """Stages in the order of the walk, seconds."""
    stages = context.stages
    named: list[tuple[str, float]] = [(n, stages[n]) for n in ("parse", "tokenize") if n in stages]
    if context.generated is not None:
        return named + _token_spans(context, context.generated)
    if context.ran:
        named += [("queue", context.queue_wait_s), ("service", context.service_s)]
    return named + [(n, stages[n]) for n in ("reply",) if n in stages]


def _run_attributes(generated: Generated) -> dict[str, str | int]:
    """What a batch's own span says of it, and a request that generates has none."""
    return {
        "gen_ai.usage.input_tokens": generated.tokens.input,
        "gen_ai.usage.output_tokens": generated.tokens.output,
        "headrace.cached_tokens": generated.tokens.cached,
        "headrace.replica": generated.replica_id,
        "headrace.repeats": generated.repeats,
    }


def _token_spans(context: RequestContext, generated: Generated) -> list[tuple[str, float]]:
    """After the queue: until the first token, and from then on."""
    before_s = context.stages.get("parse", 0.0) + context.stages.get("tokenize", 0.0)
    spans = [("queue", context.queue_wait_s)]
    if generated.ttft_s is not None:
        first_s = max(generated.ttft_s - before_s - context.queue_wait_s, 0.0)
        further = max(generated.tokens.output - 1, 0)
        spans += [("first_token", first_s), ("stream", (generated.tpot_s or 0.0) * further)]
    return spans
