"""Serve's own Python proxy instead of HAProxy: what is used where HAProxy cannot run."""

from __future__ import annotations

import pytest
from served import Later, Server, get, listens, synthetic, total

pytestmark = pytest.mark.integration

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.fixture(scope="module")
def server(serve) -> Server:
    models = {"device": synthetic(), "slow": synthetic(options={"base_ms": 5000})}
    made: Server = serve(models, gateway={"ingress": "proxy"})
    return made.start()


def test_requests_are_answered_without_haproxy(server):
    answer = server.infer("device", [1, 2, 3], headers={"x-request-id": "mine"})
    assert (answer.status_code, total(answer)) == (200, 6)
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert server.infer("nobody", [1]).status_code == 404
    assert server.called("haproxy") == []
    with server.load("device") as load:
        server.until(lambda: load.answered > 100, 20)
    assert load.failures == []


def test_it_listens_on_loopback_alone_and_on_one_public_port(server):
    found = server.listening()
    assert [each for each in found if each[0] not in LOOPBACK] == []
    ports = {port for _, port, _ in found}
    assert server.port in ports
    assert not ports & {server.gateway["haproxy_stats_port"]}


def test_a_stop_drains_and_leaves_nothing(server):
    running = Later(lambda: server.infer("slow", [20, 22]))
    server.works_on("slow")
    stopping = Later(lambda: server.headrace("stop", "--port", str(server.port)))
    server.until(lambda: get(f"{server.url}/readyz") == 503, 5)
    assert server.infer("device", [1]).status_code == 503
    assert total(running.answer()) == 42
    stopped = stopping.answer()
    assert (stopped.returncode, stopped.stdout) == (
        0,
        f"stopped the server on port {server.port}\n",
    )
    assert server.wait() == 0
    assert server.remaining() == []
    assert not listens(server.port)
