"""What callers notice when a process of a server with two gateways and two replicas is killed,
asked to end, or hangs. `make chaos` runs every process and every fault, CI those without marks.

Others whose end is the server's than the last are in `test_ended_servers.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest
from blocked_output import block
from fault_cost import LOADS, Blow, FaultCost, cost_of, measured, outcome
from process_faults import BESIDE, ENDS_SERVER, FOUND, Fault, all_run, blow, processes
from served import Server, listens, patient, running, synthetic

HANGS_S, LASTS_S = 60.0, 8.0
QUICK = [
    Fault("a gateway", SIGKILL),
    Fault("a replica", SIGSTOP, hangs_s=6.0),
    Fault("Serve's controller", SIGKILL),
]
EVERY = [
    Fault(process, number, load, HANGS_S if number is SIGSTOP else 0.0)
    for process in FOUND
    for number in (SIGKILL, SIGTERM, SIGSTOP)
    for load in LOADS
]
EVERY_BESIDE = [
    Fault(process, number, load, HANGS_S if number is SIGSTOP else 0.0)
    for process in BESIDE
    for number in (SIGKILL, SIGTERM, SIGSTOP)
    for load in LOADS
    if number is SIGSTOP or process not in ENDS_SERVER
]
# With these end the connections of all callers, and until a stand-in has the port nobody can
# connect: so long at most; a HAProxy that hangs has to be found first, by three looks.
ENDS_CONNECTIONS = {"HAProxy", "HAProxy's manager"}
AWAY_S, FOUND_S = 2.0, 8.0
# With two of everything somebody is always answered: the longest gap on a quiet machine is below a
# second, also at the peak, where what takes a dead process's place starts on full processors.
GAP_S = 2.0
# Each has a watchdog, which ends it when it is stopped; and so long it takes at most, on a quiet
# machine, until another is there.
WATCHED = {"a gateway", "a replica", "the model's anchor", "the registry", "the autoscaler"}
WATCHED_S = 15.0
MODEL = synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}
WHOLE = {"state": "ready", "replicas_ready": 2, "leases": 0, "drift": 0, "waiting_rows": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("chaos"), {"steady": MODEL}, gateway={"replicas": 2})
    try:
        with running(made):
            yield made
    finally:
        made.reads.set()


def until_whole(server: Server) -> None:
    """All processes are there again, and hold nothing."""
    server.until(lambda: all_run(server), 60)
    server.until(lambda: len(server.gateway_urls()) == 2, 60)
    server.until(lambda: WHOLE.items() <= server.model_status("steady").items(), 60)


def check(fault: Fault, cost: FaultCost) -> None:
    """No gateway and no stand-in refuses anything; only where connections end is anything lost, or
    nobody answered for long."""
    assert cost.refused == 0, cost
    if fault.process not in ENDS_CONNECTIONS:
        assert cost.lost == 0, cost
        assert cost.gap_s <= patient(GAP_S), cost
        return
    hangs = fault.process == "HAProxy" and fault.number is SIGSTOP
    assert cost.gap_s <= AWAY_S + hangs * FOUND_S, cost
    at = cost.failed_at_s or (0.0,)
    assert max(at) - min(at) <= AWAY_S, cost


def strike(server: Server, fault: Fault, lasts_s: float) -> None:
    """Fails where it costs more than is promised, or who hangs was not ended by its watchdog."""
    pid = processes(server, fault.process)[0].pid
    cost = measured(server, blow(server, fault, lasts_s))
    print(cost)
    until_whole(server)
    check(fault, cost)
    if fault.number is SIGSTOP and fault.process in WATCHED:
        assert f"process {pid} has stood still for " in server.output
        assert cost.back_s < patient(WATCHED_S), cost


@pytest.mark.integration
@pytest.mark.parametrize("fault", QUICK, ids=str)
def test_a_fault_costs_no_more_than_what_was_in_flight_on_what_ended(server, fault):
    strike(server, fault, 3.0)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", EVERY, ids=str)
def test_every_fault_of_every_process(server, fault):
    strike(server, fault, LASTS_S)


def apply(server: Server, file: Path) -> float:
    """How many seconds that took."""
    began = time.monotonic()
    applied = server.headrace("apply", str(file), "--port", str(server.port))
    assert applied.returncode == 0, applied.stderr
    return time.monotonic() - began


def strike_beside(server: Server, fault: Fault, lasts_s: float) -> None:
    """No request comes to it; but `apply` and `status` do."""
    hit, applied = blow(server, fault, lasts_s), list[Future[float]]()
    with ThreadPoolExecutor() as meanwhile:

        def begin() -> None:
            hit.strike()
            applied.append(meanwhile.submit(apply, server, server.file))

        cost = measured(server, replace(hit, strike=begin))
        meanwhile_s = applied[0].result()
    changed = server.write("changed.yaml", {"steady": MODEL, "another": MODEL})
    after_s = [apply(server, file) for file in (changed, server.file)]
    print(cost, f"applied meanwhile {meanwhile_s:.1f} s, afterwards {after_s}")
    until_whole(server)
    assert (cost.lost, cost.refused) == (0, 0), cost
    assert cost.gap_s <= patient(GAP_S), cost
    assert all(processes(server, name) for name in BESIDE)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", EVERY_BESIDE, ids=str)
def test_every_fault_beside_costs_nothing_and_models_still_change(server, fault):
    strike_beside(server, fault, LASTS_S)


@pytest.mark.integration
def test_a_replica_is_replaced_while_nobody_reads_what_the_server_writes(server):
    struck = processes(server, "a replica")[0]

    def begin() -> None:
        block(server)
        struck.send_signal(SIGKILL)

    name = "output blocked, a replica killed, light load"
    try:
        cost = measured(server, Blow(name, begin, is_back=lambda: all_run(server, {struck.pid})))
    finally:
        server.reads.set()
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost


@pytest.mark.chaos
def test_a_host_that_hangs_when_rays_control_store_ends_is_ended_with_all_it_left(server):
    server.host().suspend()
    (killed,) = server.called("gcs_server")
    killed.kill()
    began = time.monotonic()
    assert server.wait() == 1
    print(f"ended after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < patient(20)
    assert f"(gcs_server), process {killed.pid}, has ended" in server.output
    assert "that a killed server left" in server.output
    assert server.processes() == []
    assert not [port for port in server.gateway.values() if listens(port)]


def test_a_cost_is_counted_from_the_fault_on():
    outcomes = [
        outcome(0.0, 3.0),
        outcome(4.0, 5.5),
        outcome(5.0, 8.0),
        outcome(5.0, 5.1, "ReadError"),
        outcome(6.0, 6.1, "503 full"),
    ]
    cost = cost_of("x", outcomes, at=5.0)
    assert (cost.answered, cost.lost, cost.refused) == (3, 1, 1)
    assert (cost.gap_s, cost.longest_s, cost.slow_s) == (2.5, 3.0, 3.0)
    assert cost.reasons == ("503 full", "ReadError")


def cost(*failed_at_s: float, gap_s: float = 0.1, refused: int = 0) -> FaultCost:
    lost = len(failed_at_s) - refused
    return FaultCost("x", 9, lost, refused, gap_s, 0.1, 0.0, (), failed_at_s=failed_at_s)


@pytest.mark.parametrize(
    ("process", "number", "costs"),
    [
        ("a replica", SIGKILL, cost(0.1)),
        ("HAProxy", SIGKILL, cost(0.1, refused=1)),
        ("HAProxy", SIGKILL, cost(0.1, 2.2)),
        ("HAProxy", SIGKILL, cost(gap_s=2.1)),
        ("HAProxy", SIGSTOP, cost(gap_s=10.1)),
    ],
)
def test_more_than_is_promised_fails(process, number, costs):
    with pytest.raises(AssertionError):
        check(Fault(process, number), costs)


def test_what_is_promised_passes():
    check(Fault("a replica", SIGKILL), cost())
    check(Fault("HAProxy", SIGKILL), cost(55.9, 56.0, 57.8, gap_s=1.9))
    check(Fault("HAProxy", SIGSTOP), cost(6.0, 6.0, gap_s=6.2))


def test_a_name_says_how_long_it_hangs():
    named = str(Fault("HAProxy", SIGSTOP, hangs_s=60.0))
    assert named == "HAProxy: SIGSTOP for 60 s, light load"
