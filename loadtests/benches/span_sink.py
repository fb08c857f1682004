"""A place for spans to go: takes OTLP over HTTP, counts it and throws it away.

Runs in a thread of the bench. The exporter's cost is the server's; that of a real collector is not
part of the figure.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class SpanSink:
    """`posts` so far; `endpoint` for the server's settings."""

    endpoint: str = ""
    posts: int = 0


@contextmanager
def span_sink() -> Iterator[SpanSink]:
    sink = SpanSink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            sink.posts += 1
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: it would interleave with the bench's own lines."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
