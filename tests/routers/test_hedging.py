"""When a batch is raced by a copy elsewhere, and how races end."""

import pytest

from routers.api.actions import Abort, Dispatch, Evict
from routers.api.events import Opened
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import HedgeParameters


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def pool(start, *ids, capacity=1, slots_used=True, **hedge):
    """Replicas that have each answered some batches of one row in 10 ms; half a second in."""
    hedge = {"mode": "hedge", "max_utilisation": 1.0, "min_samples": 1, "budget": 1.0} | hedge
    core = start(hedge=HedgeParameters(**hedge))
    core.replicas(*ids, capacity=capacity)
    for request_id in range(-4 * len(ids), 0):
        (lease,) = sent(core.arrive(request_id, at=core.now))
        core.close(lease, at=core.now + 0.01, service_s=0.01)
    core.now = 0.5
    return core


def straggling(start, *ids, **hedge):
    """Request 1 runs where it is not answered in time; its lease, and the copy that follows."""
    core = pool(start, *ids, **hedge)
    (lease,) = core.arrive(1)
    (copy,) = sent(core.tick(core.timer))
    return core, lease, copy


# ---- when


def test_a_straggler_is_copied_to_another_replica(start):
    core, lease, copy = straggling(start, "a", "b")
    assert (copy.rows, copy.copy_of) == (lease.rows, lease.lease_id)
    assert copy.replica_id != lease.replica_id
    assert core.now == pytest.approx(0.51, abs=0.001)


def test_nothing_is_copied_while_hedging_is_off(start):
    core = pool(start, "a", "b", mode="off")
    core.arrive(1)
    assert sent(core.tick(0.6)) == []


def test_a_bucket_that_was_not_measured_enough_is_not_hedged(start):
    core = pool(start, "a", "b", min_samples=9)
    core.arrive(1)
    assert sent(core.tick(0.6)) == []


def test_a_fixed_delay_needs_no_samples(start):
    core = pool(start, "a", "b", min_samples=1000, fixed_delay_s=0.03)
    core.arrive(1)
    assert sent(core.tick(0.5299)) == []
    assert len(sent(core.tick(0.5301))) == 1


def test_a_batch_is_never_hedged_within_a_millisecond(start):
    core = pool(start, "a", "b", fixed_delay_s=0.0)
    core.arrive(1)
    assert core.timer == pytest.approx(0.501)


def test_a_straggler_waits_for_a_replica_to_become_free(start):
    core = pool(start, "a", "b")
    _, other = core.arrive(1) + core.arrive(2)
    assert sent(core.tick(0.515)) == []
    (copy,) = sent(core.close(other, at=0.52, service_s=0.02))
    assert copy.rows == ((1, 0),)


def test_rows_that_wait_go_before_copies(start):
    core = pool(start, "a", "b")
    _, other = core.arrive(1) + core.arrive(2)
    core.arrive(3, at=0.515)
    (next_one,) = sent(core.close(other, at=0.52, service_s=0.02))
    assert next_one.rows == ((3, 0),)


def test_above_its_utilisation_nothing_is_hedged(start):
    core = pool(start, "a", "b", max_utilisation=0.01)
    core.arrive(1)
    assert sent(core.tick(0.6)) == []


def test_without_budget_nothing_is_hedged(start):
    core = pool(start, "a", "b", budget=0.0)
    core.arrive(1)
    assert sent(core.tick(0.6)) == []


def test_a_copy_that_could_not_be_back_in_time_is_not_sent(start):
    core = pool(start, "a", "b")
    core.arrive(1, slo_s=0.015, timeout_s=5.0)
    assert sent(core.tick(0.6)) == []


def test_what_may_not_run_twice_is_not_copied_but_its_neighbours_are(start):
    core = pool(start, "a", "b")
    busy = core.arrive(1) + core.arrive(2)
    core.arrive(3, retryable=False)
    core.arrive(4)
    (both,) = sent(core.close(busy[0], at=0.505, service_s=0.005))
    assert both.rows == ((3, 0), (4, 0))
    core.close(busy[1], at=0.505, service_s=0.005)
    (copy,) = sent(core.tick(0.6))
    assert copy.rows == ((4, 0),)


