"""Two gateways share one replica: both answer, busy answers lose nothing, both books balance, and
tenants' weights hold although neither gateway sees both tenants."""

from __future__ import annotations

import contextlib
import time

import pytest
from served import Server, metric, synthetic

pytestmark = pytest.mark.integration

DEVICE = synthetic(options={"base_ms": 20}, batch={"max_size": 4})
# Few rows a second, so that the device is what is short, not the machine that all of this shares.
SHORT = synthetic(options={"base_ms": 50}, batch={"max_size": 4})
TENANTS = {"heavy": {"weight": 4}, "light": {"weight": 1}}
SETTLE_S, MEASURE_S = 4.0, 16.0


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve(
        {"device": DEVICE, "short": SHORT},
        gateway={"replicas": 2},
        tenants={**TENANTS, "default": {}},
    )
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


def served_s(server: Server) -> list[float]:
    """Device seconds of either tenant, each at its gateway."""
    name = "headrace_tenant_served_seconds_total"
    return [
        metric(server.metrics(rank), name, tenant=tenant) for rank, tenant in enumerate(TENANTS)
    ]


def test_served_seconds_are_as_the_weights_when_each_tenant_comes_to_one_gateway(server):
    with contextlib.ExitStack() as loads:
        both = [
            loads.enter_context(server.load("short", 16, gateway=url, tenant=tenant))
            for url, tenant in zip(server.gateway_urls(), TENANTS, strict=True)
        ]
        time.sleep(SETTLE_S)
        before = served_s(server)
        time.sleep(MEASURE_S)
        heavy, light = (now - then for now, then in zip(served_s(server), before, strict=True))
    assert [load.failures for load in both] == [[], []]
    assert heavy / light == pytest.approx(4.0, rel=0.05)
    assert heavy + light > 0.6 * MEASURE_S  # the device was short; its machine is shared
