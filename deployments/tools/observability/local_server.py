"""Runs a server as a child process: checks its port, waits until it is ready, stops it at the end.

The server listens on 127.0.0.1 alone. `running` is a context manager, so that the server ends with
the code that started it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
_STOP_S, _POLL_S, _ASK_S = 10.0, 0.05, 2.0
_LOG_LINES = 12


class ServerFailed(RuntimeError):
    """The server did not start; the message says why, or quotes the end of its log."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """How to start a server and how to know that it is ready."""

    name: str  # for messages
    command: Sequence[str]
    port: int
    option: str  # the caller's option for another port, for messages
    health: str  # the path that answers 200 once the server is ready
    log: Path  # gets what the server prints
    start_s: float  # it must be ready within this time
    environ: Mapping[str, str] | None = None  # None: this process's own

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def free_port() -> int:
    """A port that is free at this moment; nothing reserves it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(server: LocalServer) -> Iterator[str]:
    """Yields the server's address once the server is ready. Raises ServerFailed."""
    _check_port_is_free(server)
    with server.log.open("wb") as log:
        child = subprocess.Popen(
            server.command, stdout=log, stderr=subprocess.STDOUT, env=server.environ
        )
    try:
        _wait(child, server)
        yield server.url
    finally:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _check_port_is_free(server: LocalServer) -> None:
    """Else a server that has the port already would answer the health check for ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, server.port))
        except OSError as error:
            raise ServerFailed(
                f"port {server.port} is taken; choose another with {server.option}"
            ) from error


def _wait(child: subprocess.Popen[bytes], server: LocalServer) -> None:
    deadline = time.monotonic() + server.start_s
    while not _answers(server.url + server.health):
        if child.poll() is not None or time.monotonic() > deadline:
            said = "\n".join(server.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise ServerFailed(f"{server.name} did not start; {server.log} ends with:\n{said}")
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ASK_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
