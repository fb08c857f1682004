"""Runs a Prometheus of our own on this machine.

It listens on 127.0.0.1 alone and keeps its data in a folder that the caller owns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.tools.observability import local_server
from deployments.tools.observability.local_server import HOST, LocalServer
from deployments.tools.observability.prometheus_binary import needed

_START_S = 30.0


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """Where a Prometheus's files are. The caller writes `config`, Prometheus `data` and `log`."""

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


def running(
    folder: ServerFolder, port: int, options: Sequence[str] = ()
) -> contextlib.AbstractContextManager[str]:
    """A context that runs Prometheus and has its address. `options`: further command options.

    Raises NoPrometheus at once; entering the context raises ServerFailed.
    """
    command = (
        str(needed("prometheus")),
        f"--config.file={folder.config}",
        f"--storage.tsdb.path={folder.data}",
        f"--web.listen-address={HOST}:{port}",
        *options,
    )
    return local_server.running(
        LocalServer("Prometheus", command, port, "--port", "/-/ready", folder.log, _START_S)
    )
