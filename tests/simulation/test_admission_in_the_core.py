"""Admission wired into the dispatcher: the ragged mix on virtual time, decided by the seed.

70 % of rows are 8-32 long, 25 % 64-128, 5 % 256-512; Poisson arrivals, open loop; the device takes
5 ms + 0.2 ms a row + 8 us a padded token; SLO 100 ms, timeout 1 s.
"""

from __future__ import annotations

import random
from heapq import merge

import pytest

from loadtests.benches.compare.shares import water_filled
from routers.api.requests import Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.simulation.simulator import Arrival, SimDevice, simulate

CAPACITY = 930
EDGES = (32, 128, 512)


def settings(mode: Mode) -> DispatcherSettings:
    return DispatcherSettings(EDGES, max_size=32, admission=AdmissionParameters(mode))


def service_s(rows: int, longest: int) -> float:
    return 0.005 + 0.0002 * rows + 8e-6 * rows * longest


def ragged_length(rng: random.Random) -> int:
    kind = rng.random()
    low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, 512)
    return rng.randint(low, high)


def poisson(load, seconds, tenant="a"):
    rng, now = random.Random(f"1 {tenant}"), 0.0
    while (now := now + rng.expovariate(load * CAPACITY)) < seconds:
        yield Arrival(now, (ragged_length(rng),), tenant=tenant)


def run(mode, arrivals, since):
    result = simulate(settings(mode), arrivals, [SimDevice("a", service_s)])
    return [outcome for outcome in result.outcomes if outcome.arrival.at >= since]


def in_slo(outcomes):
    return sum(outcome.in_slo for outcome in outcomes) / len(outcomes)


PEAK = 840  # the highest rate here of which 99 % are in time


def test_judging_newcomers_keeps_at_least_as_many_in_time_at_capacity():
    off, enforced = (in_slo(run(mode, poisson(1.0, 5), 2)) for mode in (Mode.OFF, Mode.ENFORCE))
    assert enforced > 0.97 * off


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_each_length_keeps_its_share_of_the_device_in_overload(load):
    outcomes = run(Mode.ENFORCE, poisson(load * PEAK / CAPACITY, 7), 1)
    in_time = [outcome for outcome in outcomes if outcome.in_slo]
    assert len(in_time) > 0.95 * PEAK * 6
    asked, served = (seconds_by_length(some) for some in (outcomes, in_time))
    fair = water_filled(asked, sum(served.values()))
    for edge in EDGES:
        assert served[edge] > 0.8 * fair[edge]


def seconds_by_length(outcomes):
    """Of rows as ones of full batches of their own length."""
    found = dict.fromkeys(EDGES, 0.0)
    for outcome in outcomes:
        length = outcome.arrival.lengths[0]
        found[next(edge for edge in EDGES if length <= edge)] += service_s(32, length) / 32
    return found


def test_most_that_overload_leaves_over_is_refused_and_does_not_expire():
    outcomes = run(Mode.ENFORCE, poisson(3.0, 5), 2)
    refused = sum(outcome.reason is Reason.LATE for outcome in outcomes)
    others = sum(not outcome.in_slo and outcome.reason is not Reason.LATE for outcome in outcomes)
    assert refused > 0.5 * len(outcomes)
    assert others < 0.08 * refused


def test_victims_of_an_aggressor_are_hardly_ever_refused():
    victims = [f"v{n}" for n in range(8)]
    arrivals = merge(
        poisson(5.0, 4, "aggressor"),
        *(poisson(0.04, 4, victim) for victim in victims),
        key=lambda each: each.at,
    )
    outcomes = [
        outcome for outcome in run(Mode.ENFORCE, arrivals, 1) if outcome.arrival.tenant in victims
    ]
    assert sum(outcome.reason is Reason.LATE for outcome in outcomes) < 0.03 * len(outcomes)
    assert in_slo(outcomes) > 0.9
