"""Rows that were on a replica when that was lost: how often they run, and what they may risk."""

from __future__ import annotations

import pytest

from routers.api.actions import Dispatch, Evict
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import HedgeParameters
from routers.shared.suspects import MAX_RUNS

HOLD_S = 20.0


def sent(actions):
    return [action for action in actions if isinstance(action, Dispatch)]


def lost_one_of_two(start, timeout_s=100.0):
    """Requests 1 and 2 shared a batch on `a`, which is gone; `b` runs."""
    core = start(max_size=2, suspect_hold_s=HOLD_S)
    core.replicas("a")
    core.arrive(1, timeout_s=timeout_s)  # a first batch has one row
    core.arrive(2, timeout_s=timeout_s)
    core.arrive(3, timeout_s=timeout_s)
    (batch,) = core.close(*core.open.values())
    assert batch.rows == ((2, 0), (3, 0))
    assert core.replicas("a", "b") == []
    core.replicas("b")
    assert core.close(batch, LeaseEnd.LOST) == []
    return core


def test_suspects_do_not_risk_the_last_replica_while_a_second_is_expected(start):
    core = lost_one_of_two(start)
    (other,) = core.arrive(4)
    assert other.replica_id == "b"  # who is not suspected is served meanwhile
    core.close(other)
    (tried,) = core.replicas("b", "c", at=4.0)
    assert tried.alone
    core.opens(tried)
    assert core.close(tried, LeaseEnd.LOST, at=4.1) == [Evict(2, Reason.LOST)]


def test_two_suspects_are_not_tried_on_both_replicas_at_once(start):
    core = lost_one_of_two(start)
    (first,) = core.replicas("b", "c")
    (second,) = core.close(first)
    assert first.rows != second.rows


def test_with_a_third_replica_two_suspects_are_tried_at_once(start):
    core = lost_one_of_two(start)
    assert len(core.replicas("b", "c", "d")) == 2


def test_a_suspect_waits_no_longer_than_the_hold(start):
    core = lost_one_of_two(start)
    assert core.timer is not None
    assert core.timer <= HOLD_S
    assert core.tick(HOLD_S - 1.0) == []
    (tried,) = core.tick(HOLD_S)
    assert tried.replica_id == "b"


def test_suspects_keep_their_place_though_their_deadline_passes_meanwhile(start):
    """Of 10 s, and the next replica takes 15: they go before what is on time."""
    core = lost_one_of_two(start)
    core.arrive(4, at=1.0)
    for number in range(5, 9):
        core.arrive(number, at=11.0, slo_s=20.0)
    assert core.tick(11.5) == []
    assert core.dispatcher.snapshot(11.5).late_rows == 0
    (tried,) = core.replicas("b", "c", at=15.0)
    assert tried.rows == ((2, 0),)


def test_what_comes_as_a_suspect_turns_late_like_everything_else(start):
    core = lost_one_of_two(start)
    core.arrive(9, suspect=True, slo_s=5.0)
    core.tick(5.0)
    assert core.dispatcher.snapshot(5.0).late_rows == 1


def test_a_lost_row_that_comes_back_unstarted_past_its_deadline_stands_among_those_on_time(start):
    core = lost_one_of_two(start)
    (tried,) = core.replicas("b", "c", at=9.0)
    core.tick(11.0)
    core.close(tried, LeaseEnd.BUSY, retry_in_s=1.0, at=12.0)
    assert core.dispatcher.snapshot(12.0).late_rows == 0


def test_a_row_that_was_late_when_its_replica_was_lost_stands_among_those_on_time(start):
    core = start(max_size=1, suspect_hold_s=HOLD_S)
    (lease,) = [*core.replicas("a", "b"), *core.arrive(1)]
    core.replicas("b")
    core.tick(11.0)
    assert core.close(lease, LeaseEnd.LOST, at=12.0) == []
    assert core.dispatcher.snapshot(12.0).late_rows == 0
    (expired,) = [each for each in core.tick(100.0) if isinstance(each, Evict)]
    assert (expired.request_id, expired.reason) == (1, Reason.EXPIRED)


def test_where_nothing_may_wait_beyond_its_deadline_suspects_may_not_either(start):
    core = start(max_size=1, suspect_hold_s=HOLD_S, late="refuse")
    (lease,) = [*core.replicas("a", "b"), *core.arrive(1)]
    core.replicas("b")
    assert core.close(lease, LeaseEnd.LOST, at=1.0) == []
    (refused,) = core.tick(10.0)
    assert (refused.request_id, refused.reason) == (1, Reason.LATE)


def test_a_suspect_waits_no_longer_than_half_of_what_it_has_left(start):
    core = lost_one_of_two(start, timeout_s=10.0)
    assert sent(core.tick(4.9)) == []
    assert len(sent(core.tick(5.0))) == 1


def test_the_only_replica_there_ever_was_is_not_waited_for(start):
    core = start(suspect_hold_s=HOLD_S)
    (lease,) = core.replicas("a") + core.arrive(1)
    core.replicas()
    core.close(lease, LeaseEnd.LOST)
    assert len(core.replicas("b")) == 1


def test_a_request_known_to_be_suspect_travels_alone_and_reports_its_start(start):
    core = start(suspect_hold_s=HOLD_S)
    core.replicas("a", "b")
    first = core.arrive(1)
    core.arrive(2, suspect=True)
    (lease,) = [each for each in core.open.values() if each.rows[0][0] == 2]
    assert lease.alone
    assert not any(each.alone for each in first)


def test_a_known_suspect_waits_for_the_replica_that_another_one_ended(start):
    core = lost_one_of_two(start)
    assert core.arrive(9, suspect=True) == []


def test_a_row_that_had_not_begun_is_no_cause_and_goes_back(start):
    core = start(max_size=1)
    core.replicas("a", "b")
    (lease,) = core.arrive(1)
    (again,) = core.close(lease, LeaseEnd.LOST)
    assert core.close(again, LeaseEnd.LOST) == []
    assert len(core.replicas("c")) == 1


def test_a_row_is_lost_with_most_runs_replicas_and_no_more(start):
    core = start(max_size=1)
    core.replicas(*"abcdef")
    (lease,) = core.arrive(1)
    for _ in range(MAX_RUNS - 1):
        (lease,) = sent(core.close(lease, LeaseEnd.LOST))
    assert core.close(lease, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_copy_counts_as_a_run(start, first):
    core = start(hedge=HedgeParameters(fixed_delay_s=0.01, budget=10.0, max_utilisation=1.0))
    core.replicas("a", "b", "c")
    for warm in range(-9, 0):  # a copy goes to replicas that have answered
        core.close(*sent(core.arrive(warm)), at=core.now + 0.01, service_s=0.01)
    (lease,) = core.arrive(1)
    (copy,) = sent(core.tick(core.now + 0.02))
    assert copy.copy_of == lease.lease_id
    pair = (lease, copy)
    assert core.close(pair[first], LeaseEnd.LOST) == []
    (third,) = sent(core.close(pair[1 - first], LeaseEnd.LOST))
    assert core.close(third, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]
