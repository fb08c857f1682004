"""What callers notice when nobody reads what a server writes, and its pipe is full: nothing, and
what ends meanwhile is started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from blocked_output import block
from fault_cost import LOADS, Blow, measured
from process_faults import all_run, processes
from served import Server, running, synthetic

pytestmark = pytest.mark.chaos
ENDED = ("a replica", "a gateway")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = synthetic(options={"base_ms": 20}, replicas={"count": 2})
    folder = tmp_path_factory.mktemp("blocked")
    made = Server(folder, {"steady": model}, gateway={"replicas": 2})
    try:
        with running(made):
            yield made
    finally:
        made.reads.set()


def test_a_server_whose_output_nobody_reads_serves_and_replaces_and_ends(server):
    ended = set[int]()

    def strike() -> None:
        block(server)
        for name in ENDED:
            struck = processes(server, name)[0]
            ended.add(struck.pid)
            struck.send_signal(signal.SIGKILL)

    for load in LOADS:
        name = f"output blocked, a replica and a gateway killed, {load} load"
        cost = measured(server, Blow(name, strike, load, 20.0, lambda: all_run(server, ended)))
        print(cost)
        assert (cost.lost, cost.refused) == (0, 0), cost
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
