"""The head goes: with Ray's state in it alone, and with that state in a Redis outside.

Gateways, replicas and anchors are on workers and need no head to answer; Ray's workers end by
themselves when they have not reached it for a minute (`gcs_rpc_server_reconnect_timeout_s`). With
Redis a new head at the old address takes up what was there.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.faults import Callers, FaultCost, report
from tests.cluster.headrace_nodes import HeadraceNodes, device
from tests.cluster.machines import CannotMakeMachines, Lab, Machine
from tests.cluster.ray_nodes import until

pytestmark = [pytest.mark.cluster, pytest.mark.integration]
REDIS_PORT = 6380
WORKERS_WAIT_S = 60.0
AWAY_S = 15.0


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """Apart from the other tests' cluster, which loses its head once and for all here."""
    try:
        with Lab() as made:
            yield made
    except CannotMakeMachines as reason:
        pytest.skip(f"no machines can be made here: {reason}")


@pytest.fixture
def nodes(own_lab: Lab, tmp_path: Path) -> HeadraceNodes:
    return HeadraceNodes(own_lab, tmp_path, {"slow": device(base_ms=150)})


@pytest.fixture
def redis(own_lab: Lab) -> Machine:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    machine = own_lab.machine("redis")
    words = ["--port", str(REDIS_PORT), "--protected-mode", "no", "--save", "", "--dir", "/tmp"]
    out = subprocess.DEVNULL
    machine.start("redis-server", *words, env={}, stdin=out, stdout=out, stderr=out)
    return machine


def nothing_failed_or_was_unknown(cost: FaultCost) -> None:
    assert cost.answered > 100, cost
    assert (cost.failed, cost.lost, cost.not_found) == (0, 0, 0), cost


def test_without_redis_workers_answer_for_a_minute_and_then_end(nodes: HeadraceNodes) -> None:
    nodes.start()
    with Callers(nodes, [nodes.ray.head], "slow").asking() as callers:
        callers.struck()
        nodes.ray.head.machine.kill()
        time.sleep(WORKERS_WAIT_S - 15)
    cost = callers.cost("the head killed, no Redis: the first 45 s")
    report(cost)
    nothing_failed_or_was_unknown(cost)
    until(lambda: not any(n.runs for n in nodes.ray.workers), 60, "the workers have ended")


def test_with_redis_a_new_head_takes_up_what_the_old_one_left(
    nodes: HeadraceNodes, redis: Machine
) -> None:
    nodes.start(RAY_REDIS_ADDRESS=f"{redis.ip}:{REDIS_PORT}")
    replicas = nodes.replica_ids("slow")
    with Callers(nodes, [nodes.ray.head], "slow").asking() as callers:
        callers.struck()
        nodes.ray.head.machine.kill()
        time.sleep(AWAY_S)
        nodes.ray.start_head(RAY_REDIS_ADDRESS=f"{redis.ip}:{REDIS_PORT}")
        nodes.until_whole()
        time.sleep(5)
    cost = callers.cost(f"the head killed, with Redis; another after {AWAY_S:g} s")
    report(cost)
    nothing_failed_or_was_unknown(cost)
    assert nodes.replica_ids("slow") == replicas
