"""A model that may sleep, on a real cluster: nothing but a request wakes it, and every first
request is answered."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from served import ANSWER_S, Server, get, http, infer_body, metric, patient, synthetic, total

pytestmark = pytest.mark.integration

IDLE_S = 4
SLEEPY = synthetic(
    options={"base_ms": 100, "load_s": 1},
    batch={"max_size": 1},
    slo={"latency_ms": 500, "timeout_ms": 60_000},
    replicas={"min": 0, "max": 3, "num_cpus": 0.1},
    scaling={"policy": "scale-to-zero", "idle_s": IDLE_S},
)
WAITS = {"x-timeout-ms": str(int(ANSWER_S * 1000))}
SHARED = {"sleepy": SLEEPY}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def sleeps(server: Server) -> None:
    """Returns once its last replica has gone, which takes `IDLE_S` and a drain."""
    server.until(lambda: not server.replicas("sleepy"), IDLE_S + 30)
    server.until(lambda: server.model_status("sleepy")["state"] == "asleep", 20)


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
        return http.post(url, json=body, headers=WAITS, timeout=2 * ANSWER_S)

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
