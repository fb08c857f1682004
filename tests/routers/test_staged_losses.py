"""What a replica had not started on when it died is not to blame, and is not charged a retry."""

from __future__ import annotations

from routers.types import Dispatch, Evict, LeaseEnd, Reason


def requests_of(*leases):
    return [[request for request, _ in lease.rows] for lease in leases]


def test_a_staged_batch_lost_with_its_replica_travels_together_again(start):
    core = start(max_size=2)
    for request in (1, 2, 3, 4):
        core.arrive(request)
    running, staged = core.replicas("a", capacity=2)
    core.replicas("a", "b", capacity=2)
    sent = core.close(running, LeaseEnd.LOST)
    sent += core.close(staged, LeaseEnd.LOST)
    sent += core.drain()
    assert sorted(requests_of(*sent)) == [[1], [2], [3, 4]]


def test_the_order_in_which_losses_are_heard_of_makes_no_difference(start):
    core = start(max_size=2)
    for request in (1, 2, 3, 4):
        core.arrive(request)
    running, staged = core.replicas("a", capacity=2)
    core.replicas("a", "b", capacity=2)
    sent = core.close(staged, LeaseEnd.LOST)
    sent += core.close(running, LeaseEnd.LOST)
    sent += core.drain()
    assert sorted(requests_of(*sent)) == [[1], [2], [3, 4]]


def test_a_retried_row_behind_the_culprit_survives_a_second_death(start):
    core = start(max_size=2)
    core.arrive(1)
    core.arrive(2)
    (lease,) = core.replicas("a")
    core.replicas("b", capacity=2)
    culprit, innocent = core.close(lease, LeaseEnd.LOST)
    assert core.close(culprit, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]
    assert core.close(innocent, LeaseEnd.LOST) == []
    (again,) = core.replicas("c")
    assert requests_of(again) == [[2]]


def test_a_row_that_may_not_be_retried_is_not_sent_again_though_it_was_staged(start):
    core = start(max_size=1)
    core.replicas("a", capacity=2)
    core.arrive(1)
    (staged,) = core.arrive(2, retryable=False)
    assert core.close(staged, LeaseEnd.LOST) == [Evict(2, Reason.LOST)]


def test_a_replica_that_lives_on_is_charged_again_for_what_it_runs_later(start):
    core = start()
    core.replicas("a")
    (first,) = core.arrive(1)
    core.close(first, LeaseEnd.LOST)
    (second,) = core.replicas("a")
    assert isinstance(second, Dispatch)
    assert core.close(second, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]
