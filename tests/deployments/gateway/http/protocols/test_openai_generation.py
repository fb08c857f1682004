from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import generation_fields, openai_generation
from deployments.gateway.http.protocols.openai_generation import GenerationCall


def completion(prompt: Any, **more: Any) -> GenerationCall:
    body = {"model": "m", "prompt": prompt, **more}
    return openai_generation.decode_completion(json.dumps(body, indent=1).encode())


def chat(*contents: Any, **more: Any) -> GenerationCall:
    messages = [{"role": "user", "content": content} for content in contents]
    body = {"model": "m", "messages": messages, **more}
    return openai_generation.decode_chat(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens"),
    [
        ("a", ["a"], None),
        ("", [""], None),
        (["a", "b"], ["a", "b"], None),
        ([1, 2], None, [[1, 2]]),
        ([[1], [2, 3]], None, [[1], [2, 3]]),
    ],
)
def test_each_form_of_prompt_is_read(prompt: Any, texts: Any, tokens: Any) -> None:
    call = completion(prompt)
    assert (call.texts, call.tokens) == (texts, tokens)
    assert call.sequences == len(texts or tokens)


@pytest.mark.parametrize(
    "prompt", [None, 1, {}, [], [[]], ["a", 1], [1, "a"], [1.5], [-1], [[1], "a"], [None], True]
)
def test_another_prompt_is_refused_by_its_name(prompt: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        completion(prompt)
    assert refused.value.param == "prompt"


def test_more_prompts_than_may_be_are_refused() -> None:
    most = openai_generation.MAX_PROMPTS
    assert completion(["a"] * most).sequences == most
    with pytest.raises(BadRequest):
        completion(["a"] * (most + 1))


def test_a_conversation_is_its_tools_and_all_its_texts_in_order() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    call = chat("a", parts, None, tools=[{"type": "function"}])
    assert call.texts == ['[{"type": "function"}]\na\nb']
    assert call.extra_tokens > 0


def test_calls_of_tools_count_as_what_was_said() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}, said], "tools": None}
    call = openai_generation.decode_chat(json.dumps(body).encode())
    assert call.texts == ['a\n[{"id": "1"}]']


LONG = "a b c d " * 100
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


@pytest.mark.parametrize(
    "fields",
    [
        {"documents": [{"title": "a", "text": LONG}]},
        {"chat_template_kwargs": {"context": LONG}},
        {"messages": [{"role": "assistant", "content": "a", "reasoning": LONG}]},
        {"messages": [{"role": "developer", "content": "a", "tools": [{"a": LONG}]}]},
        {"messages": [{"role": "tool", "content": "a", "tool_call_id": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": LONG}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": LONG}]}]},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_whatever_may_come_into_a_prompt_counts(fields: dict[str, Any]) -> None:
    more = chat("a", **fields).extra_tokens - chat("a").extra_tokens
    assert 200 <= more <= 220


@pytest.mark.parametrize(("images", "tokens"), [(0, 0), (1, 1024), (3, 3072)])
def test_media_count_by_their_number_and_not_by_their_bytes(images: int, tokens: int) -> None:
    text = {"type": "text", "text": "a"}
    call = chat([text] + [IMAGE] * images)
    assert call.extra_tokens - chat([text]).extra_tokens == tokens
    assert call.texts == ["a"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"a": LONG}}, {"logit_bias": {str(k): 1 for k in range(200)}},
        {"metadata": {"a": LONG}}, {"stop": [LONG]}, {"documents": None}, {"user": LONG},
        {"structured_outputs": {"regex": LONG}}, {"functions": [{"name": LONG}]},
    ],
)  # fmt: skip
def test_what_is_never_in_a_prompt_does_not_count(fields: dict[str, Any]) -> None:
    assert chat("a", **fields).extra_tokens == chat("a").extra_tokens


@pytest.mark.parametrize(
    ("fields", "each", "of_prompt"),
    [
        ({}, 0, 0), ({"logprobs": None}, 0, 0), ({"logprobs": 0}, 1, 0), ({"logprobs": 5}, 6, 0),
        ({"logprobs": 5, "echo": True}, 6, 6), ({"echo": True}, 0, 0),
        ({"prompt_logprobs": 3}, 0, 4), ({"logprobs": "x"}, 1, 0), ({"logprobs": -1}, 1, 0),
        ({"logprobs": 1, "logprob_token_ids": [1, 2, 3]}, 4, 0),
        ({"logprobs": "5", "echo": 1}, 6, 6), ({"logprobs": 5.0, "echo": "yes"}, 6, 6),
        ({"prompt_logprobs": " 20 "}, 0, 21),
    ],
)  # fmt: skip
def test_log_probabilities_of_a_completion(fields: dict[str, Any], each: int, of_prompt: int):
    call = completion("a", **fields)
    assert (call.logprobs, call.prompt_logprobs) == (each, of_prompt)


@pytest.mark.parametrize(
    ("fields", "of_prompt"),
    [({}, 0), ({"echo": True}, 1), ({"echo": True, "logprobs": True, "top_logprobs": 5}, 6)],
)
def test_the_prompts_log_probabilities_that_an_echoed_chat_has(
    fields: dict[str, Any], of_prompt: int
) -> None:
    assert chat("a", **fields).prompt_logprobs == of_prompt


