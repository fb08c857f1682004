"""What a request is told that does not fit vLLM's model of it; by vLLM's own model where it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from typing_extensions import TypedDict

from runtimes.vllm.invalid import sentence


class Part(TypedDict):
    type: Literal["text"]
    text: str


class UserMessage(TypedDict):
    role: Literal["user"]
    content: str | Iterable[Part]


class SystemMessage(TypedDict):
    role: Literal["system"]
    content: str | Iterable[Part]


class ToolMessage(TypedDict):
    role: Literal["tool"]
    content: str | list[Part]
    tool_call_id: str


class AnyMessage(TypedDict):
    role: str
    content: str | list[Part]
    name: str


class Chat(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[UserMessage | SystemMessage | ToolMessage | AnyMessage]
    temperature: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None

    @field_validator("n")
    @classmethod
    def few(cls, n: int | None) -> int | None:
        if n is not None and n > 9:
            raise ValueError("n must be at most 9.")
        return n


HELLO = [{"role": "user", "content": "a"}]


def said(body: bytes, kind: type[BaseModel] = Chat) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(body)
    message, param = sentence(caught.value)
    assert "\n" not in message
    assert "http" not in message
    return message, param


def asked(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO} | fields).encode()


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"messages": [{"role": "user", "content": None}]},
         "messages[0].content: should be a valid string or should be a valid array, not null",
         "messages"),
        ({"messages": [*HELLO, {"content": "a"}]}, "messages[1].role: field required", "messages"),
        ({"messages": "a"}, "messages: should be a valid array", "messages"),
        ({"temperature": "hot"}, "temperature: should be a valid number, unable to parse string as "
                                 "a number", "temperature"),
        ({"max_tokens": 1.5}, "max_tokens: should be a valid integer, got a number with a "
                              "fractional part", "max_tokens"),
        ({"stop": 3}, "stop: should be a valid string or should be a valid array", "stop"),
        ({"logit_bias": {"7": "b"}}, "logit_bias.7: should be a valid number, unable to parse "
                                     "string as a number", "logit_bias"),
        ({"n": 10}, "n: n must be at most 9.", "n"),
    ],
)  # fmt: skip
def test_one_line_says_what_is_wrong_and_where(fields, message, param):
    assert said(asked(**fields)) == (message, param)


def test_several_fields_are_each_named_and_many_are_counted():
    message, param = said(asked(temperature="a", max_tokens="b"))
    assert param == "temperature"
    assert "temperature: " in message
    assert "; max_tokens: " in message
    message, _ = said(asked(temperature="a", max_tokens="b", stop=1, logit_bias=2, n="x"))
    assert message.endswith("; and 2 more fields")


def test_a_body_that_is_no_object_has_no_field():
    message, param = said(b"[1]")
    assert param is None
    assert message.startswith("should be an object")


def test_vllms_own_faults_are_one_line_too():
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    kind = protocol.ChatCompletionRequest
    for body, path in (
        (asked(messages=[{"role": "user", "content": None}]), "messages[0].content"),
        (asked(messages=[{"content": "a"}]), "messages[0].role"),
        (asked(response_format={"type": "x"}), "response_format.type"),
        (asked(tools=[{"type": "function"}]), "tools[0].function"),
    ):
        message, _ = said(body, kind)
        assert message.startswith(f"{path}: "), message
        assert len(message) < 200


def test_of_very_many_faults_none_is_looked_at() -> None:
    class Body(BaseModel):
        ids: list[int]

    with pytest.raises(ValidationError) as caught:
        Body.model_validate({"ids": ["x"] * 20_000})
    said, field = sentence(caught.value)
    assert (field, "does not fit the API" in said) == (None, True)


def test_a_callers_key_is_looked_at_once() -> None:
    """With quadratic time, this took hours."""

    class Body(BaseModel):
        logit_bias: dict[str, float]

    for key in ("(" * 1_000_000 + "\n", "[\n" * 500_000):
        with pytest.raises(ValidationError) as caught:
            Body.model_validate({"logit_bias": {key: "x"}})
        assert sentence(caught.value)[1] == "logit_bias"
