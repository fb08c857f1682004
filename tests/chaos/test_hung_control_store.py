"""Ray's control store (GCS) hangs: for a while, which callers do not notice; for good, which ends
the server in order, for its supervisor to start it again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from signal import SIGSTOP

import pytest
from fault_cost import LOADS, Blow, measured
from process_faults import Fault, strike
from served import Server, listens, patient, running, synthetic

from deployments.control.supervisor.server_guard import HANG_S
from tests.cluster.steady_load import SteadyLoad

pytestmark = pytest.mark.chaos
MODELS = {"steady": synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}}
ENDS_S = 20.0  # the last check, then as when the control store is killed


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("control-store")
    with running(Server(folder, MODELS, gateway={"replicas": 2})) as made:
        yield made


@pytest.mark.parametrize("load", list(LOADS))
def test_a_minute_costs_nobody_an_answer(server, load):
    (hangs,) = server.called("gcs_server")
    fault = Fault("the control store", SIGSTOP, load, hangs_s=60.0)
    cost = measured(server, Blow(str(fault), lambda: strike(hangs, fault), load, lasts_s=75.0))
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost
    assert cost.gap_s < patient(2.0), cost
    assert hangs.is_running()
    assert server.status()["models"][0]["replicas_ready"] == 2


def test_for_good_it_ends_the_server_in_order_and_nothing_is_left(server):
    (hangs,) = server.called("gcs_server")
    load = LOADS["light"]
    with SteadyLoad([server.url], "steady", callers=load.callers, pause_s=load.pause_s) as callers:
        hangs.suspend()
        began = time.monotonic()
        assert server.wait() == 1
        took_s = time.monotonic() - began
    answered = [each for each in callers.outcomes if not each.reason]
    print(f"ended after {took_s:.1f} s; the last answer after {answered[-1].ended_s - began:.1f} s")
    assert HANG_S <= took_s < HANG_S + patient(ENDS_S)
    assert answered[-1].ended_s - began > HANG_S  # served meanwhile
    assert f"process {hangs.pid}, had not answered for" in server.output
    assert server.remaining() == []
    assert not listens(server.port)
