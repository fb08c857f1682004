"""Where a cluster's REST interface is found, and what is said when it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deployments.control.dashboard import ClusterError, Dashboard, ServeRest, address_of, token_of


def test_the_address_is_the_one_given_or_rays_own() -> None:
    assert address_of("http://head:8265/", {}) == "http://head:8265"
    assert address_of(None, {"RAY_API_SERVER_ADDRESS": "http://other:1"}) == "http://other:1"
    assert address_of(None, {}) == "http://127.0.0.1:8265"
    with pytest.raises(ClusterError, match="'ray://head:10001' is no address of a Ray dashboard"):
        address_of("ray://head:10001", {})


def test_the_token_is_found_where_ray_looks(tmp_path: Path) -> None:
    assert token_of({"RAY_AUTH_TOKEN": " abc "}, tmp_path) == "abc"
    assert token_of({}, tmp_path) is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("home\n")
    assert token_of({}, tmp_path) == "home"
    (tmp_path / "file").write_text("named")
    assert token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "file")}, tmp_path) == "named"
    with pytest.raises(ClusterError, match="RAY_AUTH_TOKEN_PATH"):
        token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}, tmp_path)


class FakeDashboard(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer right"
        body = b'{"applications": {}}' if known else b"no"
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(400)
        self.send_header("content-length", "9")
        self.end_headers()
        self.wfile.write(b"bad field")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), FakeDashboard)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_refusal_says_what_to_do(address: str) -> None:
    assert ServeRest(Dashboard(address, "right")).details() == {"applications": {}}
    with pytest.raises(ClusterError, match=r"wants the cluster's token: set .RAY_AUTH_TOKEN"):
        ServeRest(Dashboard(address, None)).details()
    with pytest.raises(ClusterError, match=r"Ray refused /api/serve/app.* .400.: bad field"):
        ServeRest(Dashboard(address, "right")).put({"applications": []})
    with pytest.raises(ClusterError, match=r"no Ray dashboard answers at http://127.0.0.1:1 "):
        ServeRest(Dashboard("http://127.0.0.1:1", None)).details()
