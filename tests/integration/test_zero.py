"""A model that may sleep, on a real cluster: nothing but a request wakes it, and every first
request is answered."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from served import ANSWER_S, Server, get, http, infer_body, metric, patient, synthetic, total

pytestmark = pytest.mark.integration

IDLE_S = 4
# Longer than any start is expected to take by those measured, all models' at once included.
LONGEST_S = 600
WAITS = {"x-timeout-ms": str(LONGEST_S * 1000)}
SLEEPY = synthetic(
    options={"base_ms": 100, "load_s": 1},
    batch={"max_size": 1},
    slo={"latency_ms": 500, "timeout_ms": LONGEST_S * 1000},
    replicas={"min": 0, "max": 3, "num_cpus": 0.1},
    scaling={"policy": "scale-to-zero", "idle_s": IDLE_S},
)
STEP_MS = 20
DREAMY = {
    "runtime": "synthetic", "task": "generate", "lengths": {"max": 1000},
    "options": {"base_ms": STEP_MS, "load_s": 1},
    "slo": {"ttft_ms": 2000, "timeout_ms": LONGEST_S * 1000},
    "replicas": {"min": 0, "max": 2, "num_cpus": 0.1},
    "scaling": {"policy": "scale-to-zero", "idle_s": IDLE_S},
}  # fmt: skip
SHARED = {"sleepy": SLEEPY, "dreamy": DREAMY}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def sleeps(server: Server, model: str = "sleepy") -> None:
    """Returns once its last replica has gone, which takes `IDLE_S` and a drain, and gateways have
    heard, as once a second, how long a request would wait for another one."""
    server.until(lambda: not server.replicas(model), IDLE_S + 30)
    server.until(lambda: server.model_status(model)["state"] == "asleep", 20)
    time.sleep(patient(1))


def test_a_model_that_nobody_has_seen_starts_once_and_then_sleeps(server):
    assert metric(server.metrics(), "headrace_queue_rows", model="sleepy") == 0
    sleeps(server)


def ask_around(server: Server) -> None:
    for path in ("metrics", "v2/models/sleepy", "v1/models", "readyz", "v2/models/sleepy/ready"):
        assert get(f"{server.url}/{path}") == 200, path
    assert http.post(f"{server.url}/v2/repository/index", json={}).status_code == 200


@pytest.mark.chaos
def test_questions_and_processes_that_start_anew_do_not_wake_it(server):
    """Longer than any of them needs to be heard of everywhere."""
    woken: set[int] = set()
    ended = [
        process
        for title in ("ray::RegistryActor", "ray::AutoscalerActor", "ray::ServeReplica:gateway",
                      "ray::ServeReplica:model-sleepy:anchor")
        for process in server.named(title)
    ]  # fmt: skip
    assert len(ended) == 4
    ask_around(server)
    for process in ended:
        process.kill()
    psutil.wait_procs(ended, timeout=patient(5))
    server.until(lambda: get(f"{server.url}/readyz") == 200, 60)
    until = time.monotonic() + 3 * IDLE_S
    while time.monotonic() < until:
        ask_around(server)
        woken |= server.replicas("sleepy")
        time.sleep(0.2)
    assert woken == set()


def test_who_cannot_wait_is_told_when_to_come_again_and_wakes_it(server):
    refused = server.infer("sleepy", [1, 2], headers={"x-timeout-ms": "50"})
    assert refused.status_code == 503, refused.text
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    server.until(lambda: bool(server.replicas("sleepy")), 30)
    sleeps(server)


def test_fifty_first_requests_at_once_are_all_answered_by_as_many_replicas_as_they_need(server):
    def ask(number: int) -> httpx.Response:
        url = f"{server.url}/v2/models/sleepy/infer"
        body = infer_body([number, 1])
        return http.post(url, json=body, headers=WAITS, timeout=LONGEST_S)

    most = 0
    with ThreadPoolExecutor(50) as callers:
        asked = [callers.submit(ask, number) for number in range(50)]
        while not all(each.done() for each in asked):
            most = max(most, len(server.replicas("sleepy")))
            time.sleep(0.2)
    answers = [each.result() for each in asked]
    assert [answer.status_code for answer in answers] == [200] * 50
    assert [total(answer) for answer in answers] == [number + 1 for number in range(50)]
    assert most > 1
    # Gateways tell once a second how they stand.
    server.until(lambda: server.model_status("sleepy")["waiting_rows"] == 0, 10)
    assert server.model_status("sleepy")["drift"] == 0


def chat(tokens: int, **more: object) -> dict[str, object]:
    said = [{"role": "user", "content": "are you awake?"}]
    return {"model": "dreamy", "messages": said, "max_tokens": tokens, **more}


def test_a_model_that_generates_wakes_for_a_prompt_and_sleeps_when_its_last_stream_has_ended(
    server: Server,
) -> None:
    """The stream is longer than it takes to fall asleep."""
    sleeps(server, "dreamy")
    url, tokens = f"{server.url}/v1/chat/completions", 2 * IDLE_S * 1000 // STEP_MS
    heard: list[str] = []
    kept: set[int] = set()
    asked = chat(tokens, stream=True)
    with httpx.stream("POST", url, json=asked, headers=WAITS, timeout=LONGEST_S) as answer:
        assert answer.status_code == 200, answer.read()
        began = time.monotonic()
        for line in answer.iter_lines():
            heard += [line] if line else []
            kept |= server.replicas("dreamy") if len(heard) % 50 == 2 else set()
        took_s = time.monotonic() - began
    assert heard[-1] == "data: [DONE]"
    assert sum('" w' in line for line in heard) == tokens
    assert took_s > 1.5 * IDLE_S
    assert len(kept) == 1
    ended = time.monotonic()
    sleeps(server, "dreamy")
    assert time.monotonic() - ended >= IDLE_S - 1
    (start,) = (m for m in server.status()["scaling"]["models"].values() if m["model"] == "dreamy")
    assert any(step["seen"] >= 2 for step in start["states"].values()), start["states"]


def test_prompts_that_come_at_once_wake_it_once_and_one_that_cannot_wait_is_told_when(
    server: Server,
) -> None:
    sleeps(server, "dreamy")
    url = f"{server.url}/v1/chat/completions"
    refused = http.post(url, json=chat(1), headers={"x-timeout-ms": "50"}, timeout=ANSWER_S)
    assert refused.status_code == 503, refused.text
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    with ThreadPoolExecutor(10) as callers:
        asked = [
            callers.submit(http.post, url, json=chat(3), headers=WAITS, timeout=LONGEST_S)
            for _ in range(10)
        ]
    answers = [each.result() for each in asked]
    assert [answer.status_code for answer in answers] == [200] * 10
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {3}
    assert len(server.replicas("dreamy")) == 1
    server.until(lambda: server.model_status("dreamy")["waiting_rows"] == 0, 10)
    assert server.model_status("dreamy")["drift"] == 0


LOAD_S = 8


@pytest.mark.chaos
def test_a_model_without_replicas_that_generates_is_answered_by_the_pool(serve: Any) -> None:
    """Its own replica takes longer to start than the answer takes."""
    slow = {**DREAMY, "options": {**DREAMY["options"], "load_s": LOAD_S}}
    pool = {"min": 1, "max": 1, "num_cpus": 0.1}
    server = serve({"dreamy": slow}, scaling={"pool": pool}).start()
    url = f"{server.url}/v1/chat/completions"

    def held() -> set[str]:
        reports = server.status()["scaling"]["pool"]["reports"]
        return {each["model"] for report in reports for each in report["residents"]
                if each["serves"]}  # fmt: skip

    sleeps(server, "dreamy")
    assert http.post(url, json=chat(3), headers=WAITS, timeout=LONGEST_S).status_code == 200
    server.until(lambda: held() == {"dreamy"}, 60)
    server.until(lambda: not server.replicas("dreamy"), IDLE_S + 30)
    began = time.monotonic()
    answer = http.post(url, json=chat(3), headers=WAITS, timeout=LONGEST_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert time.monotonic() - began < LOAD_S
    healthy = "headrace_group_healthy_replicas"
    assert metric(server.metrics(), healthy, model="dreamy", group="pool") == 1
