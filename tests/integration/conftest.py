"""Servers for whole modules of tests, ended with them; nothing may be left of one.

The folder is put on the import path, for the suite's own modules: tests are no packages here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from served import Server

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Makes servers (see `Server`); what they leave behind fails the module."""
    servers: list[Server] = []

    def make(models: dict[str, Any], **sections: Any) -> Server:
        server = Server(tmp_path_factory.mktemp("served"), models, **sections)
        servers.append(server)
        return server

    yield make
    left = [line for server in servers if hasattr(server, "process") for line in server.end()]
    assert not left, left
