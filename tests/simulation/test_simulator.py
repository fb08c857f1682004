"""The simulated world itself: does each request end once, whatever devices and callers do?"""

import gc
import random
import tracemalloc
from dataclasses import replace
from math import inf

import pytest

from routers.settings import DispatcherSettings
from routers.simulation.fifo import Fifo
from routers.simulation.simulator import Arrival, Device, Outcome, World, run, simulate
from routers.simulation.traffic import Keeper
from routers.types import Arrive, Dispatch, Opened, Reason, ReplicaKind, Tick, WakeAt

SETTINGS = DispatcherSettings(bucket_edges=(32, 128, 512), max_size=8)


def service_s(rows: int, longest: int) -> float:
    return 0.005 + 0.0002 * rows + 8e-6 * rows * longest


def poisson(rate, seconds, seed=1, **more):
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        yield Arrival(now, (rng.choice((8, 24, 90, 400)),), **more)


def outcome(arrivals, world, settings=SETTINGS) -> Outcome:
    keeper = Keeper()
    ends = run(settings, arrivals, world, keeper)
    found = Outcome(tuple(keeper.fates), tuple(keeper.batches), ends)
    assert_each_ended_once(found)
    return found


def assert_each_ended_once(found: Outcome) -> None:
    assert found.fates
    assert all(fate.answers + fate.left == 1 for fate in found.fates)
    for end in found.ends:
        assert (end.waiting_rows, end.waiting_requests, end.leases, end.drift) == (0, 0, 0, 0)


def test_answer_takes_the_transport_and_the_service_time():
    device = Device("a", lambda rows, longest: 0.010, transport_s=0.004)
    (fate,) = simulate(SETTINGS, [Arrival(1.0, (8,))], [device]).fates
    assert fate.started_at == pytest.approx(1.002)
    assert fate.answered_at == pytest.approx(1.014)


def test_pace_is_what_service_times_are_multiplied_with():
    slow = Device("a", lambda rows, longest: 0.010, transport_s=0.0, drag=lambda now: 1.0 + now)
    first, second = simulate(SETTINGS, [Arrival(0.0, (8,)), Arrival(1.0, (8,))], [slow]).fates
    assert first.answered_at == pytest.approx(0.010)
    assert second.answered_at == pytest.approx(1.020)


def test_arrivals_that_do_not_ascend_are_refused():
    with pytest.raises(ValueError, match="ascend"):
        simulate(SETTINGS, [Arrival(1.0, (8,)), Arrival(0.5, (8,))], [Device("a", service_s)])


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_gateways_share_replicas_and_lose_nothing(slots):
    arrivals = (replace(each, gateway=n % 3) for n, each in enumerate(poisson(300, 3)))
    devices = tuple(Device(name, service_s, slots) for name in "ab")
    found = outcome(arrivals, World(devices, gateways=3))
    assert all(fate.answered_at is not None for fate in found.fates)
    assert len(found.ends) == 3


def test_replica_that_hangs_is_given_up_and_its_work_done_elsewhere():
    devices = (
        Device("hangs", service_s, hangs_at=0.5, hang_limit_s=0.2),
        Device("works", service_s),
    )
    found = outcome(poisson(300, 2, timeout_s=5.0), World(devices, detect_s=0.05))
    assert all(fate.answered_at is not None for fate in found.fates)
    assert {lease.replica_id for at, lease in found.batches if at > 0.9} == {"works"}


def test_idle_replica_hangs_with_its_next_batch():
    devices = (Device("hangs", service_s, hangs_at=0.1, hang_limit_s=0.2),)
    (fate,) = outcome([Arrival(1.0, (8,), timeout_s=2.0)], World(devices)).fates
    assert fate.reason is Reason.EXPIRED


def test_streams_are_served_side_by_side():
    device = Device(
        "s", lambda rows, width: 0.1, kind=ReplicaKind.STREAM, capacity=100.0, transport_s=0.0
    )
    arrivals = [Arrival(0.001 * n, (20,)) for n in range(8)]
    found = outcome(arrivals, World((device,)))
    started = [fate.started_at for fate in found.fates]
    assert started[:5] == [0.0, 0.001, 0.002, 0.003, 0.004]
    assert all(at >= 0.05 for at in started[5:])  # the rest when progress has made room


def test_death_of_a_stream_replica_loses_no_request():
    def stream(name, **more):
        return Device(name, service_s, kind=ReplicaKind.STREAM, capacity=2000.0, **more)

    world = World((stream("a", dies_at=0.5), stream("b")), detect_s=0.01)
    assert all(fate.answered_at is not None for fate in outcome(poisson(200, 1), world).fates)


def test_door_turns_requests_away_before_the_core_hears_of_them():
    world = World((Device("a", service_s),), door=lambda arrival, now: 0.7 if now < 1.0 else 0.0)
    first, second = outcome([Arrival(0.5, (8,)), Arrival(1.5, (8,))], world).fates
    assert (first.reason, first.retry_after_s) == (Reason.TENANT_FULL, 0.7)
    assert second.in_slo


