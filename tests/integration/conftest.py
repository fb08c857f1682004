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

from ray_cluster import Cluster
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
    """One server for the models in `SHARED` of all modules that are to run and have some: settings
    by name, or what makes them in a folder, `SHARED_FOLDER`, that it is given."""
    models: dict[str, Any] = {}
    for module in {getattr(item, "module", None) for item in request.session.items}:
        own = getattr(module, "SHARED", {})
        if callable(own):
            module.SHARED_FOLDER = tmp_path_factory.mktemp("models")
            own = own(module.SHARED_FOLDER)
        assert not models.keys() & own.keys(), f"{module} shares a model that another one has"
        models |= own
    # A test says of a model that nothing may run twice; another one, how long a drain waits.
    gateway = {"replay": False, "drain_s": 10}
    with running(Server(tmp_path_factory.mktemp("shared"), models, gateway=gateway)) as made:
        yield made


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One Ray that somebody else started, for all modules in `ON_CLUSTER`, which leave nothing on
    it. It runs a copy of the sources."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.own_code()
    try:
        made.start_head()
        yield made
    finally:
        made.end()


# In this order: the last adds a node, and ends it.
ON_CLUSTER = [
    "test_pool", "test_cluster_rollout", "test_three_ways", "test_dynamic_settings", "test_cluster",
]  # fmt: skip
# Its last test ends the server.
LAST_SHARED = "test_generation"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is shared is started late, so that it does not run beside the other modules' servers."""

    def place(item: pytest.Item) -> tuple[int, int]:
        module = getattr(item, "module", None)
        name = getattr(module, "__name__", "").rpartition(".")[2]
        if name in ON_CLUSTER:
            return 1, ON_CLUSTER.index(name)
        return (2, name == LAST_SHARED) if hasattr(module, "SHARED") else (0, 0)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def nothing_left(servers: list[Server]) -> Iterator[None]:
    """What a server that ended during a test left behind fails that test, and is gone before the
    next one."""
    yield
    left = [line for server in servers if server.ended for line in server.clear()]
    assert not left, left
