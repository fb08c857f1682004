"""A replica that stops talking gets nothing more, and what may run twice goes elsewhere once."""

from __future__ import annotations

import pytest

from routers.api.actions import Abort, Dispatch, Evict
from routers.api.events import Close, Heard, Opened, Replicas
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import GenerationParameters, HedgeParameters, SilenceParameters

TAKES_S = 0.01
OFF = HedgeParameters("off", budget=0.0)


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def rows_of(actions):
    return [[request for request, _ in each.rows] for each in sent(actions)]


def pool(start, *ids, capacity=1, rounds=0, takes_s=TAKES_S, **settings):
    """Replicas that have answered in `takes_s`; `rounds`: further answers, so that it is known."""
    settings.setdefault("hedge", OFF)
    core = start(initial_cost_s=takes_s, profile=((1, 10, takes_s),), **settings)
    core.replicas(*ids, capacity=capacity)
    for number in range(len(ids) * (1 + rounds)):
        (lease,) = sent(core.arrive(10_000 + number))
        core.close(lease, at=core.now + takes_s, service_s=takes_s, transport_s=0.001)
    return core


def silent(start, *ids, capacity=1, busy=(), rounds=0, **settings):
    """`core`, and the lease of request 1 at a replica that has just been suspended, and what that
    brought. Requests `busy` are sent to the others first."""
    core = pool(start, *ids, capacity=capacity, rounds=rounds, **settings)
    (lease,) = sent(core.arrive(1))
    actions = until_suspended(core)
    assert seen(core).replicas[ids.index(lease.replica_id)].suspended
    return core, lease, actions


def until_suspended(core, count=1):
    """Lets the timer go off until then; what that brought."""
    actions = []
    for _ in range(100):
        if seen(core).suspensions >= count:
            return actions
        actions += core.tick(core.timer)
    raise AssertionError("nobody was suspended")


def seen(core):
    return core.dispatcher.snapshot(core.now)


# ---- when


def test_a_silent_replicas_row_runs_elsewhere_once_a_bound_has_passed(start):
    core, lease, actions = silent(start, "a", "b")
    (moved,) = sent(actions)
    assert moved.rows == ((1, 0),)
    assert moved.replica_id != lease.replica_id
    assert Abort(lease.lease_id, lease.replica_id) in actions
    assert core.now == pytest.approx(2 * TAKES_S + 0.25, abs=0.002)
    assert (seen(core).moved_rows, seen(core).retries) == (1, 1)


def test_patience_is_twice_what_batches_take_at_most(start):
    patient = SilenceParameters(least_s=0.001)
    core = pool(start, "a", "b", rounds=20, silence=patient)
    began = core.now
    core.arrive(1)
    until_suspended(core)
    # never sooner than the watch for stalls of this process: far overdue, and 0.1 s
    assert core.now - began == pytest.approx(3 * TAKES_S + 0.1, abs=0.002)


def test_slow_batches_are_waited_for_longer(start):
    hedge = HedgeParameters("off", budget=0.0, min_samples=10)
    core = pool(start, "a", "b", rounds=5, hedge=hedge)
    for number in range(40):
        (lease,) = sent(core.arrive(100 + number))
        core.close(lease, at=core.now + 30 * TAKES_S, service_s=TAKES_S)
    began = core.now
    core.arrive(1)
    until_suspended(core)
    assert core.now - began == pytest.approx(60 * TAKES_S, rel=0.1)


@pytest.mark.interpreted
def test_patience_has_an_upper_bound_but_never_below_twice_the_prediction(start):
    bounded = SilenceParameters(most_s=0.3)
    core = pool(start, "a", "b", silence=bounded)
    core.dispatcher._hedger.slowness.ratio = lambda lease, quantile: 60.0
    began = core.now
    core.arrive(1)
    until_suspended(core)
    assert core.now - began == pytest.approx(0.3, abs=0.002)

    slow = pool(start, "a", "b", takes_s=1.0, silence=SilenceParameters(most_s=0.25))
    began = slow.now
    slow.arrive(1)
    until_suspended(slow)
    assert slow.now - began >= 2.0


def test_a_fixed_time_is_used_as_it_is(start):
    core = pool(start, "a", "b", silence=SilenceParameters(fixed_s=2.0))
    began = core.now
    core.arrive(1)
    until_suspended(core)
    assert core.now - began == pytest.approx(2.0, abs=0.001)


