"""Traces: W3C headers in and out, decisions kept, spans made afterwards with the right parents."""

import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from deployments.gateway.telemetry.spans import OpenTelemetrySpans, otlp_processor
from deployments.gateway.tracing import Sampler, SpanTimes, TraceContext, Tracing, parse

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = HEADER[:-1] + b"0"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


def written_to(exporter):
    return OpenTelemetrySpans("headrace-test", SimpleSpanProcessor(exporter))


@pytest.fixture
def tracing(exporter):
    made = Tracing(written_to(exporter), sample_ratio=1.0, clock=lambda: 0.0)
    yield made
    made.close()


def spans(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


# ---- traceparent --------------------------------------------------------------------------


def test_a_valid_header_is_read():
    assert parse(HEADER) == (TRACE, PARENT, True)
    assert parse(UNSAMPLED) == (TRACE, PARENT, False)


def test_a_later_version_may_carry_more_and_other_flags():
    assert parse(b"01" + HEADER[2:-2] + b"ff-more") == (TRACE, PARENT, True)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"00", HEADER[:-1], HEADER + b"0", HEADER + b"-x", b"ff" + HEADER[2:],
        HEADER.upper(), HEADER.replace(b"-", b"_"), b"01" + HEADER[2:] + b"x",
        b"00-" + b"0" * 32 + HEADER[35:], HEADER[:36] + b"0" * 16 + b"-01",
        HEADER[:3] + b"+" + HEADER[4:], HEADER[:3] + b"_" + HEADER[4:], HEADER[:-2] + b" 1",
    ],
)  # fmt: skip
def test_an_invalid_header_is_ignored(header):
    assert parse(header) is None


@given(st.binary(max_size=70))
def test_no_header_makes_the_parser_fail(header):
    assert parse(header) is None


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_what_is_read(trace_id, span_id, sampled):
    written = TraceContext(trace_id, 0, span_id, sampled).traceparent()
    assert parse(written) == (trace_id, span_id, sampled)


# ---- decisions ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 2000)])
def test_none_or_all_are_sampled_at_the_ends_of_the_ratio(ratio, expected):
    sampler = Sampler(ratio, Random(1))
    assert sum(sampler.begin(None).sampled for _ in range(2000)) == expected


def test_about_the_ratio_is_sampled_between_them():
    sampler = Sampler(0.25, Random(1))
    assert 450 < sum(sampler.begin(None).sampled for _ in range(2000)) < 550


@pytest.mark.parametrize(("ratio", "header", "sampled"), [(0, HEADER, True), (1, UNSAMPLED, False)])
def test_the_callers_decision_is_kept(ratio, header, sampled):
    context = Sampler(ratio, Random(1)).begin(header)
    assert (context.trace_id, context.parent_id) == (TRACE, PARENT)
    assert context.sampled is sampled
    assert context.span_id not in (0, PARENT)


def test_requests_get_different_identifiers():
    sampler = Sampler(0.5, Random(1))
    contexts = [sampler.begin(None) for _ in range(1000)]
    assert len({c.trace_id for c in contexts}) == len({c.span_id for c in contexts}) == 1000


@pytest.mark.parametrize(("asked", "recorded"), [(1, 1), (2, 2), (100, 100), (101, 100)])
def test_callers_can_make_us_record_a_hundred_traces_a_second(exporter, asked, recorded):
    now = [5.0]
    tracing = Tracing(written_to(exporter), clock=lambda: now[0])
    sampled = [tracing.begin({b"traceparent": HEADER}).sampled for _ in range(asked)]
    assert sum(sampled) == recorded
    now[0] = 6.0
    assert tracing.begin({b"traceparent": HEADER}).sampled


# ---- without a collector ------------------------------------------------------------------


def test_without_a_collector_the_trace_is_passed_on_and_nothing_recorded():
    tracing = Tracing(sample_ratio=1.0)
    context = tracing.begin({b"traceparent": HEADER})
    assert not tracing.records(context)
    trace_id, span_id, sampled = parse(context.traceparent())
    assert (trace_id, sampled) == (TRACE, True)
    assert span_id == context.span_id
    assert not tracing.begin({}).sampled
    tracing.finish_request(context, SpanTimes("request", 1, 2), {})
    tracing.batch([context], SpanTimes("batch", 1, 2), {})
    tracing.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (
            "from deployments.gateway.tracing import Tracing; Tracing().begin({})",
            "opentelemetry",
        ),
        (
            "import deployments.gateway.telemetry.gateway_telemetry as t; t._span_writer(None)",
            "deployments.gateway.telemetry.spans",
        ),
    ],
)
def test_without_a_collector_opentelemetry_is_not_imported(code, unwanted):
    code = f"import sys; {code}; sys.exit(any(m.startswith({unwanted!r}) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- spans --------------------------------------------------------------------------------