def test_a_batch_staged_behind_a_straggler_is_copied_too_when_its_own_moment_has_come(start):
    core = pool(start, "a", "b", "c", capacity=2)
    running = core.arrive(1) + core.arrive(2) + core.arrive(3)
    (staged,) = core.arrive(4, at=0.51)
    copied = []
    for lease in running:
        if lease.replica_id != staged.replica_id:
            copied += sent(core.close(lease, at=0.5101, service_s=0.0101))
    copied += sent(core.tick(0.515))
    assert [copy.replica_id for copy in copied] != [staged.replica_id]
    assert [copy.rows for copy in copied] != [staged.rows]
    copied += sent(core.tick(0.5205))
    assert [copy.copy_of for copy in copied][1:] == [staged.lease_id]


def test_nothing_is_staged_behind_what_is_being_raced(start):
    core, lease, copy = straggling(start, "a", "b", capacity=2)
    core.arrive(2)
    later = sent(core.tick(core.now + 0.02))
    assert {each.replica_id for each in later} <= {copy.replica_id}
    assert core.dispatcher.snapshot(core.now).replicas[0].unhealthy == (lease.replica_id == "a")


def test_a_copy_is_never_copied_again(start):
    core, lease, _ = straggling(start, "a", "b", "c")
    assert sent(core.tick(core.now + 1.0)) == []
    core.close(lease, LeaseEnd.LOST)
    assert sent(core.tick(core.now + 1.0)) == []


def test_a_copy_pays_its_cost_and_earns_nothing(start):
    core = pool(start, "a", "b")
    core.arrive(1)
    before = core.dispatcher.snapshot(core.now).budget_s
    core.tick(core.timer)
    assert core.dispatcher.snapshot(core.now).budget_s == pytest.approx(before - 0.01, rel=0.1)


# ---- how it ends


def test_the_first_answer_wins_and_the_loser_is_aborted(start):
    core, lease, copy = straggling(start, "a", "b")
    assert core.close(copy) == [Abort(lease.lease_id, lease.replica_id)]
    assert core.dispatcher.snapshot(core.now).hedges_won == 1
    assert core.dispatcher.snapshot(core.now).leased_rows == 0


def test_a_late_copy_is_aborted_and_wins_nothing(start):
    core, lease, copy = straggling(start, "a", "b")
    assert core.close(lease) == [Abort(copy.lease_id, copy.replica_id)]
    core.close(copy, LeaseEnd.ABORTED)
    assert core.dispatcher.snapshot(core.now).hedges_won == 0


def test_the_losers_slot_stays_taken_until_it_has_closed(start):
    core, lease, copy = straggling(start, "a", "b")
    core.close(copy)
    (two,) = core.arrive(2)
    assert two.replica_id == copy.replica_id
    assert core.arrive(3) == []
    (three,) = sent(core.close(lease))
    assert three.replica_id == lease.replica_id


@pytest.mark.parametrize("end", [LeaseEnd.LOST, LeaseEnd.BUSY])
@pytest.mark.parametrize("first", ["lease", "copy"])
def test_one_that_fails_leaves_the_rows_to_the_other(start, end, first):
    core, lease, copy = straggling(start, "a", "b")
    fails, stays = (lease, copy) if first == "lease" else (copy, lease)
    assert not [each for each in core.close(fails, end) if isinstance(each, Evict)]
    assert core.dispatcher.snapshot(core.now).leased_rows == 1
    assert core.dispatcher.snapshot(core.now).waiting_rows == 0
    core.close(stays)
    assert core.dispatcher.snapshot(core.now).leased_rows == 0


def test_rows_that_both_have_lost_are_retried_once(start):
    core, lease, copy = straggling(start, "a", "b")
    core.close(lease, LeaseEnd.LOST)
    core.close(copy, LeaseEnd.LOST)
    assert core.dispatcher.snapshot(core.now).waiting_rows == 1
    (again,) = sent(core.replicas("a", "b"))
    assert again.rows == ((1, 0),)
    assert core.close(again, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]


def test_cancelling_drops_both(start):
    core, lease, copy = straggling(start, "a", "b")
    assert set(core.cancel(1)) == {
        Abort(lease.lease_id, lease.replica_id),
        Abort(copy.lease_id, copy.replica_id),
    }


def test_expiry_drops_both(start):
    core = pool(start, "a", "b")
    core.arrive(1, slo_s=1.0, timeout_s=1.0)
    assert len(sent(core.tick(0.52))) == 1
    actions = core.tick(1.5)
    assert Evict(1, Reason.EXPIRED) in actions
    assert len([each for each in actions if isinstance(each, Abort)]) == 2


def test_a_copy_that_came_back_unstarted_is_paid_back_and_sent_again(start):
    core, lease, copy = straggling(start, "a", "b", "c")
    after = core.dispatcher.snapshot(core.now).budget_s
    (again,) = sent(core.close(copy, LeaseEnd.BUSY, retry_in_s=5.0))
    assert again.copy_of == lease.lease_id
    assert again.replica_id not in (lease.replica_id, copy.replica_id)
    assert core.dispatcher.snapshot(core.now).budget_s == pytest.approx(after)


