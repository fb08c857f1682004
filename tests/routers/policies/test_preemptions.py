"""What every preemption policy must keep, and in what they differ."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from routers.api.actions import Abort, Dispatch
from routers.api.errors import BadSettings
from routers.api.events import Reconfigure
from routers.api.requests import LeaseEnd
from routers.api.settings import DispatcherSettings, GenerationParameters, PolicyNames
from routers.batch.scheduler import BatchScheduler
from routers.policies.registry import PREEMPTIONS
from routers.simulation.simulator import Arrival, SimDevice, simulate
from routers.stream.scheduler import StreamScheduler

EDGES = (32, 128, 512)
PROFILE = tuple((rows, edge, 0.002 + 1e-5 * rows * edge) for rows in (1, 4, 8) for edge in EDGES)
SETTINGS = DispatcherSettings(EDGES, max_size=8, max_tokens=2048, profile=PROFILE)
GENERATION = GenerationParameters()
TAKING = [name for name in PREEMPTIONS if name != "none"]


def under(name: str, settings: DispatcherSettings = SETTINGS) -> DispatcherSettings:
    return replace(settings, policies=PolicyNames(preemption=name))


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def aborted(actions):
    return [each.lease_id for each in actions if isinstance(each, Abort)]


def asked(core, urgent: int):
    """What gives way to a row of that priority, as the policy in force says; None: nothing."""
    scheduler = core.dispatcher
    if isinstance(scheduler, StreamScheduler):
        return scheduler._preemption.stops(scheduler._first_tokens.begun, urgent)
    least = scheduler._replicas.preemptible.least_urgent()
    back = None if least is None else least.preemptible
    if back is None or not scheduler._preemption.gives_back(back.late, back.priority, urgent):
        return None
    return least


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(BadSettings, match=r"policies\.preemption must be one of least_urgent, "):
        BatchScheduler(under("best"))


# ---- batches


def full(start, name: str, *staged: int):
    """Replicas of two slots that run a batch of priority 1, and have one of these staged."""
    core = start(max_size=1, policies=PolicyNames(preemption=name))
    core.replicas(*[f"r{n}" for n, _ in enumerate(staged)], capacity=2)
    for number, _ in enumerate(staged):
        core.arrive(100 + number, priority=1)
    for number, priority in enumerate(staged):
        core.arrive(200 + number, priority=priority)
    return core


@pytest.mark.parametrize("name", PREEMPTIONS)
@pytest.mark.parametrize("urgent", [0, 1, 2])
def test_nothing_staged_gives_way_to_what_is_not_more_urgent(start, name, urgent):
    core = full(start, name, 2, 1)
    core.arrive(300, priority=urgent)
    assert core.dispatcher.snapshot(core.now).evictions == (name != "none" and urgent < 2)


@pytest.mark.parametrize("name", TAKING)
def test_of_several_replicas_the_one_with_the_least_urgent_gives_way(start, name):
    core = full(start, name, 1, 2)
    low = next(each for each in core.open.values() if each.rows[0][0] == 201)
    (urgent,) = sent(core.arrive(300, priority=0))
    assert urgent.replica_id == low.replica_id


def test_under_none_what_is_staged_stays_and_the_urgent_row_waits(start):
    core = full(start, "none", 2)
    assert core.arrive(300, priority=0) == []
    (first, *_) = core.open.values()
    (went,) = sent(core.close(first))
    assert went.rows == ((300, 0),)


# ---- streams


def streaming(start, name: str, *priorities: int, room: int = 100, **more):
    """A stream replica that these fill in turn, one a second."""
    each = room // len(priorities)
    core = start(generation=GENERATION, preempt_streams=True, policies=PolicyNames(preemption=name))
    core.streams("s", capacity=room)
    leases = [
        *(
            sent(core.arrive(number, each, priority=priority, at=float(number), **more))[0]
            for number, priority in enumerate(priorities)
        )
    ]
    return core, leases


@pytest.mark.parametrize(
    ("name", "stopped"), [("least_urgent", 0), ("least_work_lost", 1), ("none", None)]
)
def test_which_stream_is_stopped(start, name, stopped):
    """A bulk one has run for a second longer than a standard one."""
    core, leases = streaming(start, name, 2, 1)
    went = aborted(core.arrive(9, 40, priority=0))
    assert went == ([] if stopped is None else [leases[stopped].lease_id])


@pytest.mark.parametrize("name", TAKING)
def test_of_streams_that_are_alike_the_last_begun_is_stopped(start, name):
    core, (_, second) = streaming(start, name, 2, 2)
    assert aborted(core.arrive(9, 40, priority=0)) == [second.lease_id]


def test_where_work_lost_is_equal_the_less_urgent_stream_is_stopped(start):
    core = start(
        generation=GENERATION,
        preempt_streams=True,
        policies=PolicyNames(preemption="least_work_lost"),
    )
    core.streams("s", capacity=100)
    bulk, _ = sent(core.arrive(1, 50, priority=2)) + sent(core.arrive(2, 50, priority=1))
    assert aborted(core.arrive(9, 40, priority=0)) == [bulk.lease_id]


@pytest.mark.parametrize("name", PREEMPTIONS)
@pytest.mark.parametrize("urgent", [1, 2])
def test_no_stream_is_stopped_for_what_is_not_more_urgent(start, name, urgent):
    core, _ = streaming(start, name, 1, 1)
    assert aborted(core.arrive(9, 40, priority=urgent)) == []


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_what_may_run_once_is_offered_to_no_policy(start, name):
    core, _ = streaming(start, name, 2, 1, retryable=False)
    assert aborted(core.arrive(9, 40, priority=0)) == []
    begun = core.dispatcher._first_tokens.begun
    assert [begun.last_begun(priority) for priority in (0, 1, 2)] == [None, None, None]


@pytest.mark.parametrize("name", TAKING)
def test_one_that_was_stopped_before_is_not_stopped_again(start, name):
    core, (bulk,) = streaming(start, name, 2)
    core.arrive(8, 40, priority=0)
    (urgent,) = sent(core.close(bulk, LeaseEnd.ABORTED))
    (again,) = sent(core.close(urgent))
    assert again.rows == bulk.rows
    assert aborted(core.arrive(9, 40, priority=0)) == []


# ---- all of it


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_asking_changes_no_answer_and_nothing_else(start, name):
    for core in (full(start, name, 2, 2), streaming(start, name, 2, 1)[0]):
        before = core.dispatcher.snapshot(core.now)
        first = [asked(core, urgent) for urgent in (0, 1, 2)]
        for _ in range(3):
            assert [asked(core, urgent) for urgent in (0, 1, 2)] == first
        assert any(answer is not None for answer in first) is (name != "none")
        assert core.dispatcher.snapshot(core.now) == before


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_of_nothing_sent_nothing_is_taken(start, name):
    for generation in (None, GENERATION):
        core = start(generation=generation, policies=PolicyNames(preemption=name))
        assert [asked(core, urgent) for urgent in (0, 1, 2)] == [None, None, None]


def traffic(seed: int, count: int = 300):
    """Twice what two replicas can do, of three priorities."""
    rng, now = random.Random(seed), 0.0
    for number in range(count):
        now += rng.expovariate(1500.0)
        priority = rng.choice((0, 1, 2))
        length = rng.choice((8, 30, 90, 400))
        yield Arrival(now, (length,), 0.1, 2.0, tenant=f"t{number % 3}", priority=priority)


def pool() -> list[SimDevice]:
    return [SimDevice(f"r{n}", lambda rows, width: 0.002 + 1e-5 * rows * width) for n in range(2)]


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_every_request_ends_once_and_the_same_seed_ends_the_same(name):
    first = simulate(under(name), traffic(1), pool())
    assert all(outcome.answers + outcome.left == 1 for outcome in first.outcomes)
    for end in first.ends:
        assert (end.waiting_rows, end.leases, end.drift) == (0, 0, 0)
        assert (end.evictions > 0) is (name != "none")
    again = simulate(under(name), traffic(1), pool())
    assert [each.answered_at for each in again.outcomes] == [
        each.answered_at for each in first.outcomes
    ]


@pytest.mark.parametrize("before", PREEMPTIONS)
@pytest.mark.parametrize("after", PREEMPTIONS)
def test_it_may_change_while_batches_are_staged(start, before, after):
    core = full(start, before, 2)
    settings = core.dispatcher._requests.settings
    core.step(Reconfigure(under(after, settings)))
    core.arrive(300, priority=0)
    assert core.dispatcher.snapshot(core.now).evictions == (after != "none")
