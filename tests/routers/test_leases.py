"""Streams, how leases end, accounting, closing, reconfiguring, and what is counted."""

from __future__ import annotations

import pytest

from routers.api.actions import Dispatch, Evict, Reject
from routers.api.errors import BadRequestEvent, BadSettings
from routers.api.events import Close, Reconfigure
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import DispatcherSettings, GenerationParameters


def requests_of(*actions):
    return [[request for request, _ in each.rows] for each in actions if isinstance(each, Dispatch)]


# ---- streams


def test_stream_lease_takes_one_row_and_its_length(start):
    core = start(generation=GenerationParameters())
    core.streams("s", capacity=100)
    sent = core.arrive(1, 40) + core.arrive(2, 60) + core.arrive(3, 1)
    assert requests_of(*sent) == [[1], [2]]
    assert core.dispatcher.snapshot(0.0).replicas[0].held == 100


def test_stream_progress_makes_room_and_takes_it(start):
    core = start(generation=GenerationParameters())
    core.streams("s", capacity=100)
    (first,) = core.arrive(1, 90)
    assert core.arrive(2, 20) == []
    assert core.moves(first, 90, 1, held=80.5) == []
    assert requests_of(*core.moves(first, 90, 1, held=80.0)) == [[2]]
    assert core.dispatcher.snapshot(0.0).replicas[0].held == 100


# ---- ends of leases


def test_busy_rows_return_to_their_places_and_wait_as_told(start):
    core = start(max_size=2)
    core.replicas("a", capacity=2)
    first, second = core.arrive(1, 10) + core.arrive(2, 10)
    core.arrive(3, 10)
    assert core.close(second, LeaseEnd.BUSY, retry_in_s=0.5) == []
    assert core.close(first, LeaseEnd.BUSY, retry_in_s=0.2) == []
    assert core.timer == pytest.approx(0.5)
    assert requests_of(*core.tick(0.5)) == [[1, 2], [3]]


def test_busy_replica_is_tried_again_when_another_of_its_leases_closes(start):
    core = start()
    core.replicas("a", capacity=2)
    first, second = core.arrive(1) + core.arrive(2)
    core.close(second, LeaseEnd.BUSY, retry_in_s=9.0)
    assert requests_of(*core.close(first, at=0.1)) == [[2]]