def test_messages_and_their_parts_have_a_largest_number() -> None:
    most, parts = generation_fields.MAX_MESSAGES, [{"type": "text", "text": "a"}]
    for contents in (["a"] * most, [parts * (most - 1)]):
        assert chat(*contents).sequences == 1
        with pytest.raises(BadRequest, match="of both together") as refused:
            chat(*contents, "a")
        assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({"logprobs": True}, 1), ({"logprobs": False, "top_logprobs": 5}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 6), ({"top_logprobs": 5}, 0),
        ({"logprobs": 1, "top_logprobs": "20"}, 21), ({"logprobs": "on", "top_logprobs": 2e1}, 21),
        ({"logprobs": 0, "top_logprobs": 5}, 0), ({"logprobs": True, "top_logprobs": "nan"}, 1),
    ],
)  # fmt: skip
def test_log_probabilities_of_a_chat(fields: dict[str, Any], each: int) -> None:
    assert chat("a", **fields).logprobs == each


@pytest.mark.parametrize(
    ("more", "sequences"), [({}, 1), ({"n": 3}, 3), ({"n": 2, "best_of": 4}, 4)]
)
def test_sequences_are_what_the_engine_makes(more: dict[str, int], sequences: int) -> None:
    assert completion("a", **more).sequences == sequences
    assert completion(["a", "b"], **more).sequences == 2 * sequences


def test_a_completion_that_says_nothing_has_sixteen_tokens_and_a_chat_no_bound() -> None:
    assert completion("a").max_tokens == 16
    assert chat("a").max_tokens is None
    assert chat("a", max_tokens=5).max_tokens == 5
    assert chat("a", max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert chat("a", max_completion_tokens=0).max_tokens == 0


@pytest.mark.parametrize(("stream", "streams"), [(True, True), (False, False), (None, False)])
def test_whether_to_stream(stream: bool | None, streams: bool) -> None:
    assert chat("a", stream=stream).streams is streams


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_a_form_has_a_largest_size(name: str) -> None:
    most = openai_generation.MAX_FORM_BYTES - len('{"a": ""}')
    assert chat("a", **{name: {"a": "x" * most}}).body
    for make in (chat, completion):
        with pytest.raises(BadRequest, match=f"^{name} has .* bytes; it may have") as caught:
            make("a", **{name: {"a": "x" * (most + 100)}})
        assert caught.value.param == name


@pytest.mark.parametrize("field", ["role", "name"])
@pytest.mark.parametrize("value", ["", "user|>a<|system", "a b", "x" * 65])
def test_a_role_or_name_that_a_template_would_read_otherwise_is_refused(
    field: str, value: str
) -> None:
    message = {"role": "user", "content": "a", field: value}
    with pytest.raises(BadRequest) as caught:
        chat(messages=[message])
    assert caught.value.param == "messages"
    assert f"messages[0].{field}" in caught.value.message
    assert chat(messages=[message | {field: "ada-1_b"}]).texts == ["a"]


def test_an_adapter_stands_behind_a_colon() -> None:
    call = chat("a", model="base:sql:v2")
    assert (call.model, call.adapter) == ("base", "sql:v2")
    assert (chat("a").model, chat("a").adapter) == ("m", "")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": openai_generation.MAX_SEQUENCES + 1}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"user": 1}, "user"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"model": 5}, "model"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        chat("a", **more)
    assert refused.value.param == param


@pytest.mark.parametrize(("given", "cut"), [(5, 5), (-1, -1), (None, None)])
def test_a_prompt_may_be_cut_by_the_engine(given: int | None, cut: int | None) -> None:
    assert completion("a", truncate_prompt_tokens=given).truncate_tokens == cut


def test_fields_are_set_and_all_others_stay_as_they_were() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"top_p":0.50}'
    call = openai_generation.decode_chat(body)
    sent = openai_generation.with_fields(call, {"model": "n", "max_tokens": 5}).body
    assert b'[{"role":"user","content":"\\u00e9"}]' in sent
    assert b'"top_p":0.50' in sent
    assert (json.loads(sent)["model"], json.loads(sent)["max_tokens"]) == ("n", 5)


# ---- fingerprints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{"stream": True}, {"user": "somebody"}, {"seed": 7}, {"metadata": {"a": "b"}}]
)
def test_who_asks_and_how_it_is_sent_is_not_in_the_fingerprint(more: dict[str, Any]) -> None:
    one = openai_generation.fingerprint(chat("a", temperature=0.5), "1")
    assert openai_generation.fingerprint(chat("a", temperature=0.5, **more), "1") == one
    assert openai_generation.fingerprint(chat("a", **more, temperature=0.5), "1") == one


def test_what_the_engine_is_given_is_in_the_fingerprint() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
    calls = [
        chat("a"), chat("b"), chat("a", "a"), chat("a", n=2), chat("a", max_tokens=5),
        chat("a", response_format={"type": "json_object"}), chat([image]), chat([other]),
        completion("a"), completion([1, 2]), completion([1, 23]), chat("a", model="m:adapter"),
    ]  # fmt: skip
    found = {openai_generation.fingerprint(call, "1") for call in calls}
    assert len(found) == len(calls)
    assert openai_generation.fingerprint(chat("a"), "2") not in found


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    found = openai_generation.fingerprint(chat("a"), "1").hex()
    assert found.startswith("9b87478860f8dd1f209801e7db9dadee")
