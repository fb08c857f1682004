"""The simulated world itself: does each request end once, whatever devices and callers do?"""

import gc
import random
import tracemalloc
from dataclasses import replace
from math import inf

import pytest

from routers.api.actions import Abort, Dispatch, WakeAt
from routers.api.events import Arrive, Opened, Tick
from routers.api.requests import Generation, Reason
from routers.api.settings import DispatcherSettings, GenerationParameters
from routers.simulation.baselines import Fifo, RoundRobin
from routers.simulation.simulator import Arrival, SimDevice, SimResult, World, run, simulate
from routers.simulation.traffic import SimOutcome, SimRecorder
from runtimes.synthetic.engine import EngineShape

SETTINGS = DispatcherSettings(bucket_edges=(32, 128, 512), max_size=8)


def service_s(rows: int, longest: int) -> float:
    return 0.005 + 0.0002 * rows + 8e-6 * rows * longest


def poisson(rate, seconds, seed=1, **more):
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        yield Arrival(now, (rng.choice((8, 24, 90, 400)),), **more)


def result(arrivals, world, settings=SETTINGS) -> SimResult:
    recorder = SimRecorder()
    ends = run(settings, arrivals, world, recorder)
    found = SimResult(tuple(recorder.outcomes), tuple(recorder.batches), ends)
    assert_each_ended_once(found)
    return found


def assert_each_ended_once(found: SimResult) -> None:
    assert found.outcomes
    assert all(outcome.answers + outcome.left == 1 for outcome in found.outcomes)
    for end in found.ends:
        assert (end.waiting_rows, end.waiting_requests, end.leases, end.drift) == (0, 0, 0, 0)


def test_answer_takes_the_transport_and_the_service_time():
    device = SimDevice("a", lambda rows, longest: 0.010, transport_s=0.004)
    (outcome,) = simulate(SETTINGS, [Arrival(1.0, (8,))], [device]).outcomes
    assert outcome.started_at == pytest.approx(1.002)
    assert outcome.answered_at == pytest.approx(1.014)


def test_drag_is_what_service_times_are_multiplied_with():
    slow = SimDevice("a", lambda rows, longest: 0.010, transport_s=0.0, drag=lambda now: 1.0 + now)
    first, second = simulate(SETTINGS, [Arrival(0.0, (8,)), Arrival(1.0, (8,))], [slow]).outcomes
    assert first.answered_at == pytest.approx(0.010)
    assert second.answered_at == pytest.approx(1.020)


def test_arrivals_that_do_not_ascend_are_refused():
    with pytest.raises(ValueError, match="ascend"):
        simulate(SETTINGS, [Arrival(1.0, (8,)), Arrival(0.5, (8,))], [SimDevice("a", service_s)])


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_gateways_share_replicas_and_lose_nothing(slots):
    arrivals = (replace(each, gateway=n % 3) for n, each in enumerate(poisson(300, 3)))
    devices = tuple(SimDevice(name, service_s, slots) for name in "ab")
    found = result(arrivals, World(devices, gateways=3))
    assert all(outcome.answered_at is not None for outcome in found.outcomes)
    assert len(found.ends) == 3


def test_replica_that_hangs_is_given_up_and_its_work_done_elsewhere():
    devices = (
        SimDevice("hangs", service_s, hangs_at=0.5, hang_limit_s=0.2),
        SimDevice("works", service_s),
    )
    found = result(poisson(300, 2, timeout_s=5.0), World(devices, detect_s=0.05))
    assert all(outcome.answered_at is not None for outcome in found.outcomes)
    assert {lease.replica_id for at, lease in found.batches if at > 0.9} == {"works"}


def test_idle_replica_hangs_with_its_next_batch():
    devices = (SimDevice("hangs", service_s, hangs_at=0.1, hang_limit_s=0.2),)
    (outcome,) = result([Arrival(1.0, (8,), timeout_s=2.0)], World(devices)).outcomes
    assert outcome.reason is Reason.EXPIRED


ENGINE = EngineShape(0.005, 0.0002, 8e-6, cache_tokens=20_000)


def death_of_a_stream_replica(**more) -> tuple[SimResult, list[SimOutcome]]:
    """One of two dies at 0.5 s; which of its four requests had begun to be shown."""

    def stream(name, **more):
        return SimDevice(name, service_s, engine=ENGINE, **more)

    asked = {"generation": Generation(64), "output": 64, "timeout_s": 30.0} | more
    arrivals = [Arrival(at, (8,), **asked) for at in [0.4] * 4 + [0.497] * 4]
    settings = replace(SETTINGS, generation=GenerationParameters(output_tokens=64))
    world = World((stream("a", dies_at=0.5), stream("b")), detect_s=0.01)
    found = result(arrivals, world, settings)
    lost = [lease.rows for _, lease in found.batches if lease.replica_id == "a"]
    there = [found.outcomes[request_id - 1] for ((request_id, _),) in lost]
    return found, [each for each in there if each.arrival.at == 0.4]


def test_death_of_a_stream_replica_ends_what_had_begun_to_be_shown_and_loses_nothing_else():
    found, shown = death_of_a_stream_replica()
    assert len(shown) == 2
    assert all(each.reason is Reason.INTERRUPTED and each.first_at < 0.5 for each in shown)
    others = [each for each in found.outcomes if each not in shown]
    assert all(each.answered_at is not None for each in others)
    assert len(found.batches) == 8 + 2, "what it had shown nothing of ran again"


def test_death_of_a_stream_replica_loses_no_answer_that_is_given_whole():
    found, begun = death_of_a_stream_replica(streams=False)
    assert len(begun) == 2
    assert all(each.answered_at is not None for each in found.outcomes)
    assert len(found.batches) == 8 + 4, "all that it held ran again"


