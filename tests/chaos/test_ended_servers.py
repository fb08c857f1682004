"""What callers and a supervisor notice when a process ends without which the server cannot go on:
what is under way is answered where the end is in order, the server ends by itself, and the next one
is ready soon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL, SIGTERM

import pytest
from fault_cost import LOADS, outcome, report
from process_faults import ENDS_SERVER, Fault, processes, strike
from served import Server, patient, running, synthetic

from tests.cluster.steady_load import Outcome, SteadyLoad

MODEL = synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}
SETTLE_S, GONE_S = 1.5, 5.0
EXITS_S = 20.0
FAULTS = [
    Fault(process, number, load)
    for process in ENDS_SERVER
    for number in (SIGKILL, SIGTERM)
    for load in LOADS
]
# The host lives on, and ends the server in order.
IN_ORDER = {("the command line", SIGKILL), ("the command line", SIGTERM), ("the host", SIGTERM)}
CODES = {
    ("the command line", SIGKILL): -9,
    ("the command line", SIGTERM): 0,
    ("the host", SIGTERM): 0,
}
SAYS = {
    "the host": "SIGKILL",
    "Ray's DashboardAgent": "raylet",
    "Ray's RuntimeEnvAgent": "RuntimeEnvAgent",
}


@dataclass(frozen=True, slots=True)
class End:
    """Of the requests `under_way` when it was struck: lost, without an answer; refused, with an
    error. later: of those that were sent then, by status or by what broke off. answered_s: until
    the last right answer, exit_s: until `headrace serve` had ended, gone_s: until nothing of it
    ran, back_s: until the next one was ready; all from the fault on. left: processes that still ran
    then."""

    fault: str
    under_way: int
    lost: int
    refused: int
    later: dict[str, int]
    answered_s: float
    exit_s: float = 0.0
    gone_s: float = 0.0
    back_s: float = 0.0
    left: int = 0


def end_of(fault: str, outcomes: Sequence[Outcome], at: float) -> End:
    """Without what the record does not say."""
    under_way = [each for each in outcomes if each.sent_s <= at < each.ended_s]
    failed = [each.reason for each in under_way if each.reason]
    refused = sum(reason[:1].isdigit() for reason in failed)
    later = Counter(each.reason.split(" ")[0] or "200" for each in outcomes if each.sent_s > at)
    right = [each.ended_s - at for each in outcomes if not each.reason]
    answered_s = max([0.0, *right])
    return End(fault, len(under_way), len(failed) - refused, refused, dict(later), answered_s)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("ended"), {"steady": MODEL}, gateway={"replicas": 2})
    with running(made):
        yield made


def struck_down(server: Server, fault: Fault) -> tuple[End, int, str]:
    """And the exit code, and what it said. The next one is started once nothing of it runs."""
    load = LOADS[fault.load]
    with SteadyLoad([server.url], "steady", callers=load.callers, pause_s=load.pause_s) as callers:
        callers.settle(SETTLE_S)
        at = time.monotonic()
        strike(processes(server, fault.process)[0], fault)
        code = server.wait()
        exit_s = time.monotonic() - at
        left = server.remaining(GONE_S)
        gone_s = time.monotonic() - at
    said = server.output
    server.start()
    back_s = time.monotonic() - at
    end = end_of(str(fault), callers.outcomes, at)
    times = {"exit_s": exit_s, "gone_s": gone_s, "back_s": back_s}
    return replace(end, **times, left=len(left)), code, said


@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_server_ends_by_itself_and_the_next_one_is_ready_soon(server, fault):
    if server.ended:  # another fault's test failed
        server.start()
    end, code, said = struck_down(server, fault)
    print(end, code)
    report(end)
    struck = (fault.process, fault.number)
    assert code == CODES.get(struck, 1)
    assert SAYS.get(fault.process, "") in said or struck in IN_ORDER, said
    assert end.exit_s < patient(EXITS_S)
    assert end.left == 0, end
    if struck in IN_ORDER:
        assert (end.lost, end.refused) == (0, 0), end


def test_what_was_under_way_is_counted_apart_from_what_came_later():
    outcomes = [
        outcome(0.0, 1.0),
        outcome(1.0, 3.0),
        outcome(1.5, 2.5, "ReadError"),
        outcome(1.5, 2.5, "503 draining"),
        outcome(2.1, 4.0),
        outcome(2.6, 2.7, "503 draining"),
        outcome(2.8, 2.9, "ConnectError"),
    ]
    end = end_of("x", outcomes, at=2.0)
    assert (end.under_way, end.lost, end.refused) == (3, 1, 1)
    assert end.later == {"200": 1, "503": 1, "ConnectError": 1}
    assert end.answered_s == 2.0
