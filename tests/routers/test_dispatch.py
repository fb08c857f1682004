"""Late binding, choice of bucket and replica, batch limits."""

import pytest

from routers.api.actions import Dispatch, WakeAt
from routers.api.events import Arrive, Closed, Opened, Reconfigure, Tick
from routers.api.requests import LeaseEnd, Report, Request
from routers.api.settings import BucketSettings, DispatcherSettings, PolicyNames


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


def test_what_is_taken_in_together_is_decided_upon_together(start):
    core = start()
    core.replicas("a")
    (first,) = core.arrive(1)
    actions = []
    assert core.dispatcher.take(Closed(first.lease_id, LeaseEnd.DONE, Report()), 0.1, actions)
    core.dispatcher.take(Arrive(Request(2, (10,), 0.1, 1.0, 2.0)), 0.1, actions)
    core.dispatcher.take(Arrive(Request(3, (10,), 0.1, 1.0, 2.0)), 0.1, actions)
    assert requests_of(*actions) == []
    assert requests_of(*core.take_in(core.dispatcher.decide(0.1))) == [[2, 3]]


def test_a_decision_asks_for_no_timer_that_is_set_already(start):
    core = start(initial_cost_s=0.1)
    core.replicas("a")
    core.arrive(1)
    core.arrive(2)
    assert core.timer is not None
    assert core.dispatcher.decide(0.0) == []
    assert core.dispatcher.step(Tick(), 0.0) == [WakeAt(core.timer)]


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
def test_bucket_whose_turn_it_is_lets_fuller_ones_go_first_while_it_has_time(start, waited, bucket):
    core = start(slo_s=0.1, initial_cost_s=0.01)  # 0.6 of the SLO, less the fuller batch
    core.arrive(1, 10)
    core.arrive(2, 500)
    (sent,) = core.replicas("a")
    core.arrive(3, 10)
    core.arrive(4, 10)
    assert core.close(sent, at=waited, service_s=0.01)[0].bucket == bucket


def test_bucket_that_has_had_its_turn_is_not_owed_another(start):
    core = start(slo_s=0.1, initial_cost_s=0.01)
    core.arrive(1, 500)
    (sent,) = core.replicas("a")
    core.arrive(2, 500)
    core.arrive(3, 10)
    core.arrive(4, 10)
    assert core.close(sent, at=0.09, service_s=0.01)[0].bucket == 32


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


@pytest.mark.parametrize(("asked", "given"), [(-1, 0), (0, 0), (2, 2), (3, 2), (9, 2)])
def test_priorities_beyond_the_last_count_as_the_last(start, asked, given):
    core = start()
    core.arrive(1, priority=asked)
    assert [flow.priority for flow in core.dispatcher.snapshot(0.0).flows] == [given]


def test_lengths_that_never_fit_move_no_edges(start):
    core = start(
        bucket_edges=(16, 64), buckets=BucketSettings(adaptive=True, solve_every_s=1.0),
        policies=PolicyNames(edges="padding"), initial_cost_s=0.01,
    )  # fmt: skip
    core.replicas("a")
    for request_id, length in enumerate([65] * 600 + [60] * 2):
        core.arrive(request_id, length, at=request_id / 300)
    assert core.dispatcher.snapshot(2.0).edges == (16, 64)


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


# ---- other settings while rows wait


def test_rows_that_stay_in_their_bucket_stand_there_once_when_edges_change(start):
    core = start()
    core.arrive(1, 10, 10, 10, 200)
    core.arrive(2, 10, suspect=True)
    settings = DispatcherSettings((32, 256, 512), profile=((1, 1, 0.0),))
    core.step(Reconfigure(settings))
    assert core.dispatcher.snapshot(core.now).rows_by_bucket == ((32, 4), (256, 1), (512, 0))


def test_a_replica_that_waited_for_a_batch_to_grow_and_left_asks_for_no_more_timers(start):
    core = start(hold="auto", profile=((1, 10, 1.0), (2, 10, 1.01), (8, 10, 1.1)), slo_s=100.0)
    core.replicas("a")
    for number, at in enumerate((0.0, 0.1, 0.2)):
        core.arrive(number + 1, at=at, slo_s=100.0)
    core.drain()
    core.arrive(4, at=0.3, slo_s=100.0)
    assert core.open == {}  # it waits for the next arrival
    core.replicas(at=0.35)
    core.arrive(5, at=5.0, slo_s=100.0)
    assert core.timer > 5.0