def test_a_winner_of_some_rows_leaves_the_others_where_they_are(start):
    core = pool(start, "a", "b")
    busy = core.arrive(1) + core.arrive(2)
    core.arrive(3, retryable=False)
    core.arrive(4)
    (both,) = sent(core.close(busy[0], at=0.505, service_s=0.005))
    core.close(busy[1], at=0.505, service_s=0.005)
    (copy,) = sent(core.tick(0.6))
    assert core.close(copy) == []
    assert core.dispatcher.snapshot(core.now).leased_rows == 1
    core.close(both)
    assert core.dispatcher.snapshot(core.now).leased_rows == 0


# ---- tied


def tied(start):
    """Request 3 is staged behind a running batch on one replica, and tied to the other."""
    core = pool(start, "a", "b", capacity=2, mode="tied", fixed_delay_s=5.0)
    core.arrive(1)
    core.arrive(2)
    staged, copy = core.arrive(3, at=0.511)
    return core, staged, copy


def test_what_is_staged_is_tied_to_a_copy_in_another_free_slot(start):
    core, staged, copy = tied(start)
    assert staged.tied
    assert copy.tied
    assert copy.copy_of == staged.lease_id
    assert core.dispatcher.snapshot(core.now).ties == 1


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_to_start_cancels_the_other(start, first):
    core, *pair = tied(start)
    before = core.dispatcher.snapshot(core.now).budget_s
    winner, loser = pair[first], pair[1 - first]
    assert core.step(Opened(winner.lease_id)) == [Abort(loser.lease_id, loser.replica_id)]
    assert core.step(Opened(loser.lease_id)) == []
    core.close(loser, LeaseEnd.ABORTED)
    assert core.dispatcher.snapshot(core.now).budget_s >= before
    core.close(winner)
    assert core.dispatcher.snapshot(core.now).leased_rows == 2


def test_losing_the_one_that_started_is_losing_the_rows(start):
    core, _, copy = tied(start)
    core.step(Opened(copy.lease_id))
    core.close(copy, LeaseEnd.LOST)
    assert core.dispatcher.snapshot(core.now).waiting_rows == 1


def test_nothing_is_tied_while_an_idle_replica_takes_it(start):
    core = pool(start, "a", "b", capacity=2, mode="tied", fixed_delay_s=5.0)
    (one,) = core.arrive(1)
    (two,) = core.arrive(2)
    assert not one.tied
    assert not two.tied


# ---- what it costs


def test_a_copy_costs_what_it_took(start):
    core, lease, copy = straggling(start, "a", "b")
    before = core.dispatcher.snapshot(core.now).budget_s
    core.close(lease)
    core.close(copy, service_s=0.025)
    assert core.dispatcher.snapshot(core.now).budget_s == pytest.approx(before - 0.015, rel=0.02)


def test_a_copy_that_stalls_costs_three_times_its_prediction(start):
    core, lease, copy = straggling(start, "a", "b")
    before = core.dispatcher.snapshot(core.now).budget_s
    core.close(lease)
    core.close(copy, service_s=0.3)
    assert core.dispatcher.snapshot(core.now).budget_s == pytest.approx(before - 0.02, rel=0.02)


def test_what_was_never_started_makes_its_copy_no_extra_work(start):
    core, *pair = tied(start)
    before = core.dispatcher.snapshot(core.now).budget_s
    core.step(Opened(pair[1].lease_id))
    core.close(pair[1], service_s=0.02)
    core.close(pair[0], LeaseEnd.ABORTED)
    after = core.dispatcher.snapshot(core.now).budget_s
    assert after == pytest.approx(before, abs=0.011)


def test_the_winner_of_a_tie_may_still_straggle_and_be_copied_once(start):
    core = pool(start, "a", "b", "c", capacity=2, mode="tied", fixed_delay_s=0.05)
    running = core.arrive(1) + core.arrive(2) + core.arrive(3)
    staged, winner = core.arrive(4, at=0.511)
    for lease in running:
        core.close(lease, at=0.512, service_s=0.01)
    core.step(Opened(winner.lease_id))
    core.close(staged, LeaseEnd.ABORTED)
    (copy,) = sent(core.tick(0.57))
    assert (copy.rows, copy.copy_of) == (((4, 0),), winner.lease_id)
    assert sent(core.tick(1.0)) == []
