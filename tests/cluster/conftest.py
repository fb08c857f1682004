"""One cluster for all tests of the folder, made whole again before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.headrace_nodes import HeadraceNodes, device
from tests.cluster.machines import CannotMakeMachines, Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    try:
        with Lab() as made:
            yield made
    except CannotMakeMachines as reason:
        pytest.skip(f"no machines can be made here: {reason}")


@pytest.fixture(scope="session")
def started(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> HeadraceNodes:
    """A head and two workers that serve two models, each with a replica on each worker."""
    models = {"quick": device(base_ms=5), "slow": device(base_ms=150)}
    nodes = HeadraceNodes(lab, tmp_path_factory.mktemp("cluster"), models)
    nodes.start()
    return nodes


@pytest.fixture
def nodes(started: HeadraceNodes) -> HeadraceNodes:
    started.heal()
    return started