def test_a_request_gets_a_server_span_with_the_identifiers_it_answered_with(tracing, exporter):
    context = tracing.begin({})
    assert tracing.records(context)
    tracing.finish_request(context, SpanTimes("POST /v1/embeddings", 1000, 5000), {"a": 1})
    (span,) = exporter.get_finished_spans()
    assert (span.context.trace_id, span.context.span_id) == (context.trace_id, context.span_id)
    assert (span.start_time, span.end_time, span.kind) == (1000, 5000, SpanKind.SERVER)
    assert span.parent is None
    assert dict(span.attributes) == {"a": 1}
    assert span.resource.attributes["service.name"] == "headrace-test"


def test_a_request_with_a_parent_joins_its_trace(tracing, exporter):
    context = tracing.begin({b"traceparent": HEADER})
    tracing.finish_request(context, SpanTimes("request", 1, 2), {})
    root = tracing.begin({})
    tracing.finish_request(root, SpanTimes("root", 1, 2), {})
    found = spans(exporter)
    assert found["request"].context.trace_id == TRACE
    assert found["request"].context.span_id == context.span_id
    assert (found["request"].parent.span_id, found["request"].parent.is_remote) == (PARENT, True)
    assert found["root"].context.trace_id == root.trace_id


def test_stages_are_spans_below_the_request(tracing, exporter):
    context = tracing.begin({})
    stages = [SpanTimes("parse", 1, 2), SpanTimes("queue", 2, 7)]
    tracing.finish_request(context, SpanTimes("request", 0, 9), {}, stages)
    found = spans(exporter)
    assert {found[n].parent.span_id for n in ("parse", "queue")} == {context.span_id}
    assert (found["queue"].start_time, found["queue"].end_time) == (2, 7)
    assert len({span.context.span_id for span in found.values()}) == 3


def test_a_failed_request_is_marked(tracing, exporter):
    tracing.finish_request(tracing.begin({}), SpanTimes("request", 0, 1), {}, failed="lost")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "lost")


def test_an_unsampled_request_leaves_no_span(tracing, exporter):
    context = tracing.begin({b"traceparent": UNSAMPLED})
    assert not tracing.records(context)
    tracing.finish_request(context, SpanTimes("request", 0, 1), {}, [SpanTimes("queue", 0, 1)])
    assert exporter.get_finished_spans() == ()


def test_a_batch_links_its_sampled_requests_and_holds_the_runtimes_run(tracing, exporter):
    members = [tracing.begin({}), tracing.begin({b"traceparent": UNSAMPLED}), tracing.begin({})]
    times, run = SpanTimes("batch", 10, 90), SpanTimes("runtime", 20, 80)
    tracing.batch(members, times, {"headrace.batch_size": 3}, [run])
    found = spans(exporter)
    batch = found["batch"]
    sampled = [members[0], members[2]]
    assert [link.context.span_id for link in batch.links] == [m.span_id for m in sampled]
    assert [link.context.trace_id for link in batch.links] == [m.trace_id for m in sampled]
    assert (batch.parent.span_id, batch.context.trace_id) == (
        members[0].span_id,
        members[0].trace_id,
    )
    assert found["runtime"].parent.span_id == batch.context.span_id
    assert (found["runtime"].start_time, found["runtime"].end_time) == (20, 80)


@pytest.mark.parametrize("members", [[], [TraceContext(1, 0, 2, False)]])
def test_a_batch_without_a_sampled_request_leaves_no_span(tracing, exporter, members):
    tracing.batch(members, SpanTimes("batch", 0, 1), {})
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/custom", "http://127.0.0.1:4318/custom"),
    ],
)
def test_a_bare_collector_address_gets_the_protocols_path(endpoint, expected):
    processor = otlp_processor(endpoint)
    assert processor.span_exporter._endpoint == expected
    processor.shutdown()
