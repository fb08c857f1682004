"""Two gateways share one replica: both answer, busy answers lose nothing, both books balance."""

from __future__ import annotations

import pytest
from served import Server, metric, synthetic

pytestmark = pytest.mark.integration

DEVICE = synthetic(options={"base_ms": 20}, batch={"max_size": 4})


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"device": DEVICE}, gateway={"replicas": 2})
    return made.start()


def test_both_gateways_answer_and_neither_loses_work_to_busy_answers(server):
    with server.load("device", clients=24) as load:
        server.until(lambda: load.answered > 600, 40)
    assert load.failures == []
    pages = [server.metrics(rank) for rank in (0, 1)]
    assert all(f'gateway="gateway-{rank}"' in page for rank, page in enumerate(pages))
    answered = [metric(page, "headrace_requests_total") for page in pages]
    assert min(answered) > 50
    assert sum(answered) >= load.answered


def test_books_of_both_gateways_balance_when_all_is_quiet(server):
    def quiet() -> bool:
        device = server.model_status("device")
        return (device["leases"], device["waiting_rows"], device["drift"]) == (0, 0, 0)

    server.until(quiet, 10)
    assert server.status()["gateways"] == 2
    assert [metric(server.metrics(rank), "headrace_accounting_drift") for rank in (0, 1)] == [0, 0]
    assert {m["replicas_ready"] for m in server.status()["models"]} == {1}
