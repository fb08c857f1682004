"""HAProxy gets from a gateway what has changed since Serve's controller was started."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deployments.contract import haproxy_settings
from deployments.control.ingress.haproxy_options import HAProxyOptions, options_now
from deployments.control.ingress.haproxy_wrapper import correct_file, corrected
from deployments.gateway.http import fast_path
from deployments.settings.gateway import GatewaySettings
from tests.deployments.control.ingress.test_haproxy_wrapper import CONFIG

CHANGED: dict[str, Any] = {
    "limits": {
        "headers_timeout_s": 3.2, "body_timeout_s": 7, "max_body_bytes": 4096,
        "max_requests": 9, "connections_per_source": 5,
    },
    "trusted_proxies": ["10.0.0.0/8", "fd00::/8"],
    "compression": True,
    "haproxy_threads": 3,
    "grpc": {"idle_s": 69.5},
}  # fmt: skip
TAKEN = HAProxyOptions(
    headers_s=4, body_s=7, max_body_bytes=4096, max_requests=9, source_connections=5,
    trusted_proxies=("10.0.0.0/8", "fd00::/8"), compression=True, threads=3, grpc_idle_s=70,
)  # fmt: skip


def said(**gateway: Any) -> bytes:
    _, body = haproxy_settings.page(GatewaySettings.model_validate(gateway))
    return body


@contextmanager
def gateway(body: bytes, status: int = 200) -> Iterator[int]:
    """The server of a gateway, which says this; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.protocol_version = "HTTP/1.1"
            self.send_response(status if self.path == haproxy_settings.PATH else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def config_of(*ports: int) -> str:
    """As Serve writes it, with gateways at these ports."""
    (line,) = [each for each in CONFIG.splitlines(keepends=True) if "SERVE_REPLICA" in each]
    servers = [line.replace("-1 ", f"-{n} ").replace("30000", str(n)) for n in ports]
    return CONFIG.replace(line, "".join(servers))


def now(tmp_path: Path, *ports: int, **environ: str) -> HAProxyOptions:
    variables = {f"HEADRACE_HAPROXY_{name}": value for name, value in environ.items()}
    return options_now(variables, config_of(*ports), str(tmp_path / "kept"))


def test_a_gateway_is_believed_before_the_environment(tmp_path: Path) -> None:
    with gateway(said(**CHANGED)) as port:
        found = now(tmp_path, port, BODY_S="90", TRUSTED_PROXIES="192.168.0.0/16", HOST="::")
    assert found == TAKEN._replace(host="::")
    with gateway(said()) as port:  # and so is one that has none
        assert now(tmp_path, port, TRUSTED_PROXIES="192.168.0.0/16", BODY_S="90") == (
            HAProxyOptions(threads=1)
        )


def test_the_last_answer_stays_while_no_gateway_answers_and_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert now(tmp_path, BODY_S="90").body_s == 90  # there was none yet
    with gateway(said(**CHANGED)) as port:
        now(tmp_path, port)
    assert capsys.readouterr().err == ""
    assert now(tmp_path, port, BODY_S="90") == TAKEN
    assert "none of 1 gateways has answered what its bounds are" in capsys.readouterr().err


def test_an_answer_does_not_outlive_the_run_that_it_was_given_in(tmp_path: Path) -> None:
    with gateway(said(**CHANGED)) as port:
        now(tmp_path, port)
    assert now(tmp_path, BODY_S="90") == HAProxyOptions(body_s=90)  # Serve's first configuration
    assert now(tmp_path, port, BODY_S="90") == HAProxyOptions(body_s=90)


def test_a_damaged_file_of_the_last_answer_is_ignored(tmp_path: Path) -> None:
    with gateway(b"") as gone:
        pass
    for damaged in (said(**CHANGED)[:-1], b"HEADRACE_HAPROXY_BODY_S=soon\nend\n"):
        (tmp_path / "kept").write_bytes(damaged)
        assert now(tmp_path, gone, BODY_S="90") == HAProxyOptions(body_s=90)


def test_the_next_is_asked_where_one_is_away_or_none_of_ours(tmp_path: Path) -> None:
    with gateway(b"") as gone:
        pass
    with (
        gateway(b"Not Found", 404) as older,
        gateway(b"") as other,
        gateway(said(**CHANGED)) as ours,
    ):
        assert now(tmp_path, gone, older, other, ours) == TAKEN


def test_replicas_of_other_applications_are_not_asked(tmp_path: Path) -> None:
    with gateway(said(**CHANGED)) as port:
        config = config_of(port).replace("backend http-gateway", "backend http-other")
        assert options_now({}, config, str(tmp_path / "kept")) == HAProxyOptions()


def test_gateways_that_hang_are_asked_again_for_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    asked: list[float] = []

    def silent(at: tuple[str, int], limit_s: float) -> None:
        asked.append(limit_s)
        clock[0] += limit_s
        raise TimeoutError

    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(socket, "create_connection", silent)
    assert now(tmp_path, *range(1, 9)) == HAProxyOptions()
    assert (sum(asked), max(asked)) == (pytest.approx(10.0), 1.0)


def test_one_that_lives_is_asked_behind_many_that_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, clock = socket.create_connection, [0.0]

    def hangs(at: tuple[str, int], limit_s: float) -> socket.socket:
        if at[1] < 100:
            clock[0] += limit_s
            raise TimeoutError
        return real(at, 1.0)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(socket, "create_connection", hangs)
    with gateway(said(**CHANGED)) as port:
        assert now(tmp_path, *range(1, 41), port) == TAKEN


def test_an_answer_that_trickles_is_given_up_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []

    class Trickling:
        """A connection that gives a byte each half second, for ever."""

        def __enter__(self) -> Trickling:
            return self

        def __exit__(self, *_: object) -> None: ...
        def sendall(self, sent: bytes) -> None: ...
        def settimeout(self, limit_s: float) -> None: ...

        def recv(self, room: int) -> bytes:
            clock[0] += 0.5
            pieces.append(b"x")
            return b"x"

    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(socket, "create_connection", lambda at, limit_s: Trickling())
    assert now(tmp_path, 1) == HAProxyOptions()
    assert (len(pieces), clock[0]) == (20, 10.0)


def test_a_gateway_that_is_slow_at_first_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = socket.create_connection, []

    def slow(at: tuple[str, int], limit_s: float) -> socket.socket:
        tries.append(at)
        if len(tries) < 5:
            raise TimeoutError
        return real(at, limit_s)

    monkeypatch.setattr(socket, "create_connection", slow)
    with gateway(said(**CHANGED)) as port:
        assert now(tmp_path, port, TRUSTED_PROXIES="0.0.0.0/0") == TAKEN


INVALID = [
    b"HEADRACE_HAPROXY_BODY_S=soon\nend\n",
    b"HEADRACE_HAPROXY_TRUSTED_PROXIES=10.0.0.0/8 } or { true\nend\n",
    b"nothing\nend\n",
    b"\xff\nend\n",
    b"",
    *(said(**CHANGED)[:-cut] for cut in (1, 4, 5, 40)),
]


@pytest.mark.parametrize("body", INVALID)
def test_an_invalid_or_cut_answer_is_ignored(tmp_path: Path, body: bytes) -> None:
    with gateway(body) as port:
        assert now(tmp_path, port, BODY_S="90") == HAProxyOptions(body_s=90)


@pytest.mark.parametrize("body", INVALID)
def test_an_invalid_answer_does_not_replace_the_last_good_one(tmp_path: Path, body: bytes) -> None:
    with gateway(said(**CHANGED)) as port:
        now(tmp_path, port)
    with gateway(body) as port:
        assert now(tmp_path, port, BODY_S="90") == TAKEN
    assert now(tmp_path, port, BODY_S="90") == TAKEN  # where none answers


def test_the_next_gateway_is_asked_after_an_invalid_answer(tmp_path: Path) -> None:
    with gateway(INVALID[0]) as wrong, gateway(said(**CHANGED)) as right:
        assert now(tmp_path, wrong, right) == TAKEN


def test_addresses_and_programs_in_an_answer_are_ignored(tmp_path: Path) -> None:
    line = b"HEADRACE_HAPROXY_HOST=10.0.0.1\nHEADRACE_HAPROXY_PROGRAM=/tmp/it\n"
    with gateway(line + said(**CHANGED)) as port:
        assert now(tmp_path, port, HOST="::") == TAKEN._replace(host="::")


def test_haproxys_file_has_what_the_gateway_said(tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    with gateway(said(**CHANGED)) as port:
        path.write_text(config_of(port))
        correct_file(str(path), {})
    assert path.read_text() == corrected(config_of(port), TAKEN)
    assert f"maxconn {TAKEN.places} " in path.read_text()


def test_a_gateways_server_answers_at_that_path_and_a_process_without_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_path, "_gateway", None)  # of this process

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        sent.append({"by": "serve"})

    async def ours(scope: Any, receive: Any, send: Any) -> None:
        sent.append({"by": "gateway"})

    def asked(path: str) -> list[Any]:
        async def send(message: Any) -> None:
            sent.append(message)

        sent.clear()
        scope = {"type": "http", "raw_path": path.encode(), "method": "GET"}
        asyncio.run(fast_path.FastPath(serve)(scope, None, send))  # type: ignore[arg-type]
        return [*sent]

    sent: list[Any] = []
    assert asked(haproxy_settings.PATH) == [{"by": "serve"}]
    fast_path.install(ours, haproxy_settings.page(GatewaySettings.model_validate(CHANGED)))
    head, body = asked(haproxy_settings.PATH)
    assert (head["status"], body["body"]) == (200, said(**CHANGED))
    assert asked("/-/healthz") == [{"by": "serve"}]
    assert asked("/v2") == [{"by": "gateway"}]
