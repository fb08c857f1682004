"""Serves the dashboards as pages, for a machine without Grafana.

Each request draws its page anew from Prometheus's data. `/` lists the dashboards; a page reloads
itself every ten seconds. Listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deployments.tools.observability.dashboard_page import html, span_of, window_of
from deployments.tools.observability.grafana import DASHBOARDS
from deployments.tools.observability.local_server import HOST
from deployments.tools.observability.panel_figures import ask_all
from deployments.tools.observability.prometheus_api import QueryFailed
from loadtests.report import page

_MINUTES, _REFRESH_S = 15.0, 10
_IDLE_S = 10.0  # without a byte, after which a connection, which has a thread, is closed
_BY_PATH = {f"/{dashboard.name}": dashboard for dashboard in DASHBOARDS}


@contextlib.contextmanager
def serving(port: int, prometheus: str) -> Iterator[str]:
    """Yields the pages' address. Raises OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S

        def do_GET(self) -> None:
            status, text = answer(self.path.partition("?")[0], prometheus)
            body = text.encode()
            self.send_response(status)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            if status == 200 and self.path != "/":
                self.send_header("refresh", str(_REFRESH_S))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: pages that reload themselves would fill the terminal."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(path: str, prometheus: str) -> tuple[int, str]:
    """The HTTP status and the page at `path`. `prometheus`: its address."""
    if path == "/":
        links = [f'<p><a href="{each}">{board.title}</a></p>' for each, board in _BY_PATH.items()]
        return 200, page.page("Headrace", [page.header("Headrace", "Dashboards.", {}), *links])
    if path not in _BY_PATH:
        return 404, page.page("Not found", [page.notice("There is no such page.", good=False)])
    dashboard, span = _BY_PATH[path], span_of(_MINUTES, time.time())
    try:
        asked = list(ask_all(prometheus, dashboard, span, window_of(span)))
    except QueryFailed as error:
        return 502, page.page(dashboard.title, [page.notice(str(error), good=False)])
    return 200, html(dashboard, asked, {"Prometheus": prometheus, "Until": time.strftime("%F %T")})
