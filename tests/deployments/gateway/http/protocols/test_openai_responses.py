from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import openai_generation, openai_responses
from deployments.gateway.http.protocols.openai_generation import GenerationCall


def decoded(**fields: Any) -> GenerationCall:
    return openai_responses.decode(json.dumps({"model": "m", "input": "hello", **fields}).encode())


def test_a_response_is_one_prompt_of_one_sequence() -> None:
    call = decoded(model="m:law", max_output_tokens=5, stream=True, user="u")
    assert (call.endpoint, call.model, call.adapter) == ("responses", "m", "law")
    assert (call.texts, call.sequences, call.max_tokens) == (["hello"], 1, 5)
    assert (call.streams, call.user, call.param) == (True, "u", "input")
    assert call.most == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "defaults"), [({}, {"store": False}), ({"store": None}, {"store": False}),
                             ({"store": False}, {})],
)  # fmt: skip
def test_a_request_that_says_nothing_of_it_is_not_kept(
    fields: dict[str, Any], defaults: dict[str, Any]
) -> None:
    assert decoded(**fields).defaults == defaults


def test_all_that_a_template_shows_is_in_the_prompt_in_its_order() -> None:
    call = decoded(
        instructions="sys",
        tools=[{"type": "function", "name": "f", "parameters": {}}],
        input=[
            {"role": "user", "content": "a"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "1", "output": "done"},
            {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "free"},
        ],
    )
    assert call.texts is not None
    tools, *rest = call.texts[0].split("\n")
    assert json.loads(tools)[0]["name"] == "f"
    assert rest == ["sys", "a", "b", '{"x": 1}', '"done"', "free"]


def test_images_by_url_are_fetched_also_within_outputs_of_functions() -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "input_image", "image_url": url}

    output = {"type": "function_call_output", "call_id": "1", "output": [image("http://x/2")]}
    call = decoded(input=[{"role": "user", "content": [image("http://x/1")]}, output])
    assert [(each.label, each.at) for each in call.external] == [
        ("input[0].content[0].image_url", "http://x/1"),
        ("input[1].output[0].image_url", "http://x/2"),
    ]
    assert call.extra_tokens >= 2048
    here = {"http://x/1": "data:image/png;base64,AA", "http://x/2": "data:image/gif;base64,BB"}
    sent = json.loads(openai_generation.with_media(replace(call, media=here)).body)
    assert sent["input"] == [
        {"role": "user", "content": [image("data:image/png;base64,AA")]},
        {**output, "output": [image("data:image/gif;base64,BB")]},
    ]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 0), ({"top_logprobs": 5}, 0),
        ({"include": ["message.output_text.logprobs"]}, 1),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 6),
    ],
)  # fmt: skip
def test_log_probabilities_count_where_they_are_asked_for(
    fields: dict[str, Any], count: int
) -> None:
    assert decoded(**fields).logprobs == count


@pytest.mark.parametrize(("truncation", "cut"), [(None, None), ("disabled", None), ("auto", -1)])
def test_a_prompt_that_may_be_cut_is_measured_as_cut(truncation: Any, cut: int | None) -> None:
    assert decoded(truncation=truncation).truncate_tokens == cut


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
         "input"),
        ({"input": [{"role": "user", "content": "a"}] * 4097}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://x"}]}, "tools"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"text": {"format": "a" * 70_000}}, "text"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decoded(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "name", ["previous_response_id", "conversation", "prompt", "background", "tools", "include"]
)
def test_null_is_as_none(name: str) -> None:
    assert decoded(**{name: None}).texts == ["hello"]


@pytest.mark.parametrize(
    "more", [{"store": False}, {"user": "a"}, {"metadata": {"a": "b"}}, {"stream": True}]
)
def test_what_gives_the_engine_the_same_work_is_alike(more: dict[str, Any]) -> None:
    one, other = decoded(temperature=1), decoded(temperature=1, **more)
    assert openai_generation.fingerprint(one, "1") == openai_generation.fingerprint(other, "1")
    assert openai_generation.fingerprint(one, "1") != openai_generation.fingerprint(decoded(), "1")
