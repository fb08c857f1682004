"""Regions of shared memory at a real server: its two gateways share the table, and a gateway that
is killed leaves it to the next."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from served import ANSWER_S, Server, http, synthetic

pytestmark = pytest.mark.integration

PREFIX = f"hr-integration-{os.getpid()}-"
IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
PLACE = {"shared_memory_region": "in", "shared_memory_byte_size": 48}
BODY = {
    "inputs": [{"name": "ids", "datatype": "INT64", "shape": [2, 3], "parameters": PLACE}],
    "outputs": [{"name": "sum"}],
}


@pytest.fixture(scope="module")
def key() -> Iterator[str]:
    file = Path("/dev/shm", f"{PREFIX}default-in")
    file.write_bytes(IDS.tobytes())
    yield file.name
    file.unlink()


@pytest.fixture(scope="module")
def server(serve, key) -> Server:
    memory = {"prefix": f"{PREFIX}{{tenant}}-"}
    made: Server = serve({"device": synthetic()}, gateway={"replicas": 2, "shared_memory": memory})
    return made.start()


def region(url: str, action: str, body: object = None) -> httpx.Response:
    path = f"{url}/v2/systemsharedmemory/region/in/{action}"
    if action == "status":
        return http.get(path, timeout=ANSWER_S)
    return http.post(path, content=json.dumps(body), timeout=ANSWER_S)


def sums(url: str) -> list[int]:
    answer = http.post(f"{url}/v2/models/device/infer", json=BODY, timeout=ANSWER_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"][0]["data"]


def test_both_gateways_know_a_region_and_so_does_the_one_after_a_killed_one(server, key):
    first, second = server.gateway_urls()
    assert region(first, "register", {"key": key, "byte_size": 48}).status_code == 200
    assert sums(first) == sums(second) == sums(server.url) == [6, 15]
    gateways = server.named("ray::ServeReplica:gateway")
    os.kill(gateways[0].pid, signal.SIGKILL)
    server.until(lambda: len(server.named("ray::ServeReplica:gateway")) == 2, 40)
    server.until(lambda: len(server.gateway_urls()) == 2, 40)
    for url in server.gateway_urls():
        assert region(url, "status").json()[0]["key"] == key
        assert sums(url) == [6, 15]
    assert region(server.url, "unregister").status_code == 200
    for url in server.gateway_urls():
        assert region(url, "status").status_code == 404
