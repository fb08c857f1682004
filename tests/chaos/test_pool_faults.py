"""What callers notice when a replica of the shared pool, which holds their model beside two of its
own, is killed, asked to end, or hangs: nothing, and another takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest
from fault_cost import LOADS, Blow, measured
from process_faults import Fault, all_run, strike
from served import Server, metric, patient, running, synthetic

pytestmark = pytest.mark.chaos
TITLE = "ray::ServeReplica:headrace-pool:pool"
# More than two of its own take at once at the peak, so that the pool has work of it then.
MODEL = synthetic(options={"base_ms": 20}, batch={"max_size": 4}) | {"replicas": {"count": 2}}
POOL = {"min": 1, "max": 1, "after_ms": 5}
HANGS_S, LASTS_S, GAP_S, WATCHED_S = 60.0, 8.0, 2.0, 15.0
FAULTS = [
    Fault("a replica of the pool", number, load, HANGS_S if number is SIGSTOP else 0.0)
    for number in (SIGKILL, SIGTERM, SIGSTOP)
    for load in LOADS
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pool")
    made = Server(
        folder, {"steady": MODEL}, gateway={"replicas": 2}, scaling={"pool": POOL}
    )  # fmt: skip
    with running(made):
        yield made


def used(server: Server) -> float:
    """Replicas of the pool that serve the model and are used, at the gateway that has fewest."""
    labels = {"model": "steady", "group": "pool"}
    pages = [server.metrics(rank) for rank in range(2)]
    if not all('group="pool"' in page for page in pages):
        return 0.0
    names = ("headrace_group_healthy_replicas", "headrace_group_open")
    return min(metric(page, name, **labels) for page in pages for name in names)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_it_costs_nobody_an_answer_and_another_takes_its_place(server, fault):
    """It is used at the peak, and holds the model for a while after it."""
    with server.load("steady", LOADS["peak"].callers):
        server.until(lambda: used(server) == 1, 60)
    (struck,) = server.named(TITLE)

    def is_back() -> bool:
        there = {p.pid for p in server.named(TITLE)} - {struck.pid}
        return len(there) == 1 and all_run(server, {struck.pid})

    name, lasts_s = str(fault), LASTS_S + fault.hangs_s
    blow = Blow(name, lambda: strike(struck, fault), fault.load, lasts_s, is_back)
    cost = measured(server, blow)
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost
    assert cost.gap_s <= patient(GAP_S), cost
    assert cost.back_s < patient(WATCHED_S), cost
