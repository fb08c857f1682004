"""Chats and completions that are drawn, each whole and streamed; `make fuzz`: as many as asked."""

from __future__ import annotations

import json
from typing import Any

import fuzz_generation
import pytest
from fuzz_generation import Differ, compare
from in_process import Answer

from runtimes import catalog

CASES = 400
CHUNK = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}
ERROR = {"error": {"message": "no such token", "code": 400}}


def whole(page: Any, status: int = 200) -> Answer:
    return Answer(status, [], json.dumps(page).encode())


def streamed(*pages: Any, done: bool = True) -> Answer:
    events = [b"data: " + json.dumps(page).encode() + b"\n\n" for page in pages]
    return Answer(200, [], b"".join(events) + (b"data: [DONE]\n\n" if done else b""))


ANSWER = whole({"choices": [{"index": 0, "text": "ab", "finish_reason": "length"}]})


@pytest.mark.parametrize("engine", ["synthetic", pytest.param("played", marks=pytest.mark.vllm)])
async def test_every_request_ends_whole_as_it_does_streamed(engine: str) -> None:
    if engine == "played" and (missing := catalog.available("vllm", "generate")) is not None:
        pytest.skip(str(missing))
    ends = await fuzz_generation.run(CASES, engine)
    assert ends.total() == CASES
    assert {f"{e} {s}" for e in ("chat", "completions") for s in (200, 400)} <= set(ends)


def test_what_ends_alike_is_no_difference() -> None:
    assert compare({}, ANSWER, streamed(CHUNK, LAST)) == "200"
    assert compare({}, whole(ERROR, 400), whole(ERROR, 400)) == "400"


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (whole(ERROR, 400), streamed(CHUNK, LAST), "400 whole, 200 streamed"),
        (ANSWER, streamed(CHUNK, ERROR), "an error within a stream"),
        (ANSWER, streamed(CHUNK, LAST, done=False), "no end"),
        (ANSWER, streamed(LAST), "other texts"),
        (ANSWER, streamed(CHUNK, CHUNK), "other texts"),
        (whole(ERROR, 503), whole(ERROR, 503), "503 both ways"),
        (whole(ERROR, 400), whole({"error": {"message": "x"}}, 400), "other words"),
    ],
)
def test_each_difference_is_found(one: Answer, other: Answer, said: str) -> None:
    with pytest.raises(Differ, match=said):
        compare({}, one, other)


def test_a_case_is_drawn_again_by_its_number() -> None:
    assert fuzz_generation.drawn(7) == fuzz_generation.drawn(7)
    assert fuzz_generation.drawn(7) != fuzz_generation.drawn(8)
