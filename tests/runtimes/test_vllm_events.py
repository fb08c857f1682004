"""What vLLM's layer streams: an answer, a refusal with a status of its own, or a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from runtimes.errors import RunError
from runtimes.vllm import events

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

    async with aclosing(events.answer(streamed(), begun)) as pieces:
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
    assert events.is_failure(status) is failure
