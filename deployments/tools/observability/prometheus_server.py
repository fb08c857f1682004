"""A Prometheus of our own on this machine: started, waited for, stopped.

It listens on 127.0.0.1 alone and keeps its data in a folder that its starter owns. A context
manager, so that it ends with whatever started it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.tools.observability.prometheus_binary import needed

HOST = "127.0.0.1"
_START_S, _STOP_S, _POLL_S = 30.0, 10.0, 0.05
_LOG_LINES = 12


class PrometheusFailed(RuntimeError):
    """It did not start; says why, or what it wrote."""


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """Where a Prometheus's files are: `config` is its starter's, `data` and `log` are its own."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "prometheus.yml"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "prometheus.log"


def free_port() -> int:
    """Free at the moment of asking; nothing reserves it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(folder: ServerFolder, port: int, options: Sequence[str] = ()) -> Iterator[str]:
    """Its address. Raises NoPrometheus and PrometheusFailed."""
    _must_be_free(port)
    url = f"http://{HOST}:{port}"
    command = [
        str(needed("prometheus")),
        f"--config.file={folder.config}",
        f"--storage.tsdb.path={folder.data}",
        f"--web.listen-address={HOST}:{port}",
        *options,
    ]
    with folder.log.open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(child, f"{url}/-/ready", folder.log)
        yield url
    finally:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _must_be_free(port: int) -> None:
    """Another Prometheus would answer in our own's place."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PrometheusFailed(f"port {port} is taken; choose another with --port") from error


def _wait(child: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not _answers(url):
        if child.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            said = "\n".join(lines)
            raise PrometheusFailed(f"Prometheus did not start; {log} ends with:\n{said}")
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
