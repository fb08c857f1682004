"""Replicas that join, drain and die while requests come: is each request answered once?"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routers.api.settings import DispatcherSettings
from routers.simulation.running_set import Drain, Expect, Join, Kill
from routers.simulation.simulator import Arrival, SimDevice, SimResult, World, run
from routers.simulation.traffic import SimRecorder

SETTINGS = DispatcherSettings(bucket_edges=(32, 128, 512), max_size=8)
SECONDS = 4.0


def service_s(rows, longest):
    return 0.005 + 0.0002 * rows + 8e-6 * rows * longest


def device(name, joins_at=0.0, **more):
    return SimDevice(name, service_s, joins_at=joins_at, **more)


def poisson(rate, seconds=SECONDS, seed=1, gateways=1, **more):
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        length = rng.choice((8, 24, 90, 400))
        yield Arrival(now, (length,), gateway=rng.randrange(gateways), **more)


class Script:
    """A controller that gives orders at set times, each once."""

    def __init__(self, *orders):
        self.orders = sorted(orders, key=lambda each: each[0])
        self.left_at = {}
        self.asked_at = []

    def reconcile(self, now, cores):
        self.asked_at.append(now)
        due = [order for at, order in self.orders if at <= now]
        self.orders = [each for each in self.orders if each[0] > now]
        return due

    def left(self, replica_id, now):
        assert replica_id not in self.left_at, "left twice"
        self.left_at[replica_id] = now


def result(arrivals, devices, script, **more) -> SimResult:
    recorder = SimRecorder()
    world = World(
        tuple(devices),
        controller=script,
        reconcile_every_s=0.125,
        reconcile_until_s=SECONDS,
        **more,
    )
    ends = run(SETTINGS, arrivals, world, recorder)
    found = SimResult(tuple(recorder.outcomes), tuple(recorder.batches), ends)
    assert found.outcomes
    assert all(outcome.answers + outcome.left == 1 for outcome in found.outcomes)
    for end in found.ends:
        assert (end.waiting_rows, end.waiting_requests, end.leases, end.drift) == (0, 0, 0, 0)
    return found


def all_answered(found):
    return all(outcome.answered_at is not None for outcome in found.outcomes)


def used(found, after=0.0):
    return {lease.replica_id for at, lease in found.batches if at >= after}


def test_replica_that_joins_is_used_from_then_on():
    found = result(
        poisson(300, timeout_s=5.0), [device("a")], Script((1.0, Join(device("b", 1.5))))
    )
    assert all_answered(found)
    assert min(at for at, lease in found.batches if lease.replica_id == "b") >= 1.5


def test_replica_that_drains_gets_nothing_more_and_finishes_what_it_has():
    script = Script((1.0, Drain("b")))
    found = result(poisson(300), [device("a"), device("b")], script)
    assert all_answered(found)
    assert max(at for at, lease in found.batches if lease.replica_id == "b") < 1.01
    assert 1.0 <= script.left_at["b"] < 1.1


def test_batch_that_crosses_the_order_to_drain_goes_back_and_runs_elsewhere():
    slow = SimDevice("b", service_s, transport_s=0.2)
    arrivals = [Arrival(0.95, (8,), slo_s=1.0), Arrival(1.05, (8,), slo_s=1.0)]
    script = Script((1.0, Drain("b")))
    joining = device("a", 1.2)
    found = result(arrivals, [slow, joining], script)
    assert all_answered(found)
    sent = [(lease.replica_id, lease.rows) for _, lease in found.batches]
    assert [replica_id for replica_id, _ in sent].count("b") == 2  # sent before it was known
    assert "a" in used(found)
    assert script.left_at["b"] == pytest.approx(1.2)


def test_replica_that_is_told_to_leave_before_it_joined_never_does():
    script = Script((0.5, Join(device("b", 3.0))), (1.0, Drain("b")))
    found = result(poisson(100), [device("a")], script)
    assert used(found) == {"a"}
    assert script.left_at == {"b": pytest.approx(1.0)}


def test_the_last_replica_may_go_and_another_come():
    script = Script((1.0, Drain("a")), (1.0, Join(device("b", 2.0))))
    found = result(poisson(50, timeout_s=5.0), [device("a")], script)
    assert all_answered(found)
    assert used(found, after=2.0) == {"b"}


def test_replica_that_dies_while_it_drains_is_gone_once_and_its_work_is_done_elsewhere():
    dying = device("b", hangs_at=0.9, hang_limit_s=0.4)
    script = Script((1.0, Drain("b")))
    found = result(poisson(300, timeout_s=5.0), [device("a"), dying], script, detect_s=0.1)
    assert all_answered(found)
    assert 1.4 <= script.left_at["b"] <= 1.6


def test_replica_that_left_dies_unnoticed():
    script = Script((1.0, Drain("b")))
    found = result(poisson(100), [device("a"), device("b", dies_at=2.0)], script)
    assert all_answered(found)
    assert script.left_at["b"] < 1.1


def test_a_death_is_told_to_the_controller_when_it_is_found_out():
    script = Script()
    result(poisson(100), [device("a"), device("b", dies_at=2.0)], script, detect_s=0.5)
    assert script.left_at == {"b": pytest.approx(2.5)}


def test_replica_that_is_killed_loses_what_it_has_and_others_do_it():
    script = Script((1.0, Kill("b")))
    found = result(poisson(300), [device("a"), device("b")], script, detect_s=0.1)
    assert all_answered(found)
    assert script.left_at == {"b": pytest.approx(1.1)}
    assert used(found, after=1.2) == {"a"}


def test_replica_that_is_killed_before_it_joined_never_does():
    script = Script((0.5, Join(device("b", 3.0))), (1.0, Kill("b")))
    assert used(result(poisson(100), [device("a")], script)) == {"a"}
    assert script.left_at == {"b": 1.0}


def test_gateways_turn_away_at_once_what_the_next_replica_comes_too_late_for():
    script = Script((0.0, Expect(3.0)), (0.0, Join(device("a", 3.0))))
    arrivals = [Arrival(0.5, (8,), timeout_s=1.0), Arrival(0.6, (8,), timeout_s=5.0)]
    hopeless, patient = result(arrivals, [], script).outcomes
    assert (hopeless.reason.value, hopeless.retry_after_s) == ("late", 3.0)
    assert patient.answered_at == pytest.approx(3.0, abs=0.1)


def test_controller_is_asked_at_even_times_until_nothing_is_under_way():
    script = Script()
    result([Arrival(1.0, (8,), timeout_s=6.0)], [], script)  # nobody answers it
    assert script.asked_at[:3] == [0.0, 0.125, 0.25]
    assert script.asked_at[-1] == pytest.approx(7.0, abs=0.2)


@st.composite
def courses(draw):
    """Orders and deaths at any times, of replicas beside one that stays."""
    orders = []
    for n in range(draw(st.integers(1, 6))):
        joins_at = draw(st.floats(0.2, 3.0))
        dies_at = joins_at + draw(st.one_of(st.just(float("inf")), st.floats(0.1, 2.0)))
        order = draw(st.floats(0.0, joins_at - 0.2))
        join = replace(device(f"r{n}", joins_at), dies_at=dies_at)
        orders.append((order, Join(join)))
        if draw(st.booleans()):
            orders.append((draw(st.floats(order, 4.0)), Drain(f"r{n}")))
    return orders


@settings(max_examples=25)
@given(courses(), st.integers(1, 3), st.integers(0, 100))
def test_no_request_is_lost_or_answered_twice_whoever_comes_and_goes(orders, gateways, seed):
    script = Script(*orders)
    arrivals = poisson(150, seed=seed, gateways=gateways, timeout_s=20.0)
    found = result(arrivals, [device("stays")], script, gateways=gateways, detect_s=0.2)
    lost = [outcome for outcome in found.outcomes if outcome.answered_at is None]
    assert all(outcome.reason.value == "lost" for outcome in lost)  # twice on a dying one


def test_a_hundred_ups_and_downs_fail_nothing():
    orders = []
    for n in range(100):
        orders.append((0.03 * n, Join(device(f"r{n}", 0.03 * n + 0.1))))
        orders.append((0.03 * n + 0.4, Drain(f"r{n}")))
    script = Script(*orders)
    arrivals = poisson(300, gateways=2, timeout_s=5.0)
    found = result(arrivals, [device("stays")], script, gateways=2)
    assert all_answered(found)
    assert len(script.left_at) == 100