def test_off_means_never(start):
    core = pool(start, "a", "b", silence=SilenceParameters(mode="off"))
    core.arrive(1, timeout_s=60.0)
    for _ in range(50):
        core.tick(core.now + 1.0)
    assert seen(core).suspensions == 0


def test_what_a_first_batch_takes_is_not_known(start):
    core = start(initial_cost_s=TAKES_S, hedge=OFF)
    core.replicas("a", "b")
    core.arrive(1)
    until_suspended(core)
    assert core.now == pytest.approx(10.0, abs=0.1)


def test_a_replica_that_says_something_is_not_silent(start):
    core = pool(start, "a", "b", silence=SilenceParameters(fixed_s=0.5))
    (lease,) = sent(core.arrive(1))
    for _ in range(10):
        core.step(Heard(lease.replica_id), core.now + 0.3)
        core.tick(core.now)
    assert seen(core).suspensions == 0


def test_other_gateways_batches_are_waited_for_as_well(start):
    core = pool(start, "a", "b", rounds=40, silence=SilenceParameters(least_s=0.001))
    (lease,) = sent(core.arrive(1))
    core.close(lease, at=core.now + TAKES_S, service_s=TAKES_S, inflight=40, seen=lease.lease_id)
    core.replicas(lease.replica_id)
    began = core.now
    core.arrive(2)
    core.replicas("a", "b")
    until_suspended(core)
    assert core.now - began == pytest.approx(2 * 41 * TAKES_S, rel=0.1)


# ---- false alarms


@pytest.mark.parametrize(("late_s", "suspensions"), [(0.05, 1), (0.2, 0), (5.0, 0)])
def test_a_look_that_comes_late_means_that_this_process_stood_still(start, late_s, suspensions):
    on_time = pool(start, "a", "b")
    on_time.arrive(1)
    until_suspended(on_time)
    core = pool(start, "a", "b")
    (lease,) = sent(core.arrive(1))
    while core.timer < on_time.now:
        core.tick(core.timer)
    core.tick(on_time.now + late_s)
    assert seen(core).suspensions == suspensions
    core.close(lease, at=core.now + 0.01, service_s=TAKES_S)  # what had come meanwhile is read
    core.tick(core.now + 1.0)
    assert seen(core).suspensions == suspensions


def test_after_a_stall_it_is_looked_at_again_in_a_moment(start):
    on_time = pool(start, "a", "b")
    on_time.arrive(1)
    until_suspended(on_time)
    core = pool(start, "a", "b")
    core.arrive(1)
    while core.timer < on_time.now:
        core.tick(core.timer)
    core.tick(on_time.now + 5.0)
    until_suspended(core)
    assert core.now == pytest.approx(on_time.now + 5.1)


def test_a_stall_before_it_was_watched_does_not_suspend_it_either(start):
    core = pool(start, "a", "b")
    core.arrive(1)
    core.tick(core.now + 5.0)
    assert seen(core).suspensions == 0


def test_the_last_healthy_replica_is_not_suspended(start):
    core = pool(start, "a", "b")
    core.arrive(1)
    core.arrive(2)
    for _ in range(100):
        core.tick(core.now + 0.05)
    assert seen(core).suspensions <= 1
    assert not all(replica.suspended for replica in seen(core).replicas)


def test_a_replica_alone_is_never_suspended(start):
    core = pool(start, "a")
    core.arrive(1)
    for _ in range(100):
        core.tick(core.now + 0.05)
    assert seen(core).suspensions == 0


def test_a_suspended_replica_gets_work_again_when_the_others_have_gone(start):
    core, lease, actions = silent(start, "a", "b", capacity=2)
    for each in sent(actions):
        core.close(each, service_s=TAKES_S)
    core.replicas(lease.replica_id, capacity=2)
    (again,) = sent(core.arrive(2))
    assert again.replica_id == lease.replica_id


# ---- what it gets


