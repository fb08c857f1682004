"""An HTTP server on this machine that serves files as well or as badly as a test wants."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """`content`: of every path. `cuts`: after how many bytes of the body each request in turn is
    cut, none once they are used up. `statuses`: answered instead, in turn, None for a proper
    answer. `ranges`: whether it knows them; `says_size`: whether it tells how long the file is.
    `before_body`: called by each request between head and body, `at_cut` where it is cut. `asked`:
    the ranges of the requests so far, "" without one."""

    content: bytes = b""
    cuts: list[int] = field(default_factory=list)
    statuses: list[int | None] = field(default_factory=list)
    ranges: bool = True
    says_size: bool = True
    before_body: Callable[[], object] = lambda: None
    at_cut: Callable[[], object] = lambda: None
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def url(self, name: str = "model.onnx") -> str:
        return f"http://127.0.0.1:{self.port}/{name}"


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, server)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        http.shutdown()


def _answer(request: BaseHTTPRequestHandler, server: FileServer) -> None:
    wanted = request.headers.get("range", "")
    server.asked.append(wanted)
    status = server.statuses.pop(0) if server.statuses else None
    if status is not None:
        _head(request, status, {"content-length": "0", **server.headers})
        return
    content = server.content
    at = int(found.group(1)) if (found := re.fullmatch(r"bytes=(\d+)-", wanted)) else 0
    if at and server.ranges and at >= len(content):
        size = {"content-range": f"bytes */{len(content)}", "content-length": "0"}
        _head(request, 416, size)
        return
    at = at if server.ranges else 0
    body = content[at:]
    head = {"content-length": str(len(body))} if server.says_size else {}
    if at:
        head["content-range"] = f"bytes {at}-{len(content) - 1}/{len(content)}"
    _head(request, 206 if at else 200, head)
    server.before_body()
    cut = server.cuts.pop(0) if server.cuts else None
    request.wfile.write(body[:cut])
    if cut is not None:
        request.wfile.flush()
        server.at_cut()


def _head(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
