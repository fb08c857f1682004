"""The host's end of `control`: a Unix socket that answers one JSON line a connection."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from typing import Any

from deployments.control.dashboard import ClusterError
from deployments.control.supervisor.server_files import control_socket
from deployments.process import audit
from deployments.process.store_error import StoreError

Handler = Callable[[dict[str, Any]], dict[str, Any]]
ASKER = "asker"  # in a request: who asks, whatever it says itself
_CHANGES = ("apply", "rollback")
IDLE_S = 10.0  # without a byte, after which a connection is closed: each has a thread
_MOST_BYTES = 64 << 20  # of a question, which may have a whole settings file
_POLL_S = 0.05  # how soon it notices that it is being closed
logger = logging.getLogger("headrace.host")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class ControlSocket:
    """Context manager; handlers run on a thread a connection, those that change the list of models
    or the tenants one at a time, holding `lock`. Revoking a key and freezing wait for none of
    them."""

    def __init__(
        self, port: int, handlers: dict[str, Handler], lock: threading.Lock | None = None
    ) -> None:
        self._path = control_socket(port)
        self._path.unlink(missing_ok=True)
        changing = lock or threading.Lock()

        class Answer(socketserver.StreamRequestHandler):
            timeout = IDLE_S  # of each read and write

            def handle(self) -> None:
                asker = _asker(self.request)
                with contextlib.suppress(OSError):  # whoever asks is silent, does not read or left
                    line = self.rfile.readline(_MOST_BYTES)
                    answer = _answer(line, handlers, changing, asker)
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = _Server(str(self._path), Answer)
        os.chmod(self._path, 0o600)

    def __enter__(self) -> ControlSocket:
        serve = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        serve.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def _asker(connection: socket.socket) -> str:
    """The user and process at the other end, by the system's word. Source: unix(7)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return audit.user()  # the socket is its owner's alone
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", found)
    return f"{audit.user(uid)}, process {pid}"


def _answer(
    line: bytes, handlers: dict[str, Handler], lock: threading.Lock, asker: str = ""
) -> dict[str, Any]:
    try:
        request = json.loads(line)
        handler = handlers[request["do"]]
        request[ASKER] = asker
    except (ValueError, KeyError, TypeError):
        return {"error": "not a request this host knows"}
    try:
        if request["do"] in _CHANGES:
            with lock:
                return handler(request)
        return handler(request)
    except (ClusterError, StoreError) as silence:
        logger.warning("%s: %s", request["do"], silence)
        return {"error": str(silence)}
    except Exception as fault:
        logger.exception("control request failed")
        return {"error": f"{type(fault).__name__}: {fault}"}
