"""`headrace serve` with examples/llm.yaml: the real engine, asked over HTTP as a user would."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from served import Server, http, metric

from runtimes import catalog

MISSING = catalog.available("vllm", "generate")
EXAMPLE = Path(__file__).parents[2] / "examples/llm.yaml"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]


@pytest.fixture(scope="module")
def server(serve) -> Server:
    models = yaml.safe_load(EXAMPLE.read_text())["models"]
    models["llm"]["options"]["enforce_eager"] = True
    made: Server = serve(models)
    return made.start()


def ask(server: Server, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "llm", "temperature": 0, "max_tokens": 12, "ignore_eos": True, **fields}
    return http.post(f"{server.url}/v1/{path}", json=body, timeout=60)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


MESSAGES = [{"role": "user", "content": "The river turns the wheel."}]


def test_a_chat_streams_the_text_that_comes_whole(server):
    whole = ask(server, "chat/completions", messages=MESSAGES)
    assert whole.status_code == 200, whole.text
    streamed = ask(
        server, "chat/completions", messages=MESSAGES, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *parts, last = events(streamed.text)
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert last["usage"]["completion_tokens"] == 12


def test_a_mistake_is_answered_in_the_engines_words(server):
    answer = ask(server, "completions", prompt="a", temperature=-1)
    assert answer.status_code == 400
    assert "temperature" in answer.json()["error"]["message"]


def test_many_left_streams_leave_nothing_running(server):
    def leave(number: int) -> None:
        body = {
            "model": "llm", "prompt": f"number {number}", "max_tokens": 1500, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        with callers.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(answer.iter_bytes(), None)

    # One client: 32 that are made beside an engine that has both processors may take longer to send
    # their heads than HAProxy waits (limits.headers_timeout_s).
    with httpx.Client(timeout=60) as callers, concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(leave, range(64)))
    running = "headrace_replica_running_sequences"
    server.until(lambda: metric(server.metrics(), running) == 0, 5)
    assert ask(server, "completions", prompt="still there").status_code == 200
