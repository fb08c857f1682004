"""What a chat or a completion may hold: each field is free, counted, bounded or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import openai_generation
from deployments.gateway.http.protocols.json_body import Field, Use
from deployments.gateway.http.protocols.openai_generation import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    OF_THE_RENDERER,
    GenerationCall,
)


def chat(**fields: Any) -> GenerationCall:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    return openai_generation.decode_chat(json.dumps(body).encode())


def completion(**fields: Any) -> GenerationCall:
    body = {"model": "m", "prompt": "a", **fields}
    return openai_generation.decode_completion(json.dumps(body).encode())


BOTH = pytest.mark.parametrize("send", [chat, completion])
Send = Callable[..., GenerationCall]


def refused(send: Send, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        send(**fields)
    return caught.value


@pytest.mark.parametrize("table", [CHAT_FIELDS, COMPLETION_FIELDS])
def test_a_refused_field_has_a_reason_and_no_other_one_has(table: Mapping[str, Field]) -> None:
    assert [
        name for name, each in table.items() if bool(each.why) != (each.use is Use.REFUSED)
    ] == []


@BOTH
def test_a_field_that_nobody_knows_is_refused_with_what_was_meant(send: Send) -> None:
    wrong = refused(send, top_pp=0.5)
    assert (wrong.param, wrong.message) == (
        "top_pp",
        "unknown field 'top_pp'; did you mean 'top_p'?",
    )
    assert "leave it out" in refused(send, nobody_knows=None).message
    assert len(refused(send, **{"x" * 100_000: 1}).message) < 100


def test_a_chats_field_is_none_of_a_completion() -> None:
    wrong = refused(completion, max_completion_tokens=5)
    assert wrong.param == "max_completion_tokens"
    assert "completions have max_tokens" in wrong.message
    assert refused(completion, tools=[]).message.startswith("unknown field 'tools'")


@pytest.mark.parametrize(
    ("send", "name"),
    [
        *((send, name) for send, table in ((chat, CHAT_FIELDS), (completion, COMPLETION_FIELDS))
          for name, each in table.items() if each.use is Use.REFUSED),
    ],
)  # fmt: skip
def test_what_is_refused_is_named_and_null_is_as_if_it_were_not_there(
    send: Send, name: str
) -> None:
    wrong = refused(send, **{name: {"a": 1}})
    assert wrong.param == name
    assert wrong.message.startswith(f"{name} is not accepted: ")
    assert send(**{name: None}).model == "m"


@BOTH
@pytest.mark.parametrize(
    ("name", "most", "entry"),
    [
        ("logit_bias", 1024, {}), ("stop", 4, "a"), ("bad_words", 128, "a"),
        ("stop_token_ids", 1024, 1), ("allowed_token_ids", 16_384, 1),
        ("logprob_token_ids", 128, 1),
    ],
)  # fmt: skip
def test_lists_have_a_largest_number_of_entries(
    send: Send, name: str, most: int, entry: Any
) -> None:
    def of(count: int) -> Any:
        return {str(k): 1 for k in range(count)} if entry == {} else [entry] * count

    assert send(**{name: of(most)}).model == "m"
    wrong = refused(send, **{name: of(most + 1)})
    assert (wrong.param, f"has {most + 1} entries; it may have {most}" in wrong.message) == (
        name,
        True,
    )


@BOTH
@pytest.mark.parametrize("name", ["stop", "bad_words", "cache_salt", "seed", "metadata", "user"])
def test_what_is_not_counted_has_a_largest_size(send: Send, name: str) -> None:
    value: Any = {"a": "x" * 100_000} if name == "metadata" else "x" * 100_000
    wrong = refused(send, **{name: value})
    assert wrong.param == name
    assert "bytes; it may have" in wrong.message


@pytest.mark.parametrize(
    ("send", "name", "most"),
    [
        (chat, "top_logprobs", 20), (completion, "logprobs", 20), (chat, "prompt_logprobs", 20),
        (completion, "prompt_logprobs", 20), (chat, "stream_interval", 64),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [lambda n: n, str, float])
def test_numbers_that_make_the_answer_large_have_a_bound(
    send: Send, name: str, most: int, written: Callable[[int], Any]
) -> None:
    assert send(**{name: written(most)}).model == "m"
    assert refused(send, **{name: written(most + 1)}).param == name


@pytest.mark.parametrize(
    "written", [r'"\u0031\u0030\u0030\u0030"', '"1_000"', r'"\u00a01000"', "1e3", '"0001000.0"']
)
def test_a_number_counts_however_it_is_written(written: str) -> None:
    """The engine reads each of these as a thousand."""
    fields = {"top_logprobs": "@", "logprobs": True, "messages": [{"role": "user", "content": "a"}]}
    plain = fields | {"top_logprobs": 1}
    patterns = {"repetition_detection": {"max_pattern_size": "@"}}
    for more in (fields, plain | {"stream_interval": "@"}, plain | patterns):
        body = json.dumps({"model": "m", **more}).replace('"@"', written)
        with pytest.raises(BadRequest, match=" at most"):
            openai_generation.decode_chat(body.encode())


@BOTH
def test_beams_are_few_and_patterns_short(send: Send) -> None:
    assert send(use_beam_search=True, n=10).sequences == 10
    assert refused(send, use_beam_search=True, n=11).param == "n"
    assert send(use_beam_search=False, n=11).sequences == 11
    short = {"max_pattern_size": 256, "min_count": 2}
    assert send(repetition_detection=short).model == "m"
    wrong = refused(send, repetition_detection=short | {"min_count": 257})
    assert wrong.message.startswith("repetition_detection.min_count may be")


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


def test_what_a_template_reads_is_bounded_in_depth() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(61)}}
    assert chat(tools=[tool]).model == "m"
    tool["function"] = {"name": "f", "parameters": nested(62)}
    assert refused(chat, tools=[tool]).param == "tools"
    text = {"a": "[{" * 100 + '"' + "[" * 100}  # in a text they are no levels
    assert chat(chat_template_kwargs=text).model == "m"
    assert refused(chat, chat_template_kwargs=nested(17)).param == "chat_template_kwargs"
    assert refused(chat, tools=[{}] * 129).param == "tools"


@pytest.mark.parametrize("name", sorted(OF_THE_RENDERER))
def test_a_templates_arguments_reach_the_template_alone(name: str) -> None:
    wrong = refused(chat, chat_template_kwargs={"enable_thinking": False, name: 10**9})
    assert wrong.param == "chat_template_kwargs"
    assert f"'{name}'" in wrong.message
    assert chat(chat_template_kwargs={"enable_thinking": False}).model == "m"


@pytest.mark.parametrize("name", ["image_embeds", "audio_embeds", "prompt_embeds"])
def test_embeddings_in_a_message_are_refused(name: str) -> None:
    content = [{"type": name, name: "AAAA"}]
    wrong = refused(chat, messages=[{"role": "user", "content": content}])
    assert wrong.param == "messages"
    assert f"messages[0]: {name} is not accepted" in wrong.message


def test_what_openais_client_sends_is_accepted_or_refused_by_name() -> None:
    """Its own list of parameters, as far as the package is here."""
    openai = pytest.importorskip("openai.types.chat.completion_create_params")
    texts = pytest.importorskip("openai.types.completion_create_params")
    assert openai.CompletionCreateParamsBase.__annotations__.keys() - CHAT_FIELDS.keys() == set()
    assert (
        texts.CompletionCreateParamsBase.__annotations__.keys() - COMPLETION_FIELDS.keys() == set()
    )
    for name in openai.CompletionCreateParamsBase.__annotations__:
        assert CHAT_FIELDS[name].use is not Use.REFUSED, name
