"""Pool replicas in a simulation: processes, loads, and a model that comes and goes."""

from __future__ import annotations

import pytest

from autoscaling.types import PoolDecision
from deployments.tools.simulate.fleet import SimPool
from routers.simulation.devices import SimDevice
from routers.simulation.running_set import Drain, Join

START_S, LOAD_S = 10.0, 2.0


def make(group, name, number, serves_s):
    return SimDevice(name, lambda rows, width: 0.01, joins_at=serves_s, group=group)


@pytest.fixture
def pool():
    return SimPool("m", make, lambda: START_S, lambda: LOAD_S, memory_bytes=100)


def holding(*names, replicas=1):
    return PoolDecision(replicas, dict.fromkeys(names, ("m",)))


def test_replica_that_is_told_to_serves_after_a_load(pool):
    pool.begin(1)
    (order,) = pool.follow(holding("pool-0"), 5.0)
    assert (order.device.joins_at, order.device.group) == (7.0, "pool")
    assert pool.hot(6.9) == 0
    assert pool.hot(7.0) == 1
    assert list(pool.follow(holding("pool-0"), 6.0)) == []


def test_replica_whose_process_starts_holds_nothing_yet(pool):
    assert list(pool.follow(PoolDecision(1), 1.0)) == []
    assert pool.size == 1
    assert pool.readings((), 5.0) == []
    assert list(pool.follow(holding("pool-0"), 5.0)) == []
    assert [each.replica for each in pool.readings((), 11.0)] == ["pool-0"]
    assert [type(each) for each in pool.follow(holding("pool-0"), 11.0)] == [Join]


def test_reading_says_what_it_holds_and_whether_that_works(pool):
    pool.begin(1)
    (order,) = pool.follow(holding("pool-0"), 5.0)
    loading = pool.readings((), 6.0)[0].residents[0]
    assert (loading.serves, loading.busy) == (False, False)
    serving = pool.readings({order.device.replica_id}, 8.0)[0].residents[0]
    assert (serving.serves, serving.busy, serving.since, serving.load_s) == (True, True, 7.0, 2.0)


def test_model_that_should_go_drains_and_may_come_back_when_it_has_left(pool):
    pool.begin(1)
    (join,) = pool.follow(holding("pool-0"), 0.0)
    name = join.device.replica_id
    assert list(pool.follow(PoolDecision(1), 20.0)) == [Drain(name)]
    assert list(pool.follow(holding("pool-0"), 21.0)) == []
    assert pool.hot(21.0) == 0
    pool.left(name)
    (again,) = pool.follow(holding("pool-0"), 22.0)
    assert again.device.replica_id != name


def test_replica_that_goes_first_lets_its_model_leave(pool):
    pool.begin(2)
    joins = list(pool.follow(holding("pool-0", "pool-1", replicas=2), 0.0))
    assert list(pool.follow(holding("pool-0", replicas=1), 9.0)) == [
        Drain(joins[1].device.replica_id)
    ]
    assert pool.size == 2
    pool.left(joins[1].device.replica_id)
    assert list(pool.follow(holding("pool-0", replicas=1), 10.0)) == []
    assert pool.size == 1
