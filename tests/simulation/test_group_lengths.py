"""Small replicas beside large ones: what happens to long rows, whatever happens to replicas."""

from __future__ import annotations

import random

import pytest

from routers.api.settings import DispatcherSettings, GroupSettings, HedgeParameters
from routers.simulation.simulator import Arrival, SimDevice, simulate
from tests.routers.invariants import check

EDGES = (32, 128, 512)
BOUND, MAX_ROWS = 128, 8
SLO_S, SECONDS = 0.25, 3.0


def large_s(rows, width):
    return 0.004 + 0.0005 * rows + 2e-6 * rows * width


def small_s(rows, width):
    """A slice that runs out of memory with longer rows or larger batches."""
    assert width <= BOUND
    assert rows <= MAX_ROWS
    return 0.006 + 0.002 * rows + 8e-6 * rows * width


def measured(service_s, *edges, most):
    return tuple((rows, edge, service_s(rows, edge)) for rows in (1, 4, most) for edge in edges)


def settings(**more):
    groups = (
        GroupSettings("large", measured(large_s, *EDGES, most=32)),
        GroupSettings("small", measured(small_s, 32, 128, most=8), max_size=8, max_length=BOUND),
    )
    return DispatcherSettings(EDGES, slo_s=SLO_S, groups=groups, **more)


def device(name, **more):
    group = name.split("_")[0]
    return SimDevice(name, large_s if group == "large" else small_s, group=group, **more)


SMALL = tuple(device(f"small_{n}") for n in range(4))


def arrivals(rate, long=0.2, timeout_s=10 * SLO_S):
    rng, at = random.Random(3), 0.0
    while (at := at + rng.expovariate(rate)) < SECONDS:
        length = rng.choice((200, 300, 512)) if rng.random() < long else rng.choice((8, 30, 100))
        yield Arrival(at, (length,), SLO_S, timeout_s, tenant=f"t{rng.randrange(3)}")


def run(rate, devices, *, long=0.2, timeout_s=10 * SLO_S, checks=True, **more):
    """`checks`: every invariant after every step."""
    made = list(arrivals(rate, long, timeout_s))
    inspect = check if checks else None
    return simulate(settings(**more), made, devices, inspect=inspect)


def in_time(result, *, longer):
    own = [e for e in result.outcomes if (e.arrival.lengths[0] > BOUND) is longer]
    return sum(each.in_slo for each in own) / len(own)


def test_long_and_short_rows_are_in_time_where_each_kind_has_its_replicas():
    result = run(150, (device("large_0"), *SMALL))
    assert in_time(result, longer=True) > 0.97
    assert in_time(result, longer=False) > 0.97


def test_copies_of_slow_batches_keep_to_the_lengths_too():
    hedge = HedgeParameters(mode="tied", fixed_delay_s=0.01, budget=10.0, max_utilisation=1.0)
    slow = device("large_0", drag=lambda now: 8.0 if 1.0 < now < 1.5 else 1.0)
    result = run(120, (slow, device("large_1"), *SMALL), hedge=hedge)
    assert result.end.hedges + result.end.ties > 0


def test_long_rows_wait_for_another_large_replica_after_the_group_died():
    dies = device("large_0", dies_at=0.8)
    result = run(60, (dies, device("large_1", joins_at=1.6), *SMALL), timeout_s=5.0)
    assert all(each.answered_at for each in result.outcomes)


def test_short_rows_go_on_while_no_replica_takes_the_long_ones_that_wait():
    result = run(100, (device("large_0", dies_at=0.5), *SMALL))
    assert in_time(result, longer=False) > 0.9
    left = [e for e in result.outcomes if e.arrival.at > 0.6 and e.arrival.lengths[0] > BOUND]
    assert not any(each.answered_at for each in left)


@pytest.mark.parametrize("long", [0.1, 0.5, 0.9])
def test_neither_kind_is_starved_in_overload(long):
    result = run(900, (device("large_0"), *SMALL[:2]), long=long, checks=False)
    for longer in (False, True):
        own = [e for e in result.outcomes if (e.arrival.lengths[0] > BOUND) is longer]
        assert sum(each.in_slo for each in own) > 60 * SECONDS * min(1.0, len(own) / 400)


def test_tenants_get_equal_shares_of_replicas_that_take_different_lengths():
    result = run(900, (device("large_0"), *SMALL[:2]), checks=False)
    served = [flow.served_s for flow in result.end.flows if flow.priority == 0]
    assert max(served) < 1.25 * min(served)
