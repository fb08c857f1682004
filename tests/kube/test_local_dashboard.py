"""`make dashboard` beside a page of metrics: it is scraped, drawn, and all ends with Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.tools.observability import prometheus_binary
from deployments.tools.observability.local_server import free_port
from deployments.tools.observability.prometheus_api import Span, query_range

MODULE = "deployments.tools.observability.local_dashboard"
_LIMIT_S = 30.0


@pytest.fixture
def metrics_port() -> Iterator[int]:
    """A gateway's page, on which a request arrives each time that it is asked for."""
    metrics = GatewayMetrics("gateway-0", ["device"], ["chat"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metrics.arrival("device", "chat", "bulk")
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(metrics.exposition()[0])

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def settings(tmp_path: Path, metrics_port: int) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "models: {device: {runtime: synthetic}}\n"
        f"gateway: {{replicas: 1, metrics_port: {metrics_port}}}\n"
    )
    return path


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(_LIMIT_S)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        text: str = answer.read().decode()
        return text


def test_a_server_is_scraped_and_drawn_until_ctrl_c(settings: Path, tmp_path: Path) -> None:
    try:
        prometheus_binary.needed("prometheus")
    except prometheus_binary.NoPrometheus as error:
        pytest.skip(f"THE LOCAL DASHBOARD IS NOT TRIED: {error}")
    prometheus, pages = free_port(), free_port()
    ports = ("--port", str(prometheus), "--pages-port", str(pages))
    with started(str(settings), *ports, "--folder", str(tmp_path / "files")) as child:
        said = [child.stdout.readline() for _ in range(5)]
        assert said[-1] == "Ctrl-C stops all of them.\n", said
        url = f"http://127.0.0.1:{prometheus}"
        until_scraped(url)
        drawn = page(f"http://127.0.0.1:{pages}/headrace-war-room")
        assert "Arrivals by tenant" in drawn
        assert "GPU memory in use is empty." in drawn
        assert "headrace-tenants" in page(f"http://127.0.0.1:{pages}/")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            page(f"http://127.0.0.1:{pages}/other")
        assert "HeadraceSloBurnsFast" in page(f"{url}/api/v1/rules")
        child.send_signal(signal.SIGINT)
        assert child.wait(15) == 0, child.stdout.read()
    for port in (prometheus, pages):
        with pytest.raises(OSError, match="refused"):
            page(f"http://127.0.0.1:{port}/")


def test_a_taken_port_is_said_in_a_sentence(
    settings: Path, metrics_port: int, tmp_path: Path
) -> None:
    if prometheus_binary.found("prometheus") is None:
        pytest.skip("THE LOCAL DASHBOARD IS NOT TRIED: there is no prometheus")
    with started(
        str(settings), "--port", str(metrics_port), "--folder", str(tmp_path / "files")
    ) as child:
        assert child.wait(_LIMIT_S) == 1
        assert f"port {metrics_port} is taken; choose another" in child.stdout.read()


def until_scraped(url: str) -> None:
    query, deadline = "sum by (tenant) (headrace_arrivals_total)", time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        now = time.time()
        if query_range(url, query, Span(now - 10, now, 5.0)):
            return
        time.sleep(0.2)
    raise AssertionError(f"nothing was scraped within {_LIMIT_S:g} s")
