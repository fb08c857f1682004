"""The real dispatcher on virtual time under the ragged mix: what callers get, decided by the seed.

70 % of rows are 8-32 long, 25 % 64-128, 5 % 256-512; Poisson arrivals, open loop; the device takes
5 ms + 0.2 ms a row + 8 us a padded token and works on one batch at a time; SLO 100 ms, timeout 1 s.
A perfectly sorted, always full device would serve about 980 rows/s.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from routers.api.requests import Reason
from routers.api.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, SimDevice, SimResult, simulate
from tests.routers.invariants import check

SETTINGS = DispatcherSettings(bucket_edges=(32, 128, 512), max_size=32)


def service_s(rows: int, longest: int) -> float:
    return 0.005 + 0.0002 * rows + 8e-6 * rows * longest


def ragged_length(rng: random.Random) -> int:
    kind = rng.random()
    low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, 512)
    return rng.randint(low, high)


def poisson(
    rate: float,
    seconds: float,
    seed: int = 1,
    lengths: Callable[[random.Random], tuple[int, ...]] = lambda rng: (ragged_length(rng),),
    patience_s: Callable[[random.Random], float] = lambda rng: float("inf"),
) -> list[Arrival]:
    rng, now, arrivals = random.Random(seed), 0.0, []
    while (now := now + rng.expovariate(rate)) < seconds:
        arrivals.append(Arrival(now, lengths(rng), leaves_at=now + patience_s(rng)))
    return arrivals


def assert_nothing_is_left(result: SimResult) -> None:
    """Each request ended exactly once, and the core holds nothing any more."""
    for outcome in result.outcomes:
        assert outcome.answers + outcome.left == 1
    end = result.end
    assert (end.waiting_rows, end.waiting_requests, end.leases, end.drift) == (0, 0, 0, 0)
    assert end.unknown_closes == 0


def p99(waits: list[float]) -> float:
    return sorted(waits)[round(0.99 * (len(waits) - 1))]


def waits(result: SimResult) -> list[float]:
    outcomes = result.outcomes
    return [
        outcome.answered_at - outcome.arrival.at
        for outcome in outcomes
        if outcome.answered_at is not None
    ]


@pytest.mark.parametrize(("rate", "slots"), [(100, 1), (300, 2), (700, 1), (700, 2)])
def test_load_below_capacity_is_answered_in_time(rate, slots):
    result = simulate(SETTINGS, poisson(rate, 10), [SimDevice("a", service_s, slots)])
    assert result.share_in_slo() >= 0.99
    assert_nothing_is_left(result)


def test_light_load_is_not_held_back_to_fill_batches():
    result = simulate(SETTINGS, poisson(20, 20), [SimDevice("a", service_s)])
    assert sorted(waits(result))[len(result.outcomes) // 2] < 0.010


def test_batches_grow_with_the_load():
    sizes = []
    for rate in (100, 400, 800):
        result = simulate(SETTINGS, poisson(rate, 5), [SimDevice("a", service_s)])
        sizes.append(len(result.outcomes) / len(result.batches))
    assert sizes[0] < 0.5 * sizes[1] < 0.25 * sizes[2]


def test_short_rows_do_not_wait_for_long_batches():
    """Buckets against one bucket for all, at a load where padding decides."""
    rates = [
        simulate(
            DispatcherSettings(edges, max_size=32), poisson(600, 10), [SimDevice("a", service_s)]
        ).share_in_slo()
        for edges in ((32, 128, 512), (512,))
    ]
    assert rates[0] >= 0.99
    assert rates[1] < 0.7


@pytest.mark.parametrize("overload", [1.5, 2.0])
def test_overload_keeps_goodput_and_loses_nothing(overload):
    capacity = 980
    result = simulate(SETTINGS, poisson(overload * capacity, 8), [SimDevice("a", service_s)])
    assert_nothing_is_left(result)
    goodput = result.share_in_slo() * overload * capacity
    assert goodput > 0.8 * capacity
    reasons = {outcome.reason for outcome in result.outcomes}
    assert reasons <= {None, Reason.EXPIRED, Reason.QUEUE_FULL, Reason.LATE}


def test_refusing_late_ones_keeps_goodput_too_and_answers_sooner():
    settings = DispatcherSettings((32, 128, 512), late="refuse")
    result = simulate(settings, poisson(1500, 5), [SimDevice("a", service_s)])
    assert_nothing_is_left(result)
    assert result.share_in_slo() * 1500 > 800
    assert max(waits(result)) < 0.25
    assert {outcome.reason for outcome in result.outcomes} == {None, Reason.LATE}


def test_burst_is_worked_off_late_ones_included():
    burst = [Arrival(0.001 * n / 600, (20,)) for n in range(600)]
    after = [Arrival(0.5 + each.at, each.lengths) for each in poisson(200, 2)]
    result = simulate(SETTINGS, burst + after, [SimDevice("a", service_s)])
    assert_nothing_is_left(result)
    assert all(outcome.answered_at is not None for outcome in result.outcomes)
    assert all(outcome.in_slo for outcome in result.outcomes[600:])


def test_staging_just_in_time_hides_the_transport():
    """With 5 ms of transport a second slot is worth throughput; it costs no short one its time."""
    one, two = (
        simulate(SETTINGS, poisson(700, 8), [SimDevice("a", service_s, slots, transport_s=0.005)])
        for slots in (1, 2)
    )
    assert p99(waits(two)) < 0.9 * p99(waits(one))


def test_hiccups_of_one_replica_cost_little():
    rng = random.Random(5)

    def hiccups(rows: int, longest: int) -> float:
        return service_s(rows, longest) + (0.3 if rng.random() < 0.01 else 0.0)

    devices = [SimDevice("steady", service_s), SimDevice("hiccups", hiccups)]
    result = simulate(SETTINGS, poisson(600, 8), devices)
    assert_nothing_is_left(result)
    assert result.share_in_slo() >= 0.97


def test_death_of_a_replica_loses_no_request():
    devices = [
        SimDevice("stays", service_s),
        SimDevice("dies", service_s, dies_at=1.0),
        SimDevice("follows", service_s, joins_at=1.5),
    ]
    result = simulate(SETTINGS, poisson(600, 4), devices, detect_s=0.05, inspect=_check)
    assert_nothing_is_left(result)
    assert all(outcome.answered_at is not None for outcome in result.outcomes)
    assert result.share_in_slo() >= 0.97


def test_requests_wait_for_the_first_replica():
    result = simulate(
        SETTINGS, poisson(100, 1), [SimDevice("a", service_s, joins_at=0.5)], inspect=_check
    )
    assert all(outcome.answered_at is not None for outcome in result.outcomes)


def test_model_without_replicas_expires_what_waits():
    result = simulate(SETTINGS, poisson(100, 1), [], inspect=_check)
    assert_nothing_is_left(result)
    assert {outcome.reason for outcome in result.outcomes} == {Reason.EXPIRED}


def test_many_rows_and_impatient_callers_end_once():
    arrivals = poisson(
        150,
        5,
        lengths=lambda rng: tuple(ragged_length(rng) for _ in range(rng.choice((1, 1, 2, 9)))),
        patience_s=lambda rng: rng.choice((0.01, 0.05, float("inf"))),
    )
    devices = [SimDevice("a", service_s), SimDevice("b", service_s, dies_at=2.0)]
    result = simulate(SETTINGS, arrivals, devices, detect_s=0.1)
    assert_nothing_is_left(result)
    assert Counter(outcome.left for outcome in result.outcomes)[True] > 50


def test_same_seed_gives_the_same_outcome():
    first, second = (
        simulate(SETTINGS, poisson(1200, 1, seed=9), [SimDevice("a", service_s)]) for _ in range(2)
    )
    assert first.batches == second.batches
    assert waits(first) == waits(second)


def _check(dispatcher) -> None:
    if dispatcher.snapshot(0.0).waiting_rows < 20:  # the check scans all that waits
        check(dispatcher)
