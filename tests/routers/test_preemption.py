"""More urgent rows take the place of less urgent work that was sent and has not been started."""

import pytest

from routers.api.actions import Abort, Dispatch
from routers.api.events import Opened
from routers.api.requests import LeaseEnd
from routers.api.settings import GenerationParameters


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def full(start, staged=2, **settings):
    """A replica of two slots runs a batch of priority 1; behind it stands one of `staged`."""
    core = start(max_size=1, **settings)
    core.replicas("a", capacity=2)
    (running,) = sent(core.arrive(1, priority=1))
    (behind,) = sent(core.arrive(2, priority=staged))
    return core, running, behind


def test_an_urgent_row_is_sent_in_the_place_of_a_staged_less_urgent_one(start):
    core, _, staged = full(start)
    (urgent,) = sent(core.arrive(3, priority=0))
    assert urgent.rank < staged.rank
    assert core.dispatcher.snapshot(core.now).evictions == 1
    assert core.dispatcher.snapshot(core.now).replicas[0].held == 3


def test_what_was_evicted_goes_next_and_blocks_nobody(start):
    core, running, staged = full(start)
    (urgent,) = sent(core.arrive(3, priority=0))
    assert core.close(staged, LeaseEnd.BUSY, retry_in_s=5.0) == []
    (again,) = sent(core.close(running))
    assert again.rows == staged.rows
    core.close(urgent)


@pytest.mark.parametrize("priority", [1, 2])
def test_only_what_is_less_urgent_is_evicted(start, priority):
    core, _, _ = full(start, staged=1)
    assert core.arrive(3, priority=priority) == []


def test_only_one_more_than_there_are_slots_is_sent(start):
    core, _, _ = full(start)
    assert len(sent(core.arrive(3, priority=0))) == 1
    assert core.arrive(4, priority=0) == []


def test_what_has_started_stays(start):
    core, _, staged = full(start)
    core.step(Opened(staged.lease_id))
    assert core.arrive(3, priority=0) == []


def test_a_replica_of_one_slot_has_nothing_to_give_up(start):
    core = start(max_size=1)
    core.replicas("a", capacity=1)
    core.arrive(1, priority=2)
    assert core.arrive(2, priority=0) == []


def test_late_work_gives_way_to_work_on_time(start):
    core = start(max_size=1, initial_cost_s=0.01)
    core.replicas("a", capacity=2)
    core.arrive(1)
    (late,) = sent(core.arrive(2, slo_s=0.0))
    assert late.rank[0] == 1
    assert len(sent(core.arrive(3))) == 1


def test_late_rows_push_nobody_out(start):
    core, _, _ = full(start, initial_cost_s=0.01)
    assert core.arrive(3, priority=0, slo_s=0.0) == []


def test_a_priority_whose_turn_has_come_is_not_evicted(start):
    core = start(max_size=1, ageing_s=1.0)
    core.replicas("a", capacity=2)
    first, _ = sent(core.arrive(1, at=0.0)) + sent(core.arrive(2))
    core.arrive(3, priority=2, at=0.1)
    for request_id in (4, 5, 6):
        core.arrive(request_id, at=0.1)
    (aged,) = sent(core.close(first, at=2.0))
    assert aged.rows == ((3, 0),)
    assert core.dispatcher.snapshot(core.now).evictions == 0


# ---- streams


def stream(start, **settings):
    core = start(preempt_streams=True, generation=GenerationParameters(), **settings)
    core.streams("s", capacity=100)
    leases = sent(core.arrive(1, 50, priority=2)) + sent(core.arrive(2, 50, priority=2))
    return core, leases


def test_the_stream_that_began_last_is_stopped_for_an_urgent_row_and_goes_on_later(start):
    core, (first, second) = stream(start)
    assert core.arrive(3, 40, priority=0) == [Abort(second.lease_id, "s")]
    (urgent,) = sent(core.close(second, LeaseEnd.ABORTED))
    assert urgent.rows == ((3, 0),)
    (again,) = sent(core.close(urgent))
    assert again.rows == second.rows
    core.close(first)


def test_one_is_stopped_at_a_time(start):
    core, _ = stream(start)
    core.arrive(3, 40, priority=0)
    assert core.arrive(4, 40, priority=0) == []
    assert core.dispatcher.snapshot(core.now).preempted == 1


def test_nothing_is_stopped_unless_that_is_allowed(start):
    core = start(generation=GenerationParameters())
    core.streams("s", capacity=100)
    core.arrive(1, 100, priority=2)
    assert core.arrive(2, 40, priority=0) == []


@pytest.mark.parametrize(("retryable", "priority"), [(False, 2), (True, 0)])
def test_what_may_not_run_again_or_is_as_urgent_is_not_stopped(start, retryable, priority):
    core = start(preempt_streams=True, generation=GenerationParameters())
    core.streams("s", capacity=100)
    core.arrive(1, 100, priority=priority, retryable=retryable)
    assert core.arrive(2, 40, priority=0) == []


def test_nobody_is_stopped_twice(start):
    core = start(preempt_streams=True, generation=GenerationParameters())
    core.streams("s", capacity=100)
    (bulk,) = sent(core.arrive(1, 100, priority=2))
    core.arrive(2, 40, priority=0)
    (urgent,) = sent(core.close(bulk, LeaseEnd.ABORTED))
    (again,) = sent(core.close(urgent))
    assert again.rows == bulk.rows
    assert core.arrive(3, 40, priority=0) == []