def test_it_gets_no_new_work_until_it_speaks(start):
    core, lease, actions = silent(start, "a", "b", capacity=2)
    core.close(sent(actions)[0], service_s=TAKES_S)
    others = [each for n in range(2, 6) for each in sent(core.arrive(n))]
    assert {each.replica_id for each in others} == {"a", "b"} - {lease.replica_id}
    core.step(Heard(lease.replica_id), core.now)
    assert not seen(core).replicas[0 if lease.replica_id == "a" else 1].suspended


@pytest.mark.parametrize("said", ["answer", "start", "word"])
def test_anything_it_says_lifts_it(start, said):
    core, lease, _ = silent(start, "a", "b")
    if said == "answer":
        core.close(lease, service_s=TAKES_S)
    elif said == "start":
        core.step(Opened(lease.lease_id))
    else:
        core.step(Heard(lease.replica_id))
    assert not any(replica.suspended for replica in seen(core).replicas)


def test_one_whose_last_lease_is_given_up_is_probed_with_copies(start):
    core, lease, actions = silent(start, "a", "b")
    core.close(sent(actions)[0], service_s=TAKES_S)
    core.close(lease, LeaseEnd.LOST)
    (replica,) = [r for r in seen(core).replicas if r.replica_id == lease.replica_id]
    assert replica.ejected
    core.tick(core.now + 1.5)
    first, probe = sent(core.arrive(2))
    assert (probe.copy_of, probe.replica_id) == (first.lease_id, lease.replica_id)
    core.close(probe, at=core.now + TAKES_S, service_s=TAKES_S)
    (replica,) = [r for r in seen(core).replicas if r.replica_id == lease.replica_id]
    assert not replica.ejected


# ---- what becomes of its rows


def test_a_row_that_may_not_run_twice_stays(start):
    core = pool(start, "a", "b")
    core.arrive(1, retryable=False)
    assert sent(until_suspended(core)) == []
    assert (seen(core).moved_rows, seen(core).leased_rows) == (0, 1)


def test_a_row_is_moved_once(start):
    core, lease, actions = silent(start, "a", "b", "c")
    core.step(Heard(lease.replica_id))
    assert sent(until_suspended(core, 2)) == []  # the other one
    core.close(sent(actions)[0], LeaseEnd.LOST)
    assert seen(core).moved_rows == 1


def test_rows_of_the_batch_that_ran_travel_alone_and_staged_ones_do_not(start):
    core = pool(start, "a", "b", capacity=2, fixed_size=2)
    core.replicas("a", capacity=2)
    core.open.clear()
    began = core.now
    actions = [each for request in (1, 2, 3) for each in core.arrive(request)]
    actions += core.tick(began + 0.95 * TAKES_S)
    assert rows_of(actions) == [[1], [2, 3]]
    core.replicas("a", "b", capacity=2)
    moved = sent(until_suspended(core))
    while seen(core).waiting_rows:
        moved += sent(core.close(moved[-1], at=core.now + TAKES_S, service_s=TAKES_S))
    assert sorted(rows_of(moved)) == [[1], [2, 3]]
    assert (seen(core).moved_rows, seen(core).retries) == (3, 1)


def test_the_late_answer_is_taken_while_the_row_still_waits(start):
    core = pool(start, "a", "b", silence=SilenceParameters(fixed_s=0.5))
    (one,) = sent(core.arrive(1))
    began = core.now
    core.tick(began + 3.1 * TAKES_S)
    core.tick(began + 0.495)
    (two,) = sent(core.arrive(2))
    assert sent(core.tick(began + 0.501)) == []
    assert seen(core).suspensions == 1
    assert seen(core).waiting_rows == 1
    core.close(one, service_s=0.3)
    assert (seen(core).waiting_rows, seen(core).leased_rows) == (0, 1)
    assert seen(core).late_rows_used == 1
    assert sent(core.close(two)) == []


def test_the_late_answer_wins_and_the_second_run_is_dropped(start):
    core, lease, actions = silent(start, "a", "b")
    (second,) = sent(actions)
    assert core.close(lease, service_s=0.3) == [Abort(second.lease_id, second.replica_id)]
    assert seen(core).late_rows_used == 1
    core.close(second, LeaseEnd.ABORTED)


def test_the_late_answer_is_ignored_once_the_second_run_has_answered(start):
    core, lease, actions = silent(start, "a", "b")
    core.close(sent(actions)[0], service_s=TAKES_S)
    assert sent(core.close(lease, service_s=0.3)) == []
    assert seen(core).late_rows_used == 0


