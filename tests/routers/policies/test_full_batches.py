"""Batches that wait until they are nearly full, or a row of theirs can wait no longer."""

from __future__ import annotations

import random

import pytest

from routers.api.actions import Dispatch
from routers.api.events import Replicas
from routers.api.requests import Replica
from routers.api.settings import DispatcherSettings, GroupSettings, PolicyNames
from routers.simulation.simulator import Arrival, SimDevice, simulate

EDGES = (32, 128, 512)
FULL = PolicyNames(batching="full")


def service_s(rows, width):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * width


PROFILE = tuple((rows, edge, service_s(rows, edge)) for rows in (1, 8, 32) for edge in EDGES)


def sent(actions):
    return [[row[0] for row in each.rows] for each in actions if isinstance(each, Dispatch)]


@pytest.fixture
def waiting(start):
    def make(*replicas, **more):
        core = start(policies=FULL, max_size=8, initial_cost_s=0.01, **more)
        core.replicas(*(replicas or "a"))
        return core

    return make


def test_a_batch_leaves_once_it_is_three_quarters_full(waiting):
    core = waiting()
    assert [sent(core.arrive(n, 20)) for n in range(5)] == [[]] * 5
    assert sent(core.arrive(5, 20)) == [[0, 1, 2, 3, 4, 5]]


def test_a_full_batch_does_not_wait_for_less_urgent_rows_that_were_passed_over(waiting):
    core = waiting()
    core.arrive(0, 20, priority=1)
    assert sent(core.arrive(1, *[20] * 6, at=2.0)) == [[1] * 6]
    core.close(core.open[1])
    core.arrive(2, 100, priority=0)
    assert sent(core.arrive(3, *[20] * 6, priority=2, at=2.5)) == []  # waits with those before it


def test_rows_of_another_length_do_not_fill_it(waiting):
    core = waiting()
    assert [sent(core.arrive(n, 20 if n % 2 else 100)) for n in range(8)] == [[]] * 8


def test_a_batch_leaves_when_half_of_a_rows_slack_is_used_up(waiting):
    core = waiting()
    core.arrive(1, 20, slo_s=10.0)
    (tracked,) = core.dispatcher._requests.live.values()
    assert core.timer == pytest.approx(tracked.latest_start / 2)
    assert 4.9 < core.timer < 5.0
    assert sent(core.tick(core.timer - 0.001)) == []
    assert sent(core.tick(core.timer)) == [[1]]


def test_the_row_that_can_wait_least_decides_whichever_flow_is_next(waiting):
    core = waiting()
    core.arrive(1, 20, tenant="next", slo_s=10.0)
    core.arrive(2, 20, tenant="other", slo_s=1.0)
    assert 0.4 < core.timer < 0.5
    assert sent(core.tick(core.timer)) == [[1, 2]]


def test_a_full_batch_does_not_wait_for_one_that_is_not(waiting):
    core = waiting()
    core.arrive(0, 100, tenant="next")
    started = [sent(core.arrive(n, 20, tenant="other")) for n in range(1, 7)]
    assert started[-1] == [[1, 2, 3, 4, 5, 6]]


def test_late_rows_wait_for_nobody(waiting):
    core = waiting()
    core.arrive(1, 20, slo_s=0.1)
    core.replicas()
    assert sent(core.tick(0.2)) == []
    assert sent(core.replicas("a")) == [[1]]


def test_a_replica_that_takes_no_such_rows_is_not_held_back_by_them(start):
    groups = GroupSettings("long", PROFILE), GroupSettings("short", PROFILE, max_length=32)
    core = start(policies=FULL, max_size=8, groups=groups, profile=())
    core.step(Replicas((Replica("s", 1.0, group="short"),)))
    core.arrive(0, 400)
    assert [sent(core.arrive(n, 20)) for n in range(1, 6)] == [[]] * 5
    assert sent(core.arrive(6, 20)) == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("slower", ["long", "short"])  # is asked last
def test_a_replica_does_not_wait_for_rows_that_another_one_waits_for(start, slower):
    twice = tuple((rows, edge, 2 * seconds) for rows, edge, seconds in PROFILE)
    groups = (
        GroupSettings("long", twice if slower == "long" else PROFILE),
        GroupSettings("short", twice if slower == "short" else PROFILE, max_length=32),
    )
    core = start(policies=FULL, max_size=8, groups=groups, profile=())
    core.step(Replicas(tuple(Replica(f"r{each.name}", 1.0, group=each.name) for each in groups)))
    core.arrive(0, 400, slo_s=1.0)
    assert [sent(core.arrive(n, 20, priority=1)) for n in range(1, 6)] == [[]] * 5
    assert core.timer == pytest.approx(0.5)  # when half of the slack of the long one is used up
    assert sent(core.arrive(6, 20, priority=1)) == [[1, 2, 3, 4, 5, 6]]


def test_it_takes_a_third_less_of_the_device_at_half_load_and_keeps_the_deadlines():
    rng, now, arrivals = random.Random(1), 0.0, []
    while (now := now + rng.expovariate(300.0)) < 8.0:
        length = rng.choice((20, 20, 20, 100))
        arrivals.append(Arrival(now, (length,), 0.1, 2.0, tenant=rng.choice("abc")))
    busy_s, in_time = {}, {}
    for name in ("bucket", "full"):
        settings = DispatcherSettings(EDGES, profile=PROFILE, policies=PolicyNames(batching=name))
        found = simulate(settings, arrivals, [SimDevice("r", service_s)])
        busy_s[name] = sum(batch.predicted_s for _, batch in found.batches)
        in_time[name] = sum(each.in_slo for each in found.outcomes) / len(found.outcomes)
    assert busy_s["full"] < 0.67 * busy_s["bucket"]
    assert in_time["full"] > 0.999
