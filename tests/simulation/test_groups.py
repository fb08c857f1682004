"""Two groups under load: together they do what each does, and a reserve only what is left over."""

from __future__ import annotations

import random
from statistics import median

import pytest

from routers.api.settings import DispatcherSettings, GroupSettings
from routers.simulation.simulator import Arrival, SimDevice, simulate
from tests.routers.invariants import check

EDGES = (32, 128, 512)
SLO_S = 0.1
SECONDS = 2.0


def gpu_s(rows, width):
    return 0.004 + 0.0002 * rows + 1e-6 * rows * width


def cpu_s(rows, width):
    return 0.002 + 0.004 * rows + 60e-6 * rows * width


def measured(service_s):
    return tuple((rows, edge, service_s(rows, edge)) for rows in (1, 4, 16, 32) for edge in EDGES)


GPU = SimDevice("gpu", gpu_s, group="gpu")
CPUS = tuple(SimDevice(f"cpu{n}", cpu_s, group="cpu") for n in range(4))


def settings(after_s=0.0):
    groups = (
        GroupSettings("gpu", measured(gpu_s)),
        GroupSettings("cpu", measured(cpu_s), after_s=after_s),
    )
    return DispatcherSettings(EDGES, slo_s=SLO_S, groups=groups)


def arrivals(rate):
    rng, at = random.Random(1), 0.0
    while (at := at + rng.expovariate(rate)) < SECONDS:
        length = rng.choice((8, 20, 60, 120, 300))
        yield Arrival(at, (length,), SLO_S, 10 * SLO_S, tenant=f"t{rng.randrange(4)}")


def run(rate, devices, after_s=0.0, **more):
    return simulate(settings(after_s), list(arrivals(rate)), devices, **more)


def in_time(result):
    """Requests a second answered within the SLO."""
    took = [each.answered_at - each.arrival.at for each in result.outcomes if each.answered_at]
    return sum(seconds <= SLO_S for seconds in took) / SECONDS


def median_s(result):
    return median(e.answered_at - e.arrival.at for e in result.outcomes if e.answered_at)


def rows_of(result, group):
    return sum(len(b.rows) for _, b in result.batches if b.replica_id.startswith(group))


@pytest.mark.slow
def test_what_two_groups_do_in_overload_adds_up():
    both, gpu, cpu = (run(8000, each) for each in ((GPU, *CPUS), (GPU,), CPUS))
    assert in_time(both) > 0.95 * (in_time(gpu) + in_time(cpu))


def test_slow_replicas_delay_nobody_while_the_fast_one_keeps_up():
    both, alone = run(500, (GPU, *CPUS)), run(500, (GPU,))
    assert in_time(both) >= in_time(alone)
    assert median_s(both) <= median_s(alone)


def test_every_invariant_holds_through_the_loss_of_a_group():
    dies = SimDevice("gpu", gpu_s, group="gpu", dies_at=1.0)
    result = run(60, (dies, *CPUS), inspect=check)
    assert in_time(result) * SECONDS > 0.95 * len(result.outcomes)
    assert rows_of(result, "cpu") > 0


@pytest.mark.parametrize(("rate", "is_used"), [(300, False), (3500, True)])
def test_a_reserve_serves_only_what_the_others_cannot(rate, is_used):
    result = run(rate, (GPU, *CPUS), after_s=0.03)
    assert (rows_of(result, "cpu") > 0) is is_used


def test_each_group_is_predicted_by_its_own_costs():
    (end,) = run(2500, (GPU, *CPUS)).ends
    worth = {group.name: group.speed for group in end.groups}
    assert worth["gpu"] == 1.0
    assert 0.01 < worth["cpu"] < 0.2
    assert all(0.8 < each.slowdown < 1.25 for each in end.replicas)


def test_tenants_get_equal_shares_of_two_unequal_groups():
    result = run(8000, (GPU, *CPUS))
    served = [flow.served_s for flow in result.end.flows if flow.priority == 0]
    assert max(served) < 1.2 * min(served)
