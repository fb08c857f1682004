"""Late binding, choice of bucket and replica, batch limits, leases and their ends."""

import pytest

from routers.errors import BadRequestEvent, BadSettings
from routers.types import (
    Close,
    Dispatch,
    DispatcherSettings,
    Evict,
    LeaseEnd,
    Opened,
    Progress,
    Reason,
    Reject,
)


def requests_of(*actions):
    return [[request for request, _ in each.rows] for each in actions if isinstance(each, Dispatch)]


# ---- late binding


def test_first_idle_slot_is_filled_at_once(start):
    core = start()
    core.replicas("a")
    (sent,) = core.arrive(1, 10)
    assert (sent.replica_id, sent.rows, sent.bucket) == ("a", ((1, 0),), 32)


def test_rows_that_wait_without_a_replica_go_when_one_joins(start):
    core = start()
    assert core.arrive(1) == core.arrive(2) == []
    assert requests_of(*core.replicas("a")) == [[1, 2]]


def test_closed_lease_is_refilled_in_the_same_step(start):
    core = start()
    core.replicas("a")
    (first,) = core.arrive(1)
    core.arrive(2)
    core.arrive(3)
    assert requests_of(*core.close(first)) == [[2, 3]]


def test_second_slot_is_filled_at_once_while_nothing_is_measured(start):
    core = start()
    core.replicas("a", capacity=2)
    assert requests_of(*core.arrive(1), *core.arrive(2), *core.arrive(3)) == [[1], [2]]


def measured(start, transport_s=0.002, **settings):
    """One replica of two slots, whose batches are known to take 10 ms, is running request 1."""
    core = start(**settings)
    core.replicas("a", capacity=2)
    (lease,) = core.arrive(0, at=0.0)
    core.close(lease, at=0.01, service_s=0.01, transport_s=transport_s)
    (running,) = core.arrive(1, at=1.0)
    return core, running


def test_second_slot_is_filled_just_in_time_less_transport(start):
    core, _ = measured(start)
    assert core.arrive(2, at=1.001) == []
    assert core.timer == pytest.approx(1.008)
    assert core.arrive(3, at=1.002) == []
    assert requests_of(*core.tick(core.timer)) == [[2, 3]]


def test_just_in_time_counts_from_the_replicas_own_start(start):
    core, running = measured(start)
    core.step(Opened(running.lease_id), at=1.005)
    core.arrive(2, at=1.006)
    assert core.timer == pytest.approx(1.013)


def test_answer_before_its_prediction_is_refilled_without_waiting(start):
    core, running = measured(start)
    core.arrive(2, at=1.001)
    assert requests_of(*core.close(running, at=1.002)) == [[2]]


def test_second_slot_goes_at_once_when_the_running_batch_is_overdue(start):
    core, _ = measured(start)
    assert requests_of(*core.arrive(2, at=1.5)) == [[2]]


def test_no_timer_is_asked_for_a_slot_while_nothing_waits(start):
    core, _ = measured(start)
    assert core.timer is None or core.timer > 2.0


# ---- which bucket


def test_rows_of_one_batch_come_from_one_bucket_in_order(start):
    core = start()
    for request_id, length in enumerate((10, 400, 32, 33, 5)):
        core.arrive(request_id, length)
    (sent,) = core.replicas("a")
    assert (sent.bucket, requests_of(sent)) == (32, [[0, 2, 4]])


def test_bucket_that_fills_more_of_a_batch_goes_first(start):
    core = start(max_size=32, max_tokens=1024)  # 32 short rows make a batch, or 2 long ones
    core.arrive(1, 10)
    core.arrive(2, 10)
    core.arrive(3, 512)
    assert core.replicas("a")[0].bucket == 512


def test_packed_buckets_are_compared_by_tokens(start):
    core = start(max_size=32, max_tokens=1024, pads=False)
    for request_id in range(4):
        core.arrive(request_id, 10)
    core.arrive(9, 200)
    assert core.replicas("a")[0].bucket == 512


def test_equally_full_buckets_go_by_age(start):
    core = start(max_size=4)
    core.arrive(1, 100)
    core.arrive(2, 10)
    assert core.replicas("a")[0].bucket == 128


