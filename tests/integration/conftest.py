"""Servers for whole modules of tests, ended with them; none may leave a process behind.

The folder is put on the import path, for the suite's own modules: tests are no packages here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from served import Server, running

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """The module's servers; those that still run are ended with it, and must leave nothing."""
    made: list[Server] = []
    yield made
    left = [line for server in made for line in server.end()]
    assert not left, left


@pytest.fixture(scope="module")
def serve(servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Makes servers (see `Server`)."""

    def make(models: dict[str, Any], **sections: Any) -> Server:
        server = Server(tmp_path_factory.mktemp("served"), models, **sections)
        servers.append(server)
        return server

    return make


@pytest.fixture(scope="session")
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for the models in `SHARED` of all modules that are to run and have some."""
    models: dict[str, Any] = {}
    modules = {getattr(item, "module", None) for item in request.session.items}
    for module in modules:
        own = getattr(module, "SHARED", {})
        assert not models.keys() & own.keys(), f"{module} shares a model that another one has"
        models |= own
    # A test says of a model that nothing may run twice.
    gateway = {"replay": False}
    with running(Server(tmp_path_factory.mktemp("shared"), models, gateway=gateway)) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share a server come last, so that it does not run beside the others'."""
    items.sort(key=lambda item: hasattr(getattr(item, "module", None), "SHARED"))


@pytest.fixture(autouse=True)
def nothing_left(servers: list[Server]) -> Iterator[None]:
    """What a server that ended during a test left behind fails that test, and is gone before the
    next one."""
    yield
    left = [line for server in servers if server.ended for line in server.clear()]
    assert not left, left