def test_a_caller_who_leaves_takes_the_row_along(start):
    core, lease, actions = silent(start, "a", "b")
    (second,) = sent(actions)
    assert core.cancel(1) == [Abort(second.lease_id, second.replica_id)]
    core.close(lease, service_s=0.3)
    assert seen(core).late_rows_used == 0


def test_a_second_loss_is_the_end(start):
    core, lease, actions = silent(start, "a", "b")
    (again,) = sent(actions)
    core.opens(again)
    ends = core.close(again, LeaseEnd.LOST)
    assert [each.reason for each in ends if isinstance(each, Evict)] == [Reason.LOST]
    core.close(lease, LeaseEnd.LOST)


def test_rows_in_a_copy_elsewhere_are_not_moved_until_that_fails(start):
    hedge = HedgeParameters(fixed_delay_s=0.02, budget=10.0)
    core = pool(start, "a", "b", "c", hedge=hedge)
    core.arrive(1)
    actions = until_suspended(core)
    (copy,) = sent(actions)
    assert copy.copy_of
    assert seen(core).moved_rows == 0
    (moved,) = sent(core.close(copy, LeaseEnd.BUSY))
    assert moved.rows == ((1, 0),)
    assert seen(core).moved_rows == 1


def test_a_row_that_failed_in_its_copy_does_not_wait_for_a_silent_replica(start):
    hedge = HedgeParameters(fixed_delay_s=0.02, budget=10.0)
    core = pool(start, "a", "b", "c", hedge=hedge)
    core.arrive(1)
    (copy,) = sent(until_suspended(core))
    (moved,) = sent(core.close(copy, failed=(0,)))
    assert moved.rows == ((1, 0),)
    assert seen(core).moved_rows == 1


def test_the_flow_pays_once_for_what_was_moved(start):
    core, lease, actions = silent(start, "a", "b")
    core.close(sent(actions)[0], service_s=TAKES_S)
    before = seen(core).flows[0].served_s
    core.close(lease, service_s=0.3)
    assert seen(core).flows[0].served_s == before


def test_a_closed_models_rows_wait_for_their_answer_where_they_are(start):
    core = pool(start, "a", "b")
    (lease,) = sent(core.arrive(1))
    core.step(Close())
    assert [each for each in until_suspended(core) if isinstance(each, Evict)] == []
    assert core.close(lease, service_s=0.3) == []


# ---- generation


def generating(start):
    core = start(generation=GenerationParameters(), hedge=OFF)
    core.streams("a", "b", capacity=1000)
    return core


def test_generation_that_has_not_begun_moves(start):
    core = generating(start)
    (lease,) = sent(core.generate(1, 100, 10))
    actions = until_suspended(core)
    (moved,) = sent(actions)
    assert moved.replica_id != lease.replica_id
    assert Abort(lease.lease_id, lease.replica_id) in actions
    core.close(lease, LeaseEnd.ABORTED)


def test_generation_that_has_begun_stays(start):
    core = generating(start)
    first = sent(core.generate(1, 100, 10))[0]
    core.moves(first, 100, 1)
    for _ in range(40):
        core.tick(core.now + 0.25)
    assert seen(core).suspensions == 0
    again = sent(core.generate(2, 100, 10) + core.generate(3, 100, 10))
    waits = [each for each in again if each.replica_id == first.replica_id]
    for each in again:
        if each.replica_id != first.replica_id:
            core.moves(each, 100, 1)
    assert len(waits) == 1
    moved = sent(until_suspended(core))
    assert [each.rows for each in moved] == [waits[0].rows]


def test_a_stream_replica_that_shows_signs_of_life_is_not_silent(start):
    core = generating(start)
    (lease,) = sent(core.generate(1, 100, 10))
    for _ in range(40):
        core.step(Heard(lease.replica_id), core.now + 0.2)
        core.tick(core.now)
    assert seen(core).suspensions == 0


def test_a_replica_listed_anew_is_another_connection(start):
    core, _, actions = silent(start, "a", "b")
    core.close(sent(actions)[0], service_s=TAKES_S)
    core.step(Replicas(()))
    core.replicas("a", "b")
    assert not any(replica.suspended for replica in seen(core).replicas)
