"""Two tenants, each at a gateway of its own: weights hold although neither gateway sees both."""

from __future__ import annotations

import contextlib
import time

import pytest
from served import Server, metric, synthetic

pytestmark = pytest.mark.integration

# Few rows a second, so that the device is what is short, not the machine that all of this shares.
DEVICE = synthetic(options={"base_ms": 50}, batch={"max_size": 4})
TENANTS = {"heavy": {"weight": 4}, "light": {"weight": 1}}
SETTLE_S, MEASURE_S = 4.0, 16.0


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"device": DEVICE}, gateway={"replicas": 2}, tenants=TENANTS)
    return made.start()


def served_s(server: Server) -> list[float]:
    """Device seconds of either tenant, each at its gateway."""
    name = "headrace_tenant_served_seconds_total"
    return [
        metric(server.metrics(rank), name, tenant=tenant) for rank, tenant in enumerate(TENANTS)
    ]


def test_served_seconds_are_as_the_weights_when_each_tenant_comes_to_one_gateway(server):
    with contextlib.ExitStack() as loads:
        both = [
            loads.enter_context(server.load("device", 16, gateway=url, tenant=tenant))
            for url, tenant in zip(server.gateway_urls(), TENANTS, strict=True)
        ]
        time.sleep(SETTLE_S)
        before = served_s(server)
        time.sleep(MEASURE_S)
        heavy, light = (now - then for now, then in zip(served_s(server), before, strict=True))
    assert [load.failures for load in both] == [[], []]
    assert heavy / light == pytest.approx(4.0, rel=0.05)
    assert heavy + light > 0.6 * MEASURE_S  # the device was short; its machine is shared
