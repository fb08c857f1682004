"""A server's process on this machine: its port is free, it is waited for, and it is stopped.

It listens on 127.0.0.1 alone. A context manager, so that it ends with whatever started it.
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
    """It did not start; says why, or what it wrote."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """`name`: as people call it; `option`: by which another port is chosen; `health`: the path that
    answers 200 once it is ready, within `start_s`; `environ`: None for this process's own."""

    name: str
    command: Sequence[str]
    port: int
    option: str
    health: str
    log: Path
    start_s: float
    environ: Mapping[str, str] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def free_port() -> int:
    """Free at the moment of asking; nothing reserves it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(server: LocalServer) -> Iterator[str]:
    """Its address, once it is ready. Raises ServerFailed."""
    _must_be_free(server)
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


def _must_be_free(server: LocalServer) -> None:
    """Another server would answer in our own's place."""
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