def test_busy_without_a_time_does_not_spin(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    assert core.close(lease, LeaseEnd.BUSY) == []
    assert core.timer > core.now


def test_busy_is_not_counted_as_an_attempt(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1, retryable=False)
    for attempt in range(1, 4):
        core.close(lease, LeaseEnd.BUSY)
        (lease,) = core.tick(float(attempt))
    assert lease.rows == ((1, 0),)


def test_lost_rows_are_retried_one_by_one_on_another_replica(start):
    core = start()
    core.arrive(1)
    core.arrive(2)
    (lease,) = core.replicas("a")
    core.replicas("a", "b")
    retried = core.close(lease, LeaseEnd.LOST)
    assert requests_of(*retried, *core.drain()) == [[1], [2]]
    assert retried[0].replica_id == "b"


def test_lost_rows_wait_for_the_other_replica_but_hold_up_nobody(start):
    core = start()
    (lease, _) = core.replicas("a", "b") + core.arrive(1) + core.arrive(2)
    assert lease.replica_id == "a"
    core.close(lease, LeaseEnd.LOST)
    assert requests_of(*core.replicas("a", "b")) == []
    assert requests_of(*core.arrive(3)) == [[3]]


def test_only_replica_gets_a_lost_row_again_once_it_is_listed_again(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    assert core.close(lease, LeaseEnd.LOST) == []
    assert requests_of(*core.replicas("a")) == [[1]]


def test_only_replica_is_trusted_again_after_a_second(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease, LeaseEnd.LOST)
    assert requests_of(*core.tick(core.timer)) == [[1]]
    assert core.now == 1.0


def test_row_lost_twice_is_evicted(start):
    core = start()
    core.replicas("a", "b")
    (lease,) = core.arrive(1)
    (again,) = core.close(lease, LeaseEnd.LOST)
    core.opens(again)
    assert core.close(again, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]


def test_request_with_one_row_lost_for_good_leaves_whole(start):
    core = start(max_size=1)
    core.replicas("a")
    (lease,) = core.arrive(1, 10, 10, 10, retryable=False)
    assert core.close(lease, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]
    assert core.dispatcher.snapshot(0.0).waiting_rows == 0


def test_aborted_lease_is_no_sample(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.cancel(1)
    core.close(lease, LeaseEnd.ABORTED, service_s=5.0, seen=1)
    assert core.dispatcher.cost_error().samples == 0
    assert core.arrive(2)[0].predicted_s == 0.0


def test_unknown_lease_is_ignored_and_counted(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease)
    assert core.close(lease) == []
    assert core.dispatcher.snapshot(0.0).unknown_closes == 1


# ---- accounting


def test_drift_is_what_we_think_is_held_less_what_is(start):
    core = start(max_size=1)
    core.replicas("a", capacity=3)
    first, second, third = core.arrive(1) + core.arrive(2) + core.arrive(3)
    core.close(first, seen=second.lease_id, held=0)  # the third was still on its way
    assert core.dispatcher.snapshot(0.0).drift == 1
    core.close(second, seen=third.lease_id, held=1)
    assert core.dispatcher.snapshot(0.0).drift == 0


def test_silent_report_leaves_drift_as_it_was(start):
    core = start(max_size=1)
    core.replicas("a", capacity=2)
    first, second = core.arrive(1) + core.arrive(2)
    core.close(first, seen=second.lease_id, held=0)
    core.close(second, LeaseEnd.LOST)
    assert core.dispatcher.snapshot(0.0).drift == 1
    assert core.replicas("b")[0].replica_id == "b"


def test_snapshot_counts_rows_by_bucket_and_age(start):
    core = start()
    core.arrive(1, 10, 100, at=1.0)
    core.arrive(2, 10, at=2.0)
    seen = core.dispatcher.snapshot(3.0)
    assert (seen.waiting_rows, seen.waiting_requests, seen.oldest_wait_s) == (3, 2, 2.0)
    assert core.dispatcher.waiting_rows == 3
    assert seen.rows_by_bucket == ((32, 2), (128, 1), (512, 0))


# ---- closing and reconfiguring


def test_close_evicts_what_waits_and_lets_leases_finish(start):
    core = start(max_size=1)
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.arrive(2)
    assert core.step(Close()) == [Evict(2, Reason.CLOSED)]
    assert core.arrive(3) == [Reject(3, Reason.CLOSED)]
    assert core.close(lease) == []


@pytest.mark.parametrize("end", [LeaseEnd.BUSY, LeaseEnd.LOST])
def test_rows_that_come_back_to_a_closed_model_are_evicted(start, end):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.step(Close())
    assert core.close(lease, end) == [Evict(1, Reason.CLOSED)]


def test_waiting_rows_are_bucketed_anew_and_keep_their_order(start):
    core = start()
    for request_id, length in enumerate((10, 40, 20, 100, 500)):
        core.arrive(request_id, length)
    other = DispatcherSettings((50, 200), profile=((1, 1, 0.0),))
    actions = core.step(Reconfigure(other))
    assert core.take_in(actions) == [Evict(4, Reason.TOO_LONG)]
    assert requests_of(*core.replicas("a"), *core.drain()) == [[0, 1, 2], [3]]


def test_leased_row_that_is_too_long_for_new_settings_finishes_or_leaves(start):
    core = start()
    core.replicas("a", "b")
    (first,) = core.arrive(1, 500)
    (second,) = core.arrive(2, 500)
    core.step(Reconfigure(DispatcherSettings((50,))))
    assert core.close(first) == []
    assert core.close(second, LeaseEnd.BUSY) == [Evict(2, Reason.TOO_LONG)]


def test_reconfigured_model_is_open_again(start):
    core = start()
    core.step(Close())
    core.step(Reconfigure(DispatcherSettings((50,))))
    core.replicas("a")
    assert requests_of(*core.arrive(1)) == [[1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"bucket_edges": ()},
        {"bucket_edges": (0, 5)},
        {"bucket_edges": (5, 5)},
        {"bucket_edges": (8,), "max_size": 0},
        {"bucket_edges": (8,), "max_late_rows": -1},
        {"bucket_edges": (8,), "late": "never"},
    ],
)
def test_contradicting_settings_are_refused(start, wrong):
    with pytest.raises(BadSettings):
        start(**wrong)


def test_wrong_settings_leave_a_running_core_as_it_was(start):
    core = start()
    core.arrive(1)
    with pytest.raises(BadSettings):
        core.step(Reconfigure(DispatcherSettings(())))
    assert requests_of(*core.replicas("a")) == [[1]]


def test_live_id_cannot_arrive_twice(start):
    core = start()
    core.arrive(1)
    with pytest.raises(BadRequestEvent):
        core.arrive(1)
    core.cancel(1)
    assert core.arrive(1) == []


def run(start, sent_at, done_at, service_s=0.1, transport_s=0.01):
    """Two batches of one replica: the first runs from 0 to 0.1 there, the second is sent at
    `sent_at` and answered at `done_at`; what is known then."""
    core = start(max_size=1)
    core.replicas("a", capacity=2)
    (first,) = core.arrive(1, at=0.0)
    if sent_at < 0.11:
        (second,) = core.arrive(2, at=sent_at)
        core.close(first, at=0.11, service_s=0.1, transport_s=transport_s)
    else:
        core.close(first, at=0.11, service_s=0.1, transport_s=transport_s)
        (second,) = core.arrive(2, at=sent_at)
    assert isinstance(second, Dispatch)
    core.close(second, at=done_at, service_s=service_s, transport_s=transport_s)
    return core.dispatcher.snapshot(core.now)


def test_a_batch_that_starts_as_the_other_ends_leaves_no_gap(start):
    assert run(start, 0.095, 0.21).idle_gap_s == pytest.approx(0.0, abs=1e-9)


def test_a_batch_sent_too_late_leaves_a_gap(start):
    assert run(start, 0.109, 0.224).idle_gap_s == pytest.approx(0.05 * 0.014)


def test_a_batch_sent_too_early_waits_at_the_replica(start):
    seen = run(start, 0.0, 0.21)
    assert seen.early_binding_s == pytest.approx(0.05 * 0.1)
    assert seen.idle_gap_s == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_lost_while_nothing_waits(start):
    seen = run(start, 5.0, 5.11)
    assert (seen.idle_gap_s, seen.early_binding_s) == (0.0, 0.0)
