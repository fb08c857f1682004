"""Chats and completions from a real server, its engines nothing but time: tokens come one by one
through HAProxy, leaving frees them, a dying replica ends what it had begun and nothing else, and a
drain lets streams finish."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest
from served import Server, get, http, metric, patient

pytestmark = pytest.mark.integration

STEP_MS = 20
CHAT = {
    "runtime": "synthetic",
    "task": "generate",
    "lengths": {"max": 1000},
    "slo": {"ttft_ms": 2000, "tpot_ms": 200},
    "replicas": {"count": 2},
    "options": {"base_ms": STEP_MS, "max_sequences": 8, "engine_die_words": ["deadly"]},
}
DONE = "data: [DONE]"


SHARED = {"chat": CHAT}


@pytest.fixture(scope="module")
def server(shared: Server) -> Server:
    return shared


def body(tokens: int, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "hello there"}]
    return {"model": "chat", "messages": said, "max_tokens": tokens, **more}


def lines(server: Server, tokens: int, **more: Any) -> Iterator[str]:
    """Events of a chat as they come."""
    asked = body(tokens, stream=True, **more)
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=asked, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield from (line for line in answer.iter_lines() if line)


class Reader(threading.Thread):
    """A chat that is read by a thread of its own."""

    def __init__(self, server: Server, tokens: int) -> None:
        super().__init__()
        self._asked = server, tokens
        self.heard: list[str] = []
        self.start()

    def run(self) -> None:
        for line in lines(*self._asked):
            self.heard.append(line)

    def ended(self) -> str:
        self.join(patient(60))
        return self.heard[-1]


def quiet(server: Server) -> bool:
    chat = server.model_status("chat")
    books = (chat["leases"], chat["waiting_rows"], chat["drift"])
    return books == (0, 0, 0) and all(load[0] == 0 for load in chat["engines"].values())


def test_tokens_come_one_by_one(server: Server) -> None:
    began = time.monotonic()
    times = [time.monotonic() - began for line in lines(server, 25) if line != DONE]
    assert len(times) >= 25
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) < patient(0.25), gaps
    assert sum(gap > STEP_MS / 2000 for gap in gaps) > 15, gaps


def test_an_answer_that_is_not_streamed_comes_whole(server: Server) -> None:
    url = f"{server.url}/v1/completions"
    asked = {"model": "chat", "prompt": "once upon a time", "max_tokens": 5, "n": 2}
    answer = http.post(url, json=asked, timeout=60)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2
    assert answer.json()["usage"]["completion_tokens"] == 10
    assert float(answer.headers["x-queue-wait-ms"]) >= 0


def test_openais_own_client_is_at_home(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert "chat" in [model.id for model in client.models.list()]
    said: Any = [{"role": "user", "content": "hello there"}]
    whole = client.chat.completions.create(model="chat", messages=said, max_tokens=6)
    parts = client.chat.completions.create(
        model="chat", messages=said, max_tokens=6, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(parts)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="chat", messages=said, max_tokens=5000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=said)


def test_a_client_that_leaves_frees_what_it_held(server: Server) -> None:
    before = server.metrics()
    stream = lines(server, 900)
    next(stream)
    server.until(lambda: server.model_status("chat")["leases"] == 1, 5)
    stream.close()  # type: ignore[attr-defined]
    server.until(lambda: quiet(server), 5)
    page = server.metrics()
    assert metric(page, "headrace_requests_total", outcome="cancelled") >= 1
    dropped = {"model": "chat", "end": "dropped"}
    assert metric(page, "headrace_batches_total", **dropped) == 1 + metric(
        before, "headrace_batches_total", **dropped
    )


def test_a_dying_replica_ends_what_it_had_begun_and_nothing_else(server: Server) -> None:
    readers = [Reader(server, 150) for _ in range(12)]  # more than one replica takes at once
    server.until(lambda: all(reader.heard for reader in readers), 20)
    os.kill(min(server.replicas("chat")), signal.SIGKILL)
    later = Reader(server, 5)
    ends = [reader.ended() for reader in readers]
    broken = [end for end in ends if end != DONE]
    assert 4 <= len(broken) <= 8
    for end in broken:
        error = json.loads(end.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "replica_lost")
    assert later.ended() == DONE
    server.until(lambda: server.model_status("chat")["replicas_ready"] == 2, 60)
    server.until(lambda: quiet(server), 10)


def test_an_engine_that_dies_ends_what_was_shown_with_what_is_paid_and_says_why(
    server: Server,
) -> None:
    """Its process lives. The request that kills it must not run twice, so one engine dies."""
    readers = [Reader(server, 150) for _ in range(12)]  # more than one replica takes at once
    server.until(lambda: all(len(reader.heard) > 2 for reader in readers), 20)
    before = set(server.replicas("chat"))
    asked = {"model": "chat", "prompt": "a deadly one, once", "max_tokens": 5}
    url, once = f"{server.url}/v1/completions", {"x-idempotent": "false"}
    killed = http.post(url, json=asked, headers=once, timeout=60)
    assert (killed.status_code, killed.json()["error"]["code"]) == (503, "replica_lost")
    later = Reader(server, 5)
    broken = [reader for reader in readers if reader.ended() != DONE]
    assert 4 <= len(broken) <= 8
    for reader in broken:
        error = json.loads(reader.heard[-1].removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "replica_lost")
        pages = [json.loads(line.removeprefix("data: ")) for line in reader.heard[:-1]]
        shown = [page for page in pages if page["choices"][0]["delta"].get("content")]
        assert error["usage"]["completion_tokens"] == len(shown)
    assert later.ended() == DONE
    said = f"the synthetic engine died, and {1 + len(broken)} requests with it"
    (why,) = {why for _, why in server.model_status("chat")["ended"].values()}
    assert why == said
    assert said in server.headrace("status", "--port", str(server.port)).stdout.replace("\n", " ")
    assert f"{said}; the replica ends" in server.output
    server.until(lambda: server.model_status("chat")["replicas_ready"] == 2, 60)
    assert len(before & set(server.replicas("chat"))) == 1
    server.until(lambda: quiet(server), 10)


def test_tokens_and_times_are_on_the_metrics_page_and_in_status(server: Server) -> None:
    page = server.metrics()
    assert metric(page, "headrace_output_tokens_total", model="chat") > 100
    assert metric(page, "headrace_time_to_first_token_seconds_count", model="chat") >= 3
    assert metric(page, "headrace_slo_kept_total", model="chat") >= 3
    assert metric(page, "headrace_replica_engine_steps_total", model="chat") > 100
    assert metric(page, "headrace_accounting_drift", model="chat") == 0


def test_a_prompt_that_kills_engines_costs_two_replicas_and_is_then_refused(
    server: Server,
) -> None:
    before = set(server.replicas("chat"))
    asked = {"model": "chat", "prompt": "a deadly one", "max_tokens": 5}
    url = f"{server.url}/v1/completions"
    answers = [http.post(url, json=asked, timeout=60) for _ in range(3)]
    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]
    assert codes == [(422, "input_ends_replicas")] * 3
    server.until(lambda: server.model_status("chat")["replicas_ready"] == 2, 60)
    assert not before & set(server.replicas("chat"))
    assert http.post(url, json=asked, timeout=60).status_code == 422
    assert Reader(server, 5).ended() == DONE
    assert len(set(server.replicas("chat"))) == 2


def test_a_gateway_that_gets_sigterm_lets_its_streams_finish_and_is_replaced(
    server: Server,
) -> None:
    reader = Reader(server, 150)
    server.until(lambda: len(reader.heard) > 2, 10)
    (gateway,) = server.named("ray::ServeReplica:gateway")
    gateway.send_signal(signal.SIGTERM)
    assert reader.ended() == DONE
    assert len(reader.heard) >= 150
    server.until(lambda: not gateway.is_running(), 10)
    server.until(lambda: get(f"{server.url}/readyz") == 200, 30)


def test_a_drain_lets_streams_finish_and_ends_those_it_does_not_wait_for_with_an_error_event(
    server: Server,
) -> None:
    short, long = Reader(server, 150), Reader(server, 900)  # 3 s, and 18
    server.until(lambda: min(len(short.heard), len(long.heard)) > 2, 10)
    server.press_ctrl_c()
    assert short.ended() == DONE
    assert len(short.heard) >= 150
    error = json.loads(long.ended().removeprefix("data: "))["error"]
    assert "gateway.drain_s" in error["message"]
    assert server.wait() == 0
