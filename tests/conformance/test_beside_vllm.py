"""Headrace beside vLLM's own server, body by body, and read by the SDKs of both APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import pytest_asyncio

from runtimes import catalog

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
if MISSING is None:
    import beside_vllm
    from beside_vllm import Body, Stand

Both = tuple["Stand", httpx.AsyncClient]
USER: list[Any] = [{"role": "user", "content": "the wheel turns"}]
PARAMETERS = {"type": "object", "properties": {"by": {"enum": ["a", "b"]}}, "required": ["by"]}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def both() -> AsyncIterator[Both]:
    async with beside_vllm.both() as found:
        yield found


def http(both: Both) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=both[0].app))


def anthropics(both: Both) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="any", base_url="http://local", http_client=http(both), max_retries=0
    )


def openais(both: Both) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="any", base_url="http://local/v1", http_client=http(both), max_retries=0
    )


async def test_every_body_is_answered_as_by_vllms_own_server(both: Both) -> None:
    """But for differences that are meant: docs/generation.md lists them."""
    bodies: list[Body] = list(beside_vllm.bodies())
    assert len(bodies) >= 200
    found: dict[str, str] = {}
    for body in bodies:
        how = beside_vllm.differs(*await beside_vllm.compared(*both, body))
        if how != beside_vllm.meant(body):
            found[body.name] = how
    assert not found


async def test_anthropics_sdk_reads_what_the_engine_answers(both: Both) -> None:
    client = anthropics(both)
    cold = {"temperature": 0}
    asked: dict[str, Any] = {
        "model": "chat", "max_tokens": 12, "messages": USER, "extra_body": cold
    }  # fmt: skip
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in whole.content]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = await client.messages.count_tokens(model="chat", messages=USER)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_openais_sdk_reads_what_the_engine_answers(both: Both) -> None:
    client = openais(both)
    asked: dict[str, Any] = {
        "model": "chat", "input": USER, "max_output_tokens": 12, "temperature": 0
    }  # fmt: skip
    whole = await client.responses.create(**asked)
    events = [event async for event in await client.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text != ""
    assert (last.response.store, whole.store) == (False, False)
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    async with client.responses.stream(**asked) as stream:
        assert (await stream.get_final_response()).output_text == whole.output_text


async def test_openais_sdk_reads_the_call_of_a_function(both: Both) -> None:
    """The toy model calls nothing of its own accord."""
    call = '<tool_call>\n{"name": "turn", "arguments": {"by": "a"}}\n</tool_call>'
    asked: dict[str, Any] = {
        "model": "chat", "max_output_tokens": 100, "input": USER,
        "tools": [{"type": "function", "name": "turn", "parameters": PARAMETERS}],
        "extra_body": {"structured_outputs": {"choice": [call]}},
    }  # fmt: skip
    whole = await openais(both).responses.create(**asked)
    async with openais(both).responses.stream(**asked) as stream:
        streamed = await stream.get_final_response()
    for response in (whole, streamed):
        found = [each for each in response.output if each.type == "function_call"]
        assert [(each.name, json.loads(each.arguments)) for each in found] == [
            ("turn", {"by": "a"})
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/responses", {"logit_bias": {"99999999": 1}}), ("/v1/messages", {"top_k": -5})],
)
async def test_a_mistake_is_the_same_refusal_streamed_and_whole(
    both: Both, path: str, fields: dict[str, Any]
) -> None:
    """vLLM's own server loses the status within a stream."""
    for stream in (False, True):
        ours, _ = await beside_vllm.compared(*both, Body(path, fields, stream))
        assert ours.status == 400
