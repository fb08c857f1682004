"""What callers notice when a model keeps memory for good until its replicas reach their limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_cost import Blow, measured
from process_faults import all_run
from served import Server, running, synthetic

pytestmark = pytest.mark.chaos
GROWS_MIB, LIMIT_MIB = 2, 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = synthetic(
        options={"base_ms": 20, "grow_mib": GROWS_MIB},
        replicas={"count": 2, "memory_limit_mib": LIMIT_MIB},
    )
    folder = tmp_path_factory.mktemp("memory")
    with running(Server(folder, {"steady": model}, gateway={"replicas": 2})) as made:
        yield made


@pytest.mark.parametrize("load", ["light", "peak"])
def test_replicas_that_reach_their_memory_limit_cost_nobody_an_answer(server, load):
    before, seen = server.replicas("steady"), set[int]()

    def is_back() -> bool:
        seen.update(server.replicas("steady"))
        return len(seen - before) >= 2 and all_run(server)

    name = f"memory limit of {LIMIT_MIB} MiB reached, {load} load"
    cost = measured(server, Blow(name, lambda: None, load, 20.0, is_back))
    print(cost, f"{len(seen - before)} replicas begun")
    assert (cost.lost, cost.refused) == (0, 0), cost