def test_a_stream_that_ends_while_its_abort_is_on_the_way_answers_nobody():
    """Its pieces are dropped, as at a gateway."""

    class Aborts(RoundRobin):
        def step(self, event, now):
            actions = super().step(event, now)
            return [*actions, Abort(1, "a")] if isinstance(event, Opened) else actions

    device = SimDevice("a", service_s, engine=ENGINE, transport_s=0.02)
    recorder = SimRecorder()
    arrival = Arrival(0.0, (8,), generation=Generation(1), output=1)
    run(SETTINGS, [arrival], World((device,), core=Aborts), recorder)
    assert recorder.outcomes[0].answered_at is None


def test_door_turns_requests_away_before_the_core_hears_of_them():
    world = World((SimDevice("a", service_s),), door=lambda arrival, now: 0.7 if now < 1.0 else 0.0)
    first, second = result([Arrival(0.5, (8,)), Arrival(1.5, (8,))], world).outcomes
    assert (first.reason, first.retry_after_s) == (Reason.TENANT_FULL, 0.7)
    assert second.in_slo


def test_caller_that_tries_again_is_a_new_request_each_time():
    def again(outcome, now):
        if outcome.reason is None or outcome.arrival.attempt == 3:
            return None
        return replace(outcome.arrival, at=now + 0.01, attempt=outcome.arrival.attempt + 1)

    world = World((), follow=again)
    found = result([Arrival(0.0, (8,), timeout_s=0.1)], world)
    assert [outcome.arrival.attempt for outcome in found.outcomes] == [1, 2, 3]
    assert [outcome.arrival.at for outcome in found.outcomes] == pytest.approx([0.0, 0.11, 0.22])


def test_closed_loop_never_has_more_under_way_than_its_clients():
    def next_one(outcome, now):
        return replace(outcome.arrival, at=now) if now < 2.0 else None

    clients = [Arrival(0.0, (8,), caller=n) for n in range(3)]
    world = World((SimDevice("a", service_s),), follow=next_one)
    found = result(clients, world)
    assert len(found.outcomes) > 300
    assert max(len(lease.rows) for _, lease in found.batches) <= 3


def test_callers_leave_while_their_rows_run_and_wait():
    rng = random.Random(3)
    arrivals = [replace(a, leaves_at=a.at + rng.expovariate(30)) for a in poisson(400, 2)]
    found = result(arrivals, World((SimDevice("a", service_s), SimDevice("b", service_s))))
    assert 10 < sum(outcome.left for outcome in found.outcomes) < len(found.outcomes)


def test_nobody_answers_where_nothing_runs_and_everything_is_counted():
    found = result(poisson(100, 1), World((), gateways=2))
    assert {outcome.reason for outcome in found.outcomes} == {Reason.EXPIRED}


@pytest.mark.parametrize("rate", [100, 600, 2000])
def test_fifo_ends_each_request_once(rate):
    devices = (SimDevice("a", service_s, dies_at=1.0), SimDevice("b", service_s))
    arrivals = (replace(a, leaves_at=a.at + 0.4) for a in poisson(rate, 2))
    result(arrivals, World(devices, core=Fifo, detect_s=0.05))


def test_fifo_pads_short_rows_to_the_longest():
    settings = replace(SETTINGS, max_size=2)
    arrivals = [Arrival(0.0, (8,)), Arrival(0.001, (400,)), Arrival(0.002, (16,))]
    device = SimDevice("a", service_s, slots=1)
    found = result(arrivals, World((device,), core=Fifo), settings)
    assert [lease.rows for _, lease in found.batches] == [((1, 0),), ((2, 0), (3, 0))]


class Counter(SimRecorder):
    """Keeps nothing."""

    def arrived(self, outcome, now):
        pass

    def sent(self, sim_lease, now):
        pass


def test_memory_does_not_grow_with_the_length_of_a_run():
    def peak(seconds):
        gc.collect()
        tracemalloc.start()
        world = World((SimDevice("a", service_s),))
        run(SETTINGS, poisson(300, seconds), world, Counter())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what is made once
    short, long = peak(3), peak(9)
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
        simulate(SETTINGS, endless(), [SimDevice("a", service_s, dies_at=inf)], inspect=inspect)
    assert len(taken) == 6


def test_same_input_takes_the_same_course_with_gateways_deaths_and_noise():
    def course():
        rng = random.Random(5)
        arrivals = (replace(a, gateway=rng.randrange(2)) for a in poisson(500, 2))
        devices = tuple(
            SimDevice(name, service_s, dies_at=dies, drag=lambda now: rng.lognormvariate(0.0, 0.2))
            for name, dies in (("a", 1.0), ("b", inf))
        )
        return result(arrivals, World(devices, gateways=2, detect_s=0.1)).batches

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
                copy = Dispatch(2, "b", ((1, 0),), 32, 0.0)
                copy.copy_of, copy.tied = 1, True
                return [copy]
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

    devices = tuple(SimDevice(name, lambda rows, width: 5.0, transport_s=0.2) for name in "ab")
    recorder = SimRecorder()
    run(SETTINGS, [Arrival(0.5, (8,), timeout_s=9.0)], World(devices, core=core), recorder)
    # The first had started when it was asked about; the copy starts and says so.
    assert cores[0].opened == [(1, pytest.approx(1.2)), (2, pytest.approx(1.2))]
    (outcome,) = recorder.outcomes
    assert (outcome.answers, outcome.answered_at) == (1, pytest.approx(5.7))
