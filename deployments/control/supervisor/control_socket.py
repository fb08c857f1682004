"""How the host and the command line talk: answers at a Unix socket, and events that it prints.

The socket answers one JSON line per connection. Events are JSON lines on standard output that are
never waited for: the reader may be a stopped terminal, a pipe that nobody empties, or gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socketserver
import threading
from collections.abc import Callable
from typing import Any

from deployments.control.dashboard import ClusterError
from deployments.control.supervisor.server_files import control_socket
from deployments.process.cluster_store import StoreError

Handler = Callable[[dict[str, Any]], dict[str, Any]]
IDLE_S = 10.0  # without a byte, after which a connection is closed: each has a thread
_MAX_BYTES = 1 << 16  # of a question
_POLL_S = 0.05  # how soon it notices that it is being closed
logger = logging.getLogger("headrace.host")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class ControlSocket:
    """Context manager; handlers run on a thread a connection."""

    def __init__(self, port: int, handlers: dict[str, Handler]) -> None:
        self._path = control_socket(port)
        self._path.unlink(missing_ok=True)

        class Connection(socketserver.StreamRequestHandler):
            timeout = IDLE_S  # of each read and write

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # whoever asks is silent, does not read or left
                    line = self.rfile.readline(_MAX_BYTES)
                    answer = _answer(line, handlers)
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = _Server(str(self._path), Connection)
        os.chmod(self._path, 0o600)

    def __enter__(self) -> ControlSocket:
        serve = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        serve.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def _answer(line: bytes, handlers: dict[str, Handler]) -> dict[str, Any]:
    try:
        request = json.loads(line)
        handler = handlers[request["do"]]
    except (ValueError, KeyError, TypeError):
        return {"error": "not a request this host knows"}
    try:
        return handler(request)
    except (ClusterError, StoreError) as silence:
        logger.warning("%s: %s", request["do"], silence)
        return {"error": str(silence)}
    except Exception as fault:
        logger.exception("control request failed")
        return {"error": f"{type(fault).__name__}: {fault}"}


MAX_LINES = 10_000  # that wait to be written; further ones are lost


class EventLines:
    """Writes to `descriptor`, an open file, which stays open."""

    def __init__(self, descriptor: int, most: int = MAX_LINES) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[bytes | None] = queue.Queue(most)
        self._writer = threading.Thread(target=self._write, name="event-lines", daemon=True)
        self._writer.start()

    def say(self, event: str, **fields: Any) -> None:
        """Queue an event. Returns at once; any thread may call it."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self, limit_s: float = 1.0) -> None:
        """Return when all is written, or after the limit: a reader that does not read delays no
        exit."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._writer.join(limit_s)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            while (line := self._waiting.get()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]
