"""What is lost when nodes, links and processes of a cluster go, under load.

A request that may run twice is never lost, nobody is told that a model does not exist, and what may
not run twice is lost only where it was under way. The figures of docs/reliability.md are these
tests' (`HEADRACE_FAULTS=FILE` collects them).
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.cluster.faults import Callers, FaultCost, measured, report
from tests.cluster.headrace_nodes import HeadraceNodes
from tests.cluster.ray_nodes import until

pytestmark = [pytest.mark.cluster, pytest.mark.integration]
ONCE_CALLERS = 4
HOLDERS = {"registry": "ray::RegistryActor", "anchor": "ray::ServeReplica:model-slow:anchor"}


def nothing_is_lost_that_may_run_twice(cost: FaultCost) -> None:
    assert cost.answered > 100, cost
    assert (cost.failed, cost.not_found) == (0, 0), cost
    assert cost.lost <= ONCE_CALLERS, cost
    assert cost.lost_later == 0, cost


def test_a_worker_whose_link_is_down(nodes: HeadraceNodes) -> None:
    hit = nodes.gateways()[0]
    cost = measured(nodes, "link of a worker down (silence)", hit.machine.unplug, hit)
    nothing_is_lost_that_may_run_twice(cost)


def test_a_worker_whose_first_process_is_killed(nodes: HeadraceNodes) -> None:
    hit = nodes.gateways()[0]
    cost = measured(nodes, "first process of a worker killed", hit.machine.kill, hit)
    nothing_is_lost_that_may_run_twice(cost)


def test_a_worker_that_is_told_to_end(nodes: HeadraceNodes) -> None:
    hit = nodes.gateways()[0]
    cost = measured(nodes, "SIGTERM to `ray start --block`", hit.terminate, hit, lasts_s=45)
    nothing_is_lost_that_may_run_twice(cost)


def test_one_gateway_cut_from_one_replica(nodes: HeadraceNodes) -> None:
    """What the gateway sends there is lost, of this connection alone; Ray's own hold."""
    gateway, other = nodes.gateways()
    port = nodes.channel_port(other, "slow")
    cut = partial(gateway.machine.cut, other.ip, port)
    cost = measured(nodes, "one gateway cut from one replica", cut)
    gateway.machine.mend(other.ip, port)
    nothing_is_lost_that_may_run_twice(cost)


def test_two_workers_that_no_longer_reach_each_other(nodes: HeadraceNodes) -> None:
    one, other = nodes.gateways()
    cost = measured(nodes, "two workers cut from each other", partial(one.machine.cut, other.ip))
    one.machine.mend(other.ip)
    nothing_is_lost_that_may_run_twice(cost)


@pytest.mark.parametrize("what", HOLDERS)
def test_registry_and_anchor_are_killed_wherever_they_are(nodes: HeadraceNodes, what: str) -> None:
    node, pid = nodes.process(HOLDERS[what])
    strike = partial(node.machine.run, "kill", "-9", str(pid))
    cost = measured(nodes, f"the {what}'s process killed", strike)
    assert nodes.process(HOLDERS[what]) != (node, pid)
    nothing_is_lost_that_may_run_twice(cost)


@pytest.mark.parametrize("what", HOLDERS)
def test_the_worker_that_holds_registry_or_anchor(nodes: HeadraceNodes, what: str) -> None:
    hit = nodes.brought_to_a_worker(HOLDERS[what])
    cost = measured(nodes, f"the worker that holds the {what} killed", hit.machine.kill, hit)
    nothing_is_lost_that_may_run_twice(cost)


def test_every_worker_is_replaced_one_after_the_other(nodes: HeadraceNodes) -> None:
    before = list(nodes.ray.workers)
    with Callers(nodes, before, "slow").asking() as callers:
        callers.struck()
        for node in before:
            nodes.ray.add_worker()
            nodes.until_joined()
            node.terminate()
            until(lambda: not node.runs, 60, "the node has drained")  # noqa: B023
            nodes.ray.remove(node)
            nodes.until_whole()
    cost = callers.cost("every worker replaced, one after the other")
    report(cost)
    nothing_is_lost_that_may_run_twice(cost)
