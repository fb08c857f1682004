"""The spans of a whole request, as docs/observability.md draws them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from generating import CHAT, Client, add, chat, streamed
from in_process import Stand, ask, standing
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.telemetry.spans import OpenTelemetrySpans
from deployments.gateway.tenancy.tenants import new_key
from deployments.gateway.tracing import Tracing

Describe = Callable[..., ModelDescription]
DEVICE = {"runtime": "synthetic", "options": {"base_ms": 0}}
INPUT = {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def stand(tmp_path: Path, exporter: InMemorySpanExporter) -> AsyncIterator[Stand]:
    async with standing({"device": DEVICE}, tmp_path, tenants={"default": {}}) as stand:
        writer = OpenTelemetrySpans("headrace-test", SimpleSpanProcessor(exporter))
        stand.telemetry._tracing = Tracing(writer, 1.0)
        yield stand


def below(exporter: InMemorySpanExporter, parent: ReadableSpan) -> list[str]:
    found = [
        span
        for span in exporter.get_finished_spans()
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]
    return [span.name for span in sorted(found, key=lambda span: span.start_time or 0)]


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return found


async def test_a_batch_stands_beside_its_requests_stages_with_the_runtime_below(
    stand: Stand, exporter: InMemorySpanExporter
) -> None:
    body = json.dumps({"inputs": [INPUT]}).encode()
    assert (await ask(stand.app, "POST", "/v2/models/device/infer", body=body)).status == 200
    request = named(exporter, "POST oip")
    stages = below(exporter, request)
    assert [name for name in stages if name != "batch"] == [
        "parse", "tokenize", "queue", "service", "reply"
    ]  # fmt: skip
    assert "batch" in stages
    assert below(exporter, named(exporter, "batch")) == ["runtime"]


async def test_a_key_is_cut_out_of_a_spans_path(
    stand: Stand, exporter: InMemorySpanExporter
) -> None:
    key, _ = new_key()
    assert (await ask(stand.app, "POST", f"/v2/models/{key}/infer")).status == 404
    assert (named(exporter, "POST oip").attributes or {})["url.path"] == "/v2/models/hr_…/infer"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_chat_has_its_first_token_and_its_stream_and_no_batch(
    stand: Stand, exporter: InMemorySpanExporter, description: Describe, streams: bool
) -> None:
    engines = add(stand, description)
    client = Client(stand, CHAT, streamed() if streams else chat())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"data: a\n\n", tokens=(10, 4, 1))
    engines.say(asked.lease_id, b"data: [DONE]\n\n", tokens=(10, 4, 3), end=StreamEnd.DONE)
    await client.end()
    request = named(exporter, "POST chat")
    assert below(exporter, request) == ["parse", "tokenize", "queue", "first_token", "stream"]
    assert request.attributes is not None
    assert request.attributes["gen_ai.usage.input_tokens"] == 10
    assert request.attributes["gen_ai.usage.output_tokens"] == 3
    assert request.attributes["headrace.cached_tokens"] == 4
    assert request.attributes["headrace.replica"] == asked.replica_id
    assert request.attributes["headrace.repeats"] == 0


@pytest.mark.parametrize("fails", [True, False], ids=["the engine fails", "the replica dies"])
async def test_a_chat_that_ran_again_says_so_and_where_it_ran_last(
    stand: Stand, exporter: InMemorySpanExporter, description: Describe, fails: bool
) -> None:
    engines = add(stand, description, replicas=2)
    client = Client(stand, CHAT, chat())
    first = await engines.until_begun(1)
    if fails:
        engines.say(first.lease_id, end=StreamEnd.FAILED)
    else:
        engines.kill(first.replica_id)
    second = await engines.until_begun(2)
    engines.say(second.lease_id, b"{}", tokens=(10, 0, 3), end=StreamEnd.DONE)
    await client.end()
    attributes = named(exporter, "POST chat").attributes
    assert attributes is not None
    assert attributes["headrace.replica"] == second.replica_id != first.replica_id
    assert attributes["headrace.repeats"] == 1


async def test_a_refused_request_has_only_the_stages_it_came_through(
    stand: Stand, exporter: InMemorySpanExporter
) -> None:
    body = json.dumps({"inputs": [{**INPUT, "name": "nope"}]}).encode()
    assert (await ask(stand.app, "POST", "/v2/models/device/infer", body=body)).status == 400
    assert below(exporter, named(exporter, "POST oip")) == ["parse"]
