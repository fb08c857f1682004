"""A row that the model failed on runs once more, alone, unless a copy of it runs already; the
others of its batch are answered."""

from __future__ import annotations

import pytest

from routers.api.actions import Abort, Evict
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import HedgeParameters
from tests.routers.conftest import sent

OFF = HedgeParameters("off", budget=0.0)


def batch(start, *, replicas=("a", "b"), **more):
    """Requests 1, 2 and 3 in one lease, and the other replicas idle."""
    core = start(max_size=3, hedge=OFF)
    for request_id in (1, 2, 3):
        core.arrive(request_id, **more)
    (lease,) = core.replicas(replicas[0])
    core.replicas(*replicas)
    return core, lease


def seen(core):
    return core.dispatcher.snapshot(core.now)


def test_it_runs_once_more_alone_on_another_replica(start):
    core, lease = batch(start)
    (again,) = core.close(lease, failed=(1,))
    assert (again.rows, again.replica_id, again.alone) == (((2, 0),), "b", True)
    assert seen(core).retries == 1
    core.close(again)
    assert seen(core).leases == seen(core).waiting_rows == 0


def test_where_no_other_replica_runs_it_runs_there_again(start):
    core, lease = batch(start, replicas=("a",))
    (again,) = core.close(lease, failed=(0,))
    assert (again.rows, again.replica_id) == (((1, 0),), "a")


def test_on_its_second_failure_its_request_is_told_and_no_other(start):
    core, lease = batch(start)
    (again,) = core.close(lease, failed=(1,))
    assert core.close(again, failed=(0,)) == [Evict(2, Reason.FAILED)]
    assert dict(seen(core).offered.refused) == {"inference_failed": 1}


def test_all_rows_of_a_batch_may_fail_and_each_travels_alone(start):
    core, lease = batch(start)
    (first,) = core.close(lease, failed=(0, 1, 2))
    (second,) = core.close(first)
    (third,) = core.close(second)
    assert [each.rows for each in (first, second, third)] == [((n, 0),) for n in (1, 2, 3)]
    assert {each.replica_id for each in (first, second, third)} == {"b"}


def test_what_may_not_run_twice_fails_at_once(start):
    core, lease = batch(start, retryable=False)
    assert core.close(lease, failed=(2,)) == [Evict(3, Reason.FAILED)]


def test_what_nobody_waits_for_any_more_is_not_tried_again(start):
    core, lease = batch(start, timeout_s=20.0)
    core.cancel(1)
    assert core.close(lease, at=1.0, failed=(0,)) == []


def test_of_a_request_of_two_rows_only_the_one_that_failed_runs_again(start):
    core = start(max_size=2, hedge=OFF)
    core.arrive(1, 10, 10)
    (lease,) = core.replicas("a")
    core.replicas("a", "b")
    (again,) = core.close(lease, failed=(1,))
    assert again.rows == ((1, 1),)
    assert seen(core).waiting_requests == 0
    core.close(again)
    assert seen(core).leases == 0


def test_a_request_whose_row_fails_for_good_leaves_with_all_its_rows(start):
    core = start(max_size=2, hedge=OFF)
    core.arrive(1, 10, 10, retryable=False)
    (lease,) = core.replicas("a")
    assert core.close(lease, failed=(0, 1)) == [Evict(1, Reason.FAILED)]


def test_the_flow_pays_for_the_lease_and_for_the_second_run(start):
    core = start(max_size=1, hedge=OFF)
    core.arrive(1)
    (lease,) = core.replicas("a")
    (again,) = core.close(lease, at=1.0, failed=(0,), service_s=0.5)
    core.close(again, at=2.0, service_s=0.25)
    (flow,) = seen(core).flows
    assert flow.served_s == pytest.approx(0.75)


@pytest.mark.parametrize("ends", [(LeaseEnd.LOST, LeaseEnd.DONE), (LeaseEnd.DONE, LeaseEnd.LOST)])
def test_a_loss_and_a_failure_are_two_runs_and_a_third_is_the_last(start, ends):
    core = start(max_size=1, hedge=OFF)
    core.arrive(1)
    (lease,) = core.replicas("a")
    core.replicas("a", "b", "c")
    for end in ends:
        failed = (0,) if end is LeaseEnd.DONE else ()
        (lease,) = core.close(lease, end, failed=failed)
    assert core.close(lease, failed=(0,)) == [Evict(1, Reason.FAILED)]


def test_what_may_wait_no_longer_is_told_that_the_model_failed(start):
    core = start(max_size=1, hedge=OFF, late="refuse")
    core.arrive(1, slo_s=1.0)
    (lease,) = core.replicas("a")
    assert core.close(lease, at=2.0, failed=(0,)) == [Evict(1, Reason.FAILED)]


# ---- while a copy runs --------------------------------------------------------------------------


def raced(start, **more):
    """Request 1 in a lease and in a copy of it, each on a replica that has answered before."""
    settings = HedgeParameters("hedge", max_utilisation=1.0, min_samples=1, budget=1.0)
    core = start(hedge=settings)
    core.replicas("a", "b", "c")
    for request_id in range(-12, 0):
        (lease,) = sent(core.arrive(request_id, at=core.now))
        core.close(lease, at=core.now + 0.01, service_s=0.01)
    (lease,) = core.arrive(1, at=0.5, **more)
    (copy,) = sent(core.tick(core.timer))
    assert copy.copy_of == lease.lease_id
    return core, lease, copy


@pytest.mark.parametrize("first", [0, 1])
def test_it_is_left_to_the_copy_that_runs(start, first):
    core, *leases = raced(start)
    assert core.close(leases[first], failed=(0,), service_s=0.02) == []
    assert seen(core).leases == 1
    assert core.close(leases[1 - first], service_s=0.03) == []
    assert seen(core).leases == seen(core).waiting_rows == seen(core).retries == 0


@pytest.mark.parametrize("end", [LeaseEnd.DONE, LeaseEnd.LOST, LeaseEnd.BUSY])
def test_when_the_copy_brings_nothing_either_it_runs_once_more(start, end):
    core, lease, copy = raced(start)
    core.close(lease, failed=(0,), service_s=0.02)
    (again,) = core.close(copy, end, failed=(0,) if end is LeaseEnd.DONE else ())
    assert again.rows == ((1, 0),)


def test_while_it_is_hoped_for_it_may_expire(start):
    core, lease, copy = raced(start, slo_s=0.1, timeout_s=1.0)
    core.close(lease, failed=(0,), service_s=0.02)
    actions = core.tick(1.6)
    assert actions == [Evict(1, Reason.EXPIRED), Abort(copy.lease_id, copy.replica_id)]


def test_of_a_race_of_two_rows_each_is_answered_by_whichever_could(start):
    core, lease, copy = raced(start)
    core.arrive(2, at=core.now)
    core.close(lease, failed=(0,), service_s=0.02)
    assert Abort(copy.lease_id, copy.replica_id) not in core.close(copy, service_s=0.03)
