"""The caller has left: what leaves, what is ignored, what is told to stop."""

import pytest

from routers.api.actions import Abort, Dispatch
from routers.api.requests import LeaseEnd
from routers.api.settings import GenerationParameters


def requests_of(*actions):
    return [[request for request, _ in each.rows] for each in actions if isinstance(each, Dispatch)]


def test_cancelled_row_leaves_the_queue_at_once(start):
    core = start()
    for request_id in (1, 2, 3):
        core.arrive(request_id)
    assert core.cancel(2) == []
    assert core.dispatcher.snapshot(0.0).waiting_rows == 2
    assert requests_of(*core.replicas("a")) == [[1, 3]]


def test_cancelled_head_does_not_hold_its_bucket_up(start):
    core = start(slo_s=1.0, initial_cost_s=0.01)
    core.arrive(0, 10, at=0.0)
    core.arrive(1, 500, at=0.0)
    (sent,) = core.replicas("a", at=0.0)
    core.arrive(2, 500, at=0.9)
    core.arrive(3, 10, at=0.9)
    core.arrive(4, 10, at=0.9)
    core.arrive(5, 10, at=0.9)
    core.cancel(1)
    assert core.close(sent, at=1.0, service_s=0.01)[0].bucket == 32


def test_cancelled_place_is_free_for_another(start):
    core = start(max_queue_rows=1)
    core.arrive(1)
    core.cancel(1)
    assert core.arrive(2) == []


def test_cancelled_member_of_a_batch_is_ignored(start):
    core = start()
    core.arrive(1)
    core.arrive(2)
    (lease,) = core.replicas("a")
    assert core.cancel(1) == []
    assert core.dispatcher.snapshot(0.0).leased_rows == 1
    assert core.close(lease) == []


def test_batch_is_aborted_when_its_last_member_leaves(start):
    core = start()
    core.arrive(1)
    core.arrive(2)
    (lease,) = core.replicas("a")
    core.cancel(1)
    assert core.cancel(2) == [Abort(lease.lease_id, "a")]


def test_stream_is_aborted_and_keeps_its_share_until_it_closes(start):
    core = start(generation=GenerationParameters())
    core.streams("s", capacity=100)
    (lease,) = core.arrive(1, 80)
    core.arrive(2, 80)
    assert core.cancel(1) == [Abort(lease.lease_id, "s")]
    assert core.dispatcher.snapshot(0.0).replicas[0].held == 80
    assert requests_of(*core.close(lease, LeaseEnd.ABORTED)) == [[2]]


def test_request_queued_and_leased_leaves_both_places(start):
    core = start(max_size=1)
    core.replicas("a")
    (lease,) = core.arrive(1, 10, 500)
    assert core.cancel(1) == [Abort(lease.lease_id, "a")]
    assert core.dispatcher.snapshot(0.0).waiting_rows == 0


@pytest.mark.parametrize("end", list(LeaseEnd))
def test_cancelled_row_never_comes_back_from_a_lease(start, end):
    core = start()
    core.replicas("a", "b")
    (lease,) = core.arrive(1)
    core.cancel(1)
    assert core.close(lease, end) == []
    assert core.dispatcher.snapshot(0.0).waiting_rows == 0


def test_cancelled_row_that_was_returned_leaves_too(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease, LeaseEnd.BUSY, retry_in_s=1.0)
    core.cancel(1)
    assert core.tick(2.0) == []


def test_late_and_retried_rows_can_be_cancelled(start):
    """One is late, the other was lost with its replica and keeps its place."""
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1, slo_s=0.5)
    core.arrive(2, slo_s=0.5)
    core.close(lease, LeaseEnd.LOST, at=0.6)
    core.tick(0.7)
    snapshot = core.dispatcher.snapshot(0.7)
    assert (snapshot.waiting_rows, snapshot.late_rows) == (2, 1)
    core.cancel(1)
    core.cancel(2)
    assert core.tick(2.0) == []


@pytest.mark.parametrize("request_id", [1, 2])
def test_cancelling_twice_or_what_never_was_does_nothing(start, request_id):
    core = start()
    core.arrive(1)
    core.cancel(1)
    assert core.cancel(request_id) == []


def test_cancelling_what_was_answered_does_nothing(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease)
    assert core.cancel(1) == []


def test_queue_of_cancelled_rows_takes_no_memory(start):
    core = start()
    core.arrive(0)
    for request_id in range(1, 400):
        core.arrive(request_id)
    for request_id in range(1, 400):
        core.cancel(request_id)  # the driver checks the heaps' sizes after each step
    assert requests_of(*core.replicas("a")) == [[0]]