@pytest.mark.parametrize(("waited", "bucket"), [(0.049, 32), (0.05, 512), (0.051, 512)])
def test_bucket_passed_over_up_to_the_bound_goes_first(start, waited, bucket):
    core = start(max_passed_over_s=0.05)
    core.arrive(1, 500, at=0.0)
    core.arrive(2, 10, at=0.04)
    core.arrive(3, 10, at=0.04)
    (sent,) = core.replicas("a", at=waited)
    assert sent.bucket == bucket


def test_of_overdue_buckets_the_oldest_head_goes_first(start):
    core = start(max_passed_over_s=0.0)
    core.arrive(1, 500)
    for request_id in range(2, 6):
        core.arrive(request_id, 10)
    assert core.replicas("a")[0].bucket == 512


# ---- how many rows


@pytest.mark.parametrize(("waiting", "sizes"), [(1, [1]), (2, [2]), (4, [4]), (5, [4, 1])])
def test_batch_holds_at_most_max_size_rows(start, waiting, sizes):
    core = start(max_size=4)
    for request_id in range(waiting):
        core.arrive(request_id)
    sent = core.replicas("a") + core.drain()
    assert [len(each.rows) for each in sent] == sizes


@pytest.mark.parametrize(("max_tokens", "size"), [(89, 2), (90, 3), (91, 3)])
def test_padded_tokens_of_a_batch_are_bounded(start, max_tokens, size):
    core = start(max_tokens=max_tokens)
    for request_id, length in enumerate((10, 30, 20)):
        core.arrive(request_id, length)
    assert len(core.replicas("a")[0].rows) == size


@pytest.mark.parametrize(("max_tokens", "size"), [(59, 2), (60, 3), (61, 3)])
def test_packed_batches_count_real_tokens(start, max_tokens, size):
    core = start(max_tokens=max_tokens, pads=False)
    for request_id, length in enumerate((10, 30, 20)):
        core.arrive(request_id, length)
    assert len(core.replicas("a")[0].rows) == size


def test_row_larger_than_the_token_bound_goes_alone(start):
    core = start(max_tokens=100)
    core.arrive(1, 500)
    core.arrive(2, 500)
    assert requests_of(*core.replicas("a"), *core.drain()) == [[1], [2]]


def test_rows_of_one_request_may_travel_apart(start):
    core = start()
    core.arrive(1, 10, 500, 20)
    sent = core.replicas("a", "b")
    assert sorted(each.rows for each in sent) == [((1, 0), (1, 2)), ((1, 1),)]
    core.close(sent[0])
    assert core.dispatcher.snapshot(0.0).leased_rows == 1


def test_row_without_length_is_served(start):
    core = start()
    core.arrive(1, 0)
    assert core.replicas("a")[0].rows == ((1, 0),)


# ---- which replica


def test_idle_replica_is_preferred_to_one_that_runs(start):
    core = start()
    core.replicas("a", "b", capacity=2)
    sent = core.arrive(1) + core.arrive(2)
    assert {each.replica_id for each in sent} == {"a", "b"}


def test_idle_replicas_take_turns(start):
    core = start()
    core.replicas("a", "b")
    used = []
    for request_id in range(4):
        (sent,) = core.arrive(request_id)
        used.append(sent.replica_id)
        core.close(sent)
    assert used == ["a", "b", "a", "b"]


def test_of_running_replicas_the_one_that_finishes_first_is_staged(start):
    core = start(initial_cost_s=1.0)
    core.replicas("a", "b", capacity=2)
    (on_a,) = core.arrive(1, at=0.0)
    core.arrive(2, at=0.5)
    core.step(Opened(on_a.lease_id), at=0.7)
    assert core.arrive(3, at=0.8)[0].replica_id == "b"


@pytest.mark.parametrize("capacity", [0, 1, 2, 3])
def test_replica_never_holds_more_leases_than_slots(start, capacity):
    core = start(max_size=1)
    core.replicas("a", capacity=capacity)
    sent = [action for request_id in range(5) for action in core.arrive(request_id)]
    assert len(sent) == capacity
    assert core.dispatcher.snapshot(0.0).replicas[0].held == capacity


