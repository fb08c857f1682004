"""What vLLM's layer streams: an answer, a refusal with a status of its own, or a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from typing_extensions import TypedDict

from runtimes.errors import RunError
from runtimes.vllm import refusals
from runtimes.vllm.refusals import sentence

ROLE = 'data: {"id":"a","choices":[{"delta":{"role":"assistant"}}]}\n\n'
TOKEN = 'data: {"id":"a","choices":[{"delta":{"content":"error"}}]}\n\n'
DONE = "data: [DONE]\n\n"


def failed(code: int, message: str = "no such token") -> str:
    error = {"message": message, "type": "AnError", "param": "prompt", "code": code}
    return "data: " + json.dumps({"error": error}) + "\n\n"


async def heard(*said: str, first_output: int | None = 0) -> list[tuple[str, int]]:
    """What comes of these events. `first_output`: the event with whose step the first token comes;
    None: no token comes."""
    step = -1

    async def streamed() -> AsyncIterator[str]:
        nonlocal step
        for step, event in enumerate(said):  # noqa: B007 - read by `begun`
            yield event

    def begun() -> bool:
        return first_output is not None and step >= first_output

    async with aclosing(refusals.answer(streamed(), begun)) as pieces:
        return [(data.decode(), status) async for data, status in pieces]


async def test_an_answer_is_passed_on_event_by_event():
    assert await heard(ROLE, TOKEN, DONE) == [(ROLE, 200), (TOKEN, 200), (DONE, 200)]


async def test_what_comes_before_the_first_token_waits_for_it():
    assert await heard(ROLE, TOKEN, DONE, first_output=1) == [(ROLE + TOKEN, 200), (DONE, 200)]


async def test_an_answer_without_a_token_is_passed_on_at_its_end():
    assert await heard(ROLE, DONE, first_output=None) == [(ROLE + DONE, 200)]


@pytest.mark.parametrize("before", [(), (ROLE,)])
@pytest.mark.parametrize("code", [400, 404, 422, 501])
async def test_a_refusal_has_its_status_and_no_event_behind_it(code: int, before: tuple[Any, ...]):
    ((body, status),) = await heard(*before, failed(code), DONE, first_output=None)
    assert status == code
    assert json.loads(body)["error"] == {
        "message": "no such token", "type": "AnError", "param": "prompt", "code": code,
    }  # fmt: skip


@pytest.mark.parametrize("before", [(), (ROLE,)])
@pytest.mark.parametrize("code", [500, 503])
async def test_a_failure_before_the_first_token_is_no_answer(code: int, before: tuple[Any, ...]):
    with pytest.raises(RunError, match="vLLM failed: no such token"):
        await heard(*before, failed(code), DONE, first_output=None)


@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_after_the_first_token_is_no_end_of_an_answer(code: int):
    with pytest.raises(RunError):
        await heard(ROLE, TOKEN, failed(code), DONE)


@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, False), (499, False), (500, True), (501, False), (503, True)],
)
def test_only_the_engines_own_errors_are_failures(status: int, failure: bool):
    assert refusals.is_failure(status) is failure


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


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_that_is_raised_is_as_one_that_is_said(sent: bool, code: int) -> None:
    async def raised() -> AsyncIterator[str]:
        yield ROLE
        raise refusals.Refused({"message": "no such token", "code": code})

    async def all_of() -> list[tuple[str, int]]:
        async with aclosing(refusals.answer(raised(), lambda: sent)) as pieces:
            return [(data.decode(), int(status)) async for data, status in pieces]

    if sent or code == 500:
        with pytest.raises(RunError, match="no such token"):
            await all_of()
    else:
        ((data, status),) = await all_of()
        assert (json.loads(data)["error"]["message"], status) == ("no such token", 400)
