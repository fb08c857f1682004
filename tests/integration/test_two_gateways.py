"""Two gateways share one replica: both answer, busy answers lose nothing, both books balance."""

from __future__ import annotations

import re

import httpx
import pytest
from served import Server, synthetic

pytestmark = pytest.mark.integration

DEVICE = synthetic(options={"base_ms": 20}, batch={"max_size": 4})


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"device": DEVICE}, gateway={"replicas": 2})
    return made.start()


def metrics(server: Server, rank: int) -> str:
    port = server.gateway["metrics_port"] + rank
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5)
    assert answer.status_code == 200
    return answer.text


def value(page: str, name: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", page, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def test_both_gateways_answer_and_neither_loses_work_to_busy_answers(server):
    with server.load("device", clients=24) as load:
        server.until(lambda: load.answered > 600, 40)
    assert load.failures == []
    pages = [metrics(server, rank) for rank in (0, 1)]
    assert all(f'gateway="gateway-{rank}"' in page for rank, page in enumerate(pages))
    answered = [value(page, "headrace_requests_total") for page in pages]
    assert min(answered) > 50
    assert sum(answered) >= load.answered


def test_books_of_both_gateways_balance_when_all_is_quiet(server):
    def quiet() -> bool:
        device = server.model_status("device")
        return (device["leases"], device["waiting_rows"], device["drift"]) == (0, 0, 0)

    server.until(quiet, 10)
    assert server.status()["gateways"] == 2
    assert [value(metrics(server, rank), "headrace_accounting_drift") for rank in (0, 1)] == [0, 0]
    assert {m["replicas_ready"] for m in server.status()["models"]} == {1}
