"""A batch that nobody waits for any more is dropped at its replica, over the real calls."""

from __future__ import annotations

import time

import httpx
import pytest
from served import Later, Server, metric, synthetic

pytestmark = pytest.mark.integration

DEVICE = synthetic(options={"base_ms": 1000}, batch={"max_size": 1})


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"device": DEVICE})
    return made.start()


def ended(server: Server, end: str) -> float:
    return metric(server.metrics(), "headrace_batches_total", end=end)


def test_a_staged_batch_whose_caller_left_never_runs(server):
    body = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
    url = f"{server.gateway_urls()[0]}/v2/models/device/infer"
    first = Later(lambda: httpx.post(url, json=body, timeout=30))
    time.sleep(0.2)
    with pytest.raises(httpx.ReadTimeout):  # staged at once: nothing has been measured yet
        httpx.post(url, json=body, timeout=0.3)
    server.until(lambda: ended(server, "dropped") == 1, 5)
    assert first.answer().status_code == 200
    again = httpx.post(url, json=body, timeout=30)
    assert again.status_code == 200
    assert float(again.headers["x-queue-wait-ms"]) < 100
    assert (ended(server, "answered"), ended(server, "unused")) == (2, 0)
    server.until(lambda: server.model_status("device")["leases"] == 0, 10)
    assert server.model_status("device")["drift"] == 0