def test_caller_that_tries_again_is_a_new_request_each_time():
    def again(fate, now):
        if fate.reason is None or fate.arrival.attempt == 3:
            return None
        return replace(fate.arrival, at=now + 0.01, attempt=fate.arrival.attempt + 1)

    world = World((), follow=again)
    found = outcome([Arrival(0.0, (8,), timeout_s=0.1)], world)
    assert [fate.arrival.attempt for fate in found.fates] == [1, 2, 3]
    assert [fate.arrival.at for fate in found.fates] == pytest.approx([0.0, 0.11, 0.22])


def test_closed_loop_never_has_more_under_way_than_its_clients():
    def next_one(fate, now):
        return replace(fate.arrival, at=now) if now < 2.0 else None

    clients = [Arrival(0.0, (8,), caller=n) for n in range(3)]
    world = World((Device("a", service_s),), follow=next_one)
    found = outcome(clients, world)
    assert len(found.fates) > 300
    assert max(len(lease.rows) for _, lease in found.batches) <= 3


def test_callers_leave_while_their_rows_run_and_wait():
    rng = random.Random(3)
    arrivals = [replace(a, leaves_at=a.at + rng.expovariate(30)) for a in poisson(400, 2)]
    found = outcome(arrivals, World((Device("a", service_s), Device("b", service_s))))
    assert 10 < sum(fate.left for fate in found.fates) < len(found.fates)


def test_nobody_answers_where_nothing_runs_and_everything_is_counted():
    found = outcome(poisson(100, 1), World((), gateways=2))
    assert {fate.reason for fate in found.fates} == {Reason.EXPIRED}


@pytest.mark.parametrize("rate", [100, 600, 2000])
def test_fifo_ends_each_request_once(rate):
    devices = (Device("a", service_s, dies_at=1.0), Device("b", service_s))
    arrivals = (replace(a, leaves_at=a.at + 0.4) for a in poisson(rate, 2))
    outcome(arrivals, World(devices, core=Fifo, detect_s=0.05))


def test_fifo_pads_short_rows_to_the_longest():
    settings = replace(SETTINGS, max_size=2)
    arrivals = [Arrival(0.0, (8,)), Arrival(0.001, (400,)), Arrival(0.002, (16,))]
    device = Device("a", service_s, slots=1)
    found = outcome(arrivals, World((device,), core=Fifo), settings)
    assert [lease.rows for _, lease in found.batches] == [((1, 0),), ((2, 0), (3, 0))]


class Counter(Keeper):
    """Keeps nothing."""

    def arrived(self, fate, now):
        pass

    def sent(self, parcel, now):
        pass


def test_memory_does_not_grow_with_the_length_of_a_run():
    def peak(seconds):
        gc.collect()
        tracemalloc.start()
        world = World((Device("a", service_s),))
        run(SETTINGS, poisson(300, seconds), world, Counter())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what is made once
    short, long = peak(6), peak(18)
    assert long < 1.5 * short  # as many requests again would be several times as much


def test_arrivals_are_taken_as_their_time_comes():
    taken = []

    def endless():
        for n in range(10_000):
            taken.append(n)
            yield Arrival(0.01 * n, (8,))

    stop = RuntimeError("seen enough")

    def inspect(core):
        if len(taken) > 5:
            raise stop

    with pytest.raises(RuntimeError):
        simulate(SETTINGS, endless(), [Device("a", service_s, dies_at=inf)], inspect=inspect)
    assert len(taken) == 6


def test_same_input_takes_the_same_course_with_gateways_deaths_and_noise():
    def course():
        rng = random.Random(5)
        arrivals = (replace(a, gateway=rng.randrange(2)) for a in poisson(500, 2))
        devices = tuple(
            Device(name, service_s, dies_at=dies, drag=lambda now: rng.lognormvariate(0.0, 0.2))
            for name, dies in (("a", 1.0), ("b", inf))
        )
        return outcome(arrivals, World(devices, gateways=2, detect_s=0.1)).batches

    assert course() == course()


class Ties:
    """A core that sends each row to `a`, and a tied copy to `b` when the first second is over."""

    def __init__(self, settings):
        self.opened = []

    def step(self, event, now):
        match event:
            case Arrive(request):
                rows = ((request.request_id, 0),)
                first = Dispatch(1, "a", rows, 32, 0.0)
                return [first, WakeAt(1.0)]
            case Tick():
                return [Dispatch(2, "b", ((1, 0),), 32, 0.0, copy_of=1, tied=True)]
            case Opened(lease_id):
                self.opened.append((lease_id, now))
        return []

    def snapshot(self, now):
        return Fifo(SETTINGS).snapshot(now)


def test_starts_are_reported_of_ties_and_of_what_they_race():
    cores = []

    def core(settings):
        cores.append(Ties(settings))
        return cores[-1]

    devices = tuple(Device(name, lambda rows, width: 5.0, transport_s=0.2) for name in "ab")
    keeper = Keeper()
    run(SETTINGS, [Arrival(0.5, (8,), timeout_s=9.0)], World(devices, core=core), keeper)
    # The first had started when it was asked about; the copy starts and says so.
    assert cores[0].opened == [(1, pytest.approx(1.2)), (2, pytest.approx(1.2))]
    (fate,) = keeper.fates
    assert (fate.answers, fate.answered_at) == (1, pytest.approx(5.7))
