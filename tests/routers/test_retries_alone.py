"""A row that was lost once is tried on a replica that holds nothing else, so that a second loss has
one possible cause."""

from __future__ import annotations

from routers.api.actions import Evict
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import GenerationParameters


def requests_of(*leases):
    return [[request for request, _ in lease.rows] for lease in leases]


def lost_pair(start, capacity):
    """Requests 1 and 2 shared a batch that its replica did not survive; `b` runs."""
    core = start(max_size=2)
    core.arrive(1)
    core.arrive(2)
    (lease,) = core.replicas("a", capacity=capacity)
    core.replicas("b", capacity=capacity)
    return core, core.close(lease, LeaseEnd.LOST)


def test_nothing_is_staged_behind_a_retried_row(start):
    core, retried = lost_pair(start, capacity=2)
    assert requests_of(*retried) == [[1]]
    assert core.arrive(3) == []
    assert requests_of(*core.close(retried[0])) == [[2]]


def test_an_innocent_survives_the_culprits_second_replica(start):
    core, (culprit,) = lost_pair(start, capacity=2)
    core.opens(culprit)
    assert core.close(culprit, LeaseEnd.LOST) == [Evict(1, Reason.LOST)]
    assert requests_of(*core.replicas("c", capacity=2)) == [[2]]


def test_a_retried_row_waits_until_a_replica_is_empty_and_is_not_overtaken_there(start):
    core = start(max_size=1)
    core.replicas("a", "b", capacity=2)
    (lease, other) = core.arrive(1) + core.arrive(2)
    assert (lease.replica_id, other.replica_id) == ("a", "b")
    assert core.close(lease, LeaseEnd.LOST) == []
    core.replicas("b", capacity=2)
    assert core.arrive(3) == []
    assert requests_of(*core.close(other)) == [[1]]


def test_a_retried_row_that_was_answered_frees_its_replica_for_all(start):
    core, (first,) = lost_pair(start, capacity=2)
    (second,) = core.close(first)
    core.arrive(3)
    core.arrive(4)
    assert requests_of(*core.close(second)) == [[3, 4]]


def test_a_stream_replica_tries_rows_beside_others(start):
    core = start(generation=GenerationParameters())
    core.streams("a", "b", capacity=100)
    (lost, other) = core.arrive(1) + core.arrive(2)
    assert {lost.replica_id, other.replica_id} == {"a", "b"}
    (again,) = core.close(lost, LeaseEnd.LOST)
    assert again.replica_id == other.replica_id


def test_retried_rows_of_a_passed_over_priority_lead_once_and_not_until_none_is_left(start):
    core = start(max_size=2, ageing_s=1.0)
    core.replicas("a")
    (lease,) = core.arrive(1)
    for number in (2, 3, 4):
        core.arrive(number, priority=2, suspect=True)
    core.arrive(5)
    first = core.close(lease, at=5.0)
    assert requests_of(*first) == [[2]]  # passed over for long enough
    assert requests_of(*core.close(*first)) == [[5]]


def test_a_flow_that_has_only_retried_rows_waiting_takes_newcomers(start):
    core = start()
    core.replicas("a")
    core.arrive(1)
    core.arrive(2, tenant="unlucky", suspect=True)
    assert core.arrive(3, tenant="unlucky") == []
    assert core.dispatcher.waiting_rows == 2