def test_smaller_capacity_applies_to_what_comes(start):
    core = start(max_size=1)
    core.replicas("a", capacity=2)
    first, second = core.arrive(1) + core.arrive(2)
    core.arrive(3)
    core.replicas("a", capacity=1)
    assert core.close(first) == []
    assert requests_of(*core.close(second)) == [[3]]


def test_missing_replica_drains_and_is_forgotten_with_its_last_lease(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.replicas("b")
    assert [each.draining for each in core.dispatcher.snapshot(0.0).replicas] == [True, False]
    assert core.arrive(2)[0].replica_id == "b"
    core.close(lease)
    assert [each.replica_id for each in core.dispatcher.snapshot(0.0).replicas] == ["b"]


def test_draining_replica_that_is_listed_again_serves_on(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.replicas()
    core.arrive(2)
    core.replicas("a")
    assert requests_of(*core.close(lease)) == [[2]]


# ---- streams


def test_stream_lease_takes_one_row_and_its_length(start):
    core = start()
    core.streams("s", capacity=100)
    sent = core.arrive(1, 40) + core.arrive(2, 60) + core.arrive(3, 1)
    assert requests_of(*sent) == [[1], [2]]
    assert core.dispatcher.snapshot(0.0).replicas[0].held == 100


def test_stream_progress_makes_room_and_takes_it(start):
    core = start()
    core.streams("s", capacity=100)
    (first,) = core.arrive(1, 90)
    assert core.arrive(2, 20) == []
    assert core.step(Progress(first.lease_id, 1.0, 80.5)) == []
    assert requests_of(*core.step(Progress(first.lease_id, 2.0, 80.0))) == [[2]]
    assert core.dispatcher.snapshot(0.0).replicas[0].held == 100


def test_row_larger_than_a_streams_capacity_goes_when_it_is_empty(start):
    core = start()
    core.streams("s", capacity=100)
    (small,) = core.arrive(1, 10)
    assert core.arrive(2, 500) == []
    assert requests_of(*core.close(small)) == [[2]]


def test_large_row_is_not_overtaken_by_small_ones_on_a_stream(start):
    core = start()
    core.streams("s", capacity=100)
    (first,) = core.arrive(1, 50)
    assert core.arrive(2, 80) + core.arrive(3, 10) == []
    assert requests_of(*core.close(first)) == [[2], [3]]


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
    assert core.close(again, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]


def test_lost_row_that_may_not_be_retried_is_evicted(start):
    core = start()
    core.replicas("a", "b")
    (lease,) = core.arrive(1, retryable=False)
    assert core.close(lease, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]


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
    actions = core.dispatcher.reconfigure(DispatcherSettings((50, 200)), 0.0)
    assert core.take_in(actions) == [Evict(4, Reason.TOO_LONG)]
    assert requests_of(*core.replicas("a"), *core.drain()) == [[0, 1, 2], [3]]


def test_leased_row_that_is_too_long_for_new_settings_finishes_or_leaves(start):
    core = start()
    core.replicas("a", "b")
    (first,) = core.arrive(1, 500)
    (second,) = core.arrive(2, 500)
    core.take_in(core.dispatcher.reconfigure(DispatcherSettings((50,)), 0.0))
    assert core.close(first) == []
    assert core.close(second, LeaseEnd.BUSY) == [Evict(2, Reason.TOO_LONG)]


def test_reconfigured_model_is_open_again(start):
    core = start()
    core.step(Close())
    core.take_in(core.dispatcher.reconfigure(DispatcherSettings((50,)), 0.0))
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
        core.dispatcher.reconfigure(DispatcherSettings(()), 0.0)
    assert requests_of(*core.replicas("a")) == [[1]]


def test_live_id_cannot_arrive_twice(start):
    core = start()
    core.arrive(1)
    with pytest.raises(BadRequestEvent):
        core.arrive(1)
    core.cancel(1)
    assert core.arrive(1) == []
