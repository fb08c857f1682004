"""Simulated replicas that fail on single rows: every request ends exactly once."""

from __future__ import annotations

import random

import pytest

from routers.api.requests import Reason
from routers.api.settings import DispatcherSettings, HedgeParameters
from routers.simulation.baselines import Fifo, RoundRobin
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimRecorder

SHARE = 0.2


def devices(count: int) -> tuple[SimDevice, ...]:
    rng = random.Random(1)
    return tuple(
        SimDevice(f"r{n}", lambda rows, width: 0.01, fails=lambda: rng.random() < SHARE)
        for n in range(count)
    )


def arrivals(count: int) -> list[Arrival]:
    rows = [(10,), (10, 20), (30, 10, 10)]
    return [Arrival(0.005 * n, rows[n % 3], 5.0, 20.0) for n in range(count)]


def outcomes(core=None, lengths=None, **settings):
    recorder = SimRecorder()
    more = {} if core is None else {"core": core}
    chosen = DispatcherSettings((64,), max_size=8, slo_s=5.0, **settings)
    run(chosen, lengths or arrivals(300), World(devices(3), **more), recorder)
    return recorder


@pytest.mark.parametrize("hedge", ["off", "tied"])
def test_what_fails_twice_is_told_and_everything_else_is_answered(hedge):
    found = outcomes(hedge=HedgeParameters(hedge, min_samples=1, budget=1.0, max_utilisation=1.0))
    assert all(each.answers == 1 for each in found.outcomes)
    failed = [each for each in found.outcomes if each.answered_at is None]
    assert {each.reason for each in failed} == {Reason.FAILED}
    rows = sum(len(each.arrival.lengths) for each in found.outcomes)
    assert 0.5 * SHARE**2 < len(failed) / rows < 1.5 * SHARE**2


def test_a_row_that_failed_is_sent_alone():
    found = outcomes(hedge=HedgeParameters("off"))
    sent = set()
    for _, lease in found.batches:
        again = [row for row in lease.rows if row in sent]
        assert not again or len(lease.rows) == 1
        sent.update(lease.rows)


@pytest.mark.parametrize("core", [Fifo, RoundRobin])
def test_baselines_try_once_more_as_well(core):
    single = [Arrival(0.01 * n, (10,), 5.0, 20.0) for n in range(300)]
    found = outcomes(core, single)
    assert all(each.answers == 1 for each in found.outcomes)
    failed = sum(each.answered_at is None for each in found.outcomes)
    assert 0.3 * SHARE**2 < failed / 300 < 2.0 * SHARE**2
