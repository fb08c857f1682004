"""The gateway takes its callers itself, on a socket that the host holds: no HAProxy runs, and who
connects while a gateway is replaced waits for the next."""

from __future__ import annotations

import json
import socket

import pytest
from served import Later, Server, get, listens, synthetic, total

pytestmark = pytest.mark.integration

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.fixture(scope="module")
def server(serve) -> Server:
    models = {"device": synthetic(), "slow": synthetic(options={"base_ms": 5000})}
    made: Server = serve(models)
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


def said(server: Server, request: bytes) -> tuple[bytes, bytes]:
    """The answer's head and body, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as conn:
        conn.sendall(request)
        found = b""
        while more := conn.recv(65_536):
            found += more
    head, _, body = found.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_offer_of_http_2_is_ignored(server, version):
    head, body = said(
        server,
        b"GET /v1/models HTTP/%b\r\nhost: localhost\r\n"
        b"connection: upgrade, http2-settings, close\r\n"
        b"upgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n" % version,
    )
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert {each["id"] for each in json.loads(body)["data"]} == {"device", "slow"}


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"GET /v1/models?" + b"a" * 20_000, b"414"), (b"GET /v1/models", b"431")],
)
def test_a_head_that_is_too_large_is_refused_in_the_shape_of_its_api(server, line, status):
    large = b" HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"a" * 20_000 + b"\r\n\r\n"
    head, body = said(server, line + large)
    assert head.split()[1] == status
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


def test_it_listens_on_loopback_alone_and_on_one_public_port(server):
    found = server.listening()
    assert [each for each in found if each[0] not in LOOPBACK] == []
    ports = {port for _, port, _ in found}
    assert server.port in ports
    assert not ports & {server.gateway["haproxy_stats_port"]}


def test_while_a_killed_gateway_is_replaced_nobody_is_refused(server):
    """What it had is lost: at most one request of each client."""
    (gateway,) = server.named("ray::ServeReplica:gateway")
    with server.load("device", 8) as load:
        server.until(lambda: load.answered > 100, 20)
        gateway.kill()
        # Connected to nobody yet: it waits in the socket's queue.
        waited = Later(lambda: server.infer("device", [20, 22]))
        assert total(waited.answer()) == 42
        before = load.answered
        server.until(lambda: load.answered > before + 100, 20)
    assert len(load.failures) <= 8
    assert not [each for each in load.failures if "refused" in str(each).lower()]


def test_a_gateway_that_is_told_to_end_answers_what_it_has(server):
    running = Later(lambda: server.infer("slow", [20, 22]))
    server.works_on("slow")
    (gateway,) = server.named("ray::ServeReplica:gateway")
    gateway.terminate()
    assert total(running.answer()) == 42
    # Serve starts the next one when this one has ended; whoever waited for 10 s is told so.
    server.until(lambda: server.infer("device", [1, 2], within_s=30).status_code == 200, 30)


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
