"""What a request to generate may say, and what is refused by its name."""

from __future__ import annotations

import json

import pytest

from runtimes.generation import requests
from runtimes.generation.requests import Defaults
from runtimes.synthetic.answers import InvalidRequest, error

MODEL = "llm"


def read(endpoint: str = "completions", defaults: Defaults | None = None, **fields):
    start = {"messages": [{"role": "user", "content": "a"}]} if endpoint == "chat" else {}
    body = {"model": MODEL, "prompt": "a"} if endpoint != "chat" else {"model": MODEL, **start}
    return requests.read(
        endpoint, json.dumps(body | fields).encode(), MODEL, defaults or Defaults()
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]), ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}), ("structured_outputs", {"regex": "a"}),
        ("prompt_logprobs", 1), ("best_of", 2), ("allowed_token_ids", [1]), ("bad_words", ["a"]),
        ("use_beam_search", True), ("truncate_prompt_tokens", 5), ("store", True),
        ("logprob_token_ids", [1]), ("chat_template", "{{ messages }}"), ("documents", [{}]),
        ("anything_else", 0), ("echo", True), ("audio", {}),
    ],
)  # fmt: skip
def test_what_this_engine_cannot_do_is_refused_by_its_name(field, value):
    with pytest.raises(InvalidRequest) as refused:
        read("chat", **{field: value})
    assert refused.value.param == field
    assert field in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none"}, {"tools": []}, {"user": "someone"},
        {"response_format": {"type": "text"}}, {"store": False}, {"metadata": {"a": "b"}},
        {"logprobs": None, "stop": None, "temperature": None}, {"priority": 3},
    ],
)  # fmt: skip
def test_what_changes_nothing_is_let_through(fields):
    assert read("chat", **fields) == read("chat")


def test_true_is_not_one():
    with pytest.raises(InvalidRequest, match="use_beam_search"):
        read(use_beam_search=0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages"),
        ({"n": 129}, "n"), ({"temperature": -0.1}, "temperature"), ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 1e-4}, "repetition_penalty"),
        ({"repetition_penalty": 1001}, "repetition_penalty"),
        ({"top_p": 0}, "top_p"), ({"seed": 2**63}, "seed"), ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"), ({"stop": ["a"] * 65}, "stop"), ({"n": True}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"), ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"chat_template_kwargs": {str(i): 1 for i in range(17)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_field(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        read("chat", **fields)
    assert refused.value.param == param
    assert refused.value.status == 400


def test_another_model_is_not_found():
    with pytest.raises(InvalidRequest) as refused:
        read(model="other")
    assert refused.value.status == 404


def test_parts_of_a_message_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = read("chat", messages=[{"role": "user", "content": parts}]).messages
    assert message == {"role": "user", "content": "a\nb"}


def test_prompts_are_texts_or_tokens():
    assert read(prompt="ab").prompts == ("ab",)
    assert read(prompt=["a", "b"]).prompts == ("a", "b")
    assert read(prompt=[1, 2]).prompts == ([1, 2],)
    assert read(prompt=[[1, 2], [3]]).prompts == ([1, 2], [3])


def test_what_the_model_says_counts_where_the_request_says_nothing():
    defaults = Defaults(temperature=0.6, top_k=20, max_tokens=50, ends=frozenset({2}))
    plain = read("chat", defaults).sampling
    assert (plain.temperature, plain.top_k, plain.ends) == (0.6, 20, {2})
    said = read("chat", defaults, temperature=0, top_k=-1, stop_token_ids=[5]).sampling
    assert (said.temperature, said.top_k, said.ends) == (0, 0, {2, 5})
    assert read("chat", defaults, ignore_eos=True).sampling.ends == frozenset()
    assert read("chat", defaults).max_tokens == 50
    assert read("completions", defaults).max_tokens == 16


def test_the_longest_answer_is_what_the_context_leaves():
    assert requests.room(read("chat"), 10, 100) == 90
    assert requests.room(read("chat", max_tokens=90), 10, 100) == 90
    with pytest.raises(InvalidRequest, match="100 tokens") as refused:
        requests.room(read("chat", max_completion_tokens=91), 10, 100)
    assert refused.value.param == "max_tokens"
    with pytest.raises(InvalidRequest, match="has 100"):
        requests.room(read("chat"), 100, 100)


ODD = [
    "\ud800", "", "a" * 100_000, -1, 0, 2**70, 1e308, -0.0, True, None, [], {}, [[]], [{}], [None],
    ["\ud800"], {"\ud800": 1}, {"1": "\ud800"}, [2**70], [[2**70]], [[1], "a"], {"type": "text"},
    {"include_usage": "yes"}, [{"role": "user"}], [{"role": "\ud800", "content": "\ud800"}],
    [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}],
]  # fmt: skip
FIELDS = sorted(requests.Chat.model_fields | requests.Completion.model_fields)


def tried(endpoint: str, field: str, value: object) -> requests.Asked | bytes:
    try:
        return read(endpoint, **{field: value})
    except InvalidRequest as fault:
        return error(fault)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("field", [*FIELDS, *requests.AS_IT_IS, "\ud800"])
def test_whatever_a_field_holds_is_read_or_refused_in_words(endpoint, field):
    for value in ODD:
        found = tried(endpoint, field, value)
        if isinstance(found, requests.Asked):
            json.dumps([found.prompts, found.messages, found.stop], ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b"[" * 100_000, b'{"prompt": NaN}', b"\xff"]
)
def test_what_is_no_request_is_refused(body):
    with pytest.raises(InvalidRequest):
        requests.read("completions", body, MODEL, Defaults())
