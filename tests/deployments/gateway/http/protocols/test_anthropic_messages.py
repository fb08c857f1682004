from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import anthropic_messages, openai_generation
from deployments.gateway.http.protocols.openai_generation import GenerationCall

USER = {"role": "user", "content": "hello"}


def decoded(**fields: Any) -> GenerationCall:
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return anthropic_messages.decode(json.dumps(body).encode())


def image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


def test_a_message_is_one_prompt_of_one_sequence() -> None:
    call = decoded(model="m:law", stream=True, metadata={"user_id": "u"})
    assert (call.endpoint, call.model, call.adapter) == ("messages", "m", "law")
    assert (call.texts, call.sequences, call.max_tokens) == (["hello"], 1, 5)
    assert (call.streams, call.user, call.param, call.most) == (True, "u", "messages", "max_tokens")
    assert call.generates


def test_a_count_asks_for_no_output() -> None:
    body = json.dumps({"model": "m", "messages": [USER], "max_tokens": 5, "stream": True}).encode()
    call = anthropic_messages.decode_count(body)
    assert (call.endpoint, call.generates, call.streams) == ("count_tokens", False, False)
    assert call.max_tokens is None


def test_all_that_a_template_shows_is_in_the_prompt_in_its_order() -> None:
    call = decoded(
        system=[{"type": "text", "text": "sys"}],
        tools=[{"name": "f", "input_schema": {}}],
        messages=[
            USER,
            {"role": "assistant", "content": [
                {"type": "text", "text": "I call"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1",
                 "content": [{"type": "text", "text": "part"}]},
                {"type": "tool_result", "tool_use_id": "2", "content": "whole"}]},
        ],
    )  # fmt: skip
    assert call.texts is not None
    tools, *rest = call.texts[0].split("\n")
    assert json.loads(tools) == [{"name": "f", "input_schema": {}}]
    assert rest == ["sys", "hello", "I call", '{"x": 1}', "part", "whole"]


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({"messages": [{"role": "user", "content": [image("data:image/png;base64,AA")]}]}, 1024),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": "a" * 400, "signature": "s"}]}]}, 100),
        ({"chat_template_kwargs": {"a": "b" * 400}}, 100),
    ],
)  # fmt: skip
def test_what_may_come_into_the_prompt_besides_counts(more: dict[str, Any], least: int) -> None:
    plain = decoded().extra_tokens
    assert plain + least <= decoded(**more).extra_tokens <= plain + least + 20


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.123456789}, {"stop_sequences": ["a" * 400]},
        {"tool_choice": {"type": "x"}}, {"cache_control": {"type": "ephemeral"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ],
)  # fmt: skip
def test_what_never_comes_into_the_prompt_does_not(more: dict[str, Any]) -> None:
    assert decoded(**more).extra_tokens == decoded().extra_tokens


def test_images_by_url_are_fetched_also_within_results_of_tools() -> None:
    inside = {"type": "tool_result", "tool_use_id": "1", "content": [image("http://x/2")]}
    call = decoded(messages=[USER, {"role": "user", "content": [image("http://x/1"), inside]}])
    assert [(each.label, each.at) for each in call.external] == [
        ("messages[1].content[0].source", "http://x/1"),
        ("messages[1].content[1].content[0].source", "http://x/2"),
    ]
    here = {"http://x/1": "data:image/png;base64,AA", "http://x/2": "data:image/gif;base64,BB"}
    sent = json.loads(openai_generation.with_media(replace(call, media=here)).body)
    assert sent["messages"][1]["content"] == [
        image("data:image/png;base64,AA"),
        {**inside, "content": [image("data:image/gif;base64,BB")]},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}] * 4097}]}, "messages"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "file", "file_id": "f"}}]}]}, "messages"),
        ({"system": 5}, "system"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools"),
        ({"output_config": {"format": "a" * 70_000}}, "output_config"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decoded(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize("name", ["container", "mcp_servers", "system", "tools", "metadata"])
def test_null_is_as_none(name: str) -> None:
    assert decoded(**{name: None}).texts == ["hello"]
