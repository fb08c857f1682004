"""A proxy in the environment is not asked for this machine, by any client that is used here."""

from __future__ import annotations

import asyncio
import http.server
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator

import aiohttp
import grpc
import httpx
import pytest
import requests
from click.testing import CliRunner

from deployments.cli import main
from deployments.control.dashboard import RayDashboard
from deployments.control.ray_env import apply_environment
from deployments.process.loopback import keep_loopback_direct
from deployments.settings.gateway import GatewaySettings
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.types import Endpoint

NOBODY = "http://127.0.0.1:9"  # the discard port: a proxy there refuses every request
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"), NOBODY)
METADATA = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]}'


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(METADATA)))
        self.end_headers()
        self.wfile.write(METADATA)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.setenv(name, "elsewhere.example")
    for name, value in PROXIES.items():
        monkeypatch.setenv(name, value)


async def _by_aiohttp(url: str) -> int:
    async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as answer:
        return answer.status


@pytest.mark.usefixtures("proxied")
def test_every_client_reaches_loopback_directly(url: str) -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    keep_loopback_direct()
    local = url.replace("127.0.0.1", "localhost")
    assert httpx.get(url).status_code == httpx.get(local).status_code == 200
    assert requests.get(url, timeout=5).status_code == 200
    assert urllib.request.urlopen(url, timeout=5).status == 200
    assert asyncio.run(_by_aiohttp(url)) == 200
    server = grpc.server(None)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=5)
    finally:
        server.stop(None)
    dashboard = RayDashboard(url, None)
    assert dashboard.ask("GET", "/").status_code == 200
    dashboard.close()


@pytest.mark.usefixtures("proxied")
def test_the_load_generator_asks_no_proxy_whatever_the_address(url: str) -> None:
    OpenInference(Endpoint(url, "m")).prepare()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"no_proxy": "10.0.0.0/8, .corp"}, "10.0.0.0/8,.corp,localhost,127.0.0.1,::1"),
        ({"no_proxy": "a", "NO_PROXY": "b,localhost"}, "a,b,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_the_user_listed_stays_listed(before: dict[str, str], after: str) -> None:
    keep_loopback_direct(before)
    assert (before["no_proxy"], before["NO_PROXY"]) == (after, after)
    assert "no_grpc_proxy" not in before
    keep_loopback_direct(before)
    assert before["no_proxy"] == after


def test_the_command_line_and_rays_processes_have_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    CliRunner().invoke(main, ["check", str(tmp_path / "none.yaml")])
    assert "127.0.0.1" in os.environ["no_proxy"].split(",")
    environ: dict[str, str] = dict(PROXIES)
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    apply_environment(GatewaySettings(ingress="direct"), tmp_path, {}, environ)
    assert "127.0.0.1" in environ["no_proxy"].split(",")
