"""Kept, shared and cheaper answers of a real server, one in front of a model that is starting."""

from __future__ import annotations

import threading

import httpx
import pytest
from served import Later, Server, http, metric, synthetic

pytestmark = pytest.mark.integration

SMALL = synthetic(options={"base_ms": 1500}, cache={"max_bytes": 1_000_000}, coalesce=True)
SLOW = synthetic(options={"load_s": 8}, fallback="small")
SHARED = {"small": SMALL}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def test_an_equal_request_is_answered_from_the_cache(server):
    first, second = server.infer("small", [1, 2]), server.infer("small", [1, 2])
    assert [answer.headers["x-cache"] for answer in (first, second)] == ["miss", "hit"]
    assert first.content == second.content
    assert metric(server.metrics(), "headrace_response_cache_hits_total", model="small") == 1


def test_identical_requests_share_a_run_whoever_leaves(server):
    body = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [3, 4]}]}
    url = f"{server.gateway_urls()[0]}/v2/models/small/infer"
    before = metric(server.metrics(), "headrace_batches_total", end="answered", model="small")
    together = threading.Barrier(4)

    def ask(timeout_s):
        together.wait(10)
        return http.post(url, json=body, timeout=timeout_s)

    leaver = Later(lambda: ask(0.75))
    others = [Later(lambda: ask(30)) for _ in range(3)]
    answers = [other.answer() for other in others]
    with pytest.raises(httpx.ReadTimeout):
        leaver.answer()
    assert [answer.status_code for answer in answers] == [200] * 3
    after = metric(server.metrics(), "headrace_batches_total", end="answered", model="small")
    assert after - before == 1


def test_a_cheaper_model_stands_in_while_a_model_starts(server):
    file = server.write("more.yaml", {**server.models, "slow": SLOW})
    applied = Later(lambda: server.headrace("apply", str(file)))
    server.until(lambda: server.infer("slow", [5, 6]).status_code == 200, 15)
    meanwhile = server.infer("slow", [5, 6])
    assert meanwhile.headers["x-served-by"] == "small"
    assert meanwhile.json()["model_name"] == "small"
    assert applied.answer().returncode == 0
    itself = server.infer("slow", [5, 6])
    assert "x-served-by" not in itself.headers
    assert itself.json()["model_name"] == "slow"
    assert metric(server.metrics(), "headrace_fallbacks_total", model="slow") >= 2
