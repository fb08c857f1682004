"""Groups that take rows up to a length: longer rows never go there, and nobody waits for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routers.api.actions import Dispatch, Evict, Reject
from routers.api.errors import BadSettings
from routers.api.events import CapacityExpected, Reconfigure, Replicas
from routers.api.requests import LeaseEnd, Reason, Replica
from routers.api.settings import (
    BucketSettings,
    DispatcherSettings,
    GroupSettings,
    HedgeParameters,
    PolicyNames,
    validate,
)
from routers.estimates.groups import ReplicaGroups
from routers.policies.registry import BATCHINGS, ORDERS

EDGES = (32, 128, 512)
LONG, SHORT = 300, 20


def profile(launch_s, row_s):
    return tuple((rows, edge, launch_s + row_s * rows) for rows in (1, 8, 32) for edge in EDGES)


LARGE = GroupSettings("large", profile(0.01, 0.001))
SMALL = GroupSettings("small", profile(0.01, 0.001), max_length=128, max_size=4, max_tokens=256)
RACES = HedgeParameters(fixed_delay_s=0.05, budget=10.0, max_utilisation=1.0, min_samples=1)


def listed(*ids, slots=1):
    return Replicas(tuple(Replica(each, slots, group=each.split("_")[0]) for each in ids))


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


@pytest.fixture
def two(start):
    def make(*ids, slots=1, groups=(LARGE, SMALL), **more):
        core = start(groups=groups, profile=(), slo_s=0.5, **more)
        core.step(listed(*(ids or ("large_1", "small_1")), slots=slots))
        return core

    return make


def warm(core, *smalls):
    """`large_1` and the small replicas have answered once, so copies may be sent there."""
    core.step(listed("large_1", *smalls))
    leases = [*sent(core.arrive(900, LONG))]
    for n, _ in enumerate(smalls):
        leases += sent(core.arrive(901 + n, SHORT))
    assert {each.replica_id for each in leases} == {"large_1", *smalls}
    for lease in leases:
        core.close(lease, at=core.now + 0.011, service_s=0.011)


# ---- where rows go -------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_long_row_waits_for_the_group_that_takes_it(two, batching, order):
    names = PolicyNames(order=order, batching=batching)
    core = two("small_1", max_size=1, policies=names)  # so that no policy waits for more rows
    assert not sent(core.arrive(1, LONG))
    (short,) = sent(core.arrive(2, SHORT))
    assert (short.replica_id, short.rows) == ("small_1", ((2, 0),))
    (long,) = sent(core.step(listed("small_1", "large_1")))
    assert (long.replica_id, long.rows) == ("large_1", ((1, 0),))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_short_rows_behind_many_long_ones_start_at_once(two, batching):
    core = two("small_1", max_size=1, policies=PolicyNames(batching=batching))
    core.arrive(1, *[LONG] * 50, tenant="a")
    for request in range(2, 9):
        core.arrive(request, LONG, SHORT, tenant=f"t{request}")
    started = [row for lease in core.open.values() for row in lease.rows]
    assert started == [(2, 1)]


def test_the_rows_of_one_request_go_where_each_is_taken(two):
    core = two()
    leases = sent(core.arrive(1, LONG, SHORT))
    assert {row: each.replica_id for each in leases for row in each.rows}[1, 0] == "large_1"


def test_a_row_as_long_as_the_bound_is_taken_and_a_longer_one_is_not(two):
    core = two("small_1")
    (lease,) = sent(core.arrive(1, 128))
    assert not sent(core.arrive(2, 129))
    assert not sent(core.close(lease, at=0.1, service_s=0.1))


def test_a_batch_keeps_to_the_bounds_of_its_own_group(two):
    core = two("small_1")
    (lease,) = sent(core.arrive(1, *[SHORT] * 10))
    assert len(lease.rows) == 4
    core = two("small_1")
    (lease,) = sent(core.arrive(1, *[100] * 10))
    assert len(lease.rows) == 2  # of 100 tokens, padded: 256 are allowed


def test_a_busy_large_replica_is_not_waited_for_with_what_the_small_one_takes(two):
    core = two()
    (long,) = sent(core.arrive(1, LONG))
    assert long.replica_id == "large_1"
    core.arrive(2, LONG)
    core.arrive(3, *[SHORT] * 40)
    assert {each.replica_id for each in core.open.values()} == {"large_1", "small_1"}


def test_long_rows_are_taken_though_the_short_ones_before_them_are_left_to_a_faster_group(two):
    fast = replace(SMALL, profile=profile(0.001, 0.0001))
    core = two(groups=(replace(LARGE, profile=profile(0.5, 0.1)), fast))
    assert [each.replica_id for each in sent(core.arrive(1, SHORT))] == ["small_1"]
    assert not sent(core.arrive(2, SHORT))  # left to the fast one, which will be done sooner
    (long,) = sent(core.arrive(3, LONG))
    assert (long.replica_id, long.rows) == ("large_1", ((3, 0),))


def test_tenants_with_long_rows_and_tenants_with_short_ones_both_have_their_turns(two):
    core = two(max_size=1)
    for tenant, length in (("a", LONG), ("b", SHORT)):
        core.arrive(len(core.open), *[length] * 60, tenant=tenant, slo_s=500.0)
    first: list[int] = []
    for _ in range(40):
        lease = core.open[min(core.open)]
        first.append(lease.rows[0][0])
        core.close(lease, at=core.now + lease.predicted_s, service_s=lease.predicted_s)
    assert 10 <= first.count(0) <= 30


# ---- copies and second runs ----------------------------------------------------------------------


def test_a_slow_long_batch_is_copied_to_no_small_replica(two):
    core = two(hedge=RACES)
    warm(core, "small_1", "small_2")
    (lease,) = sent(core.arrive(1, LONG))
    core.opens(lease)
    assert not sent(core.tick(core.now + 0.3))


def test_a_slow_short_batch_is_copied_to_a_small_replica_that_may_hold_so_many_rows(two):
    for rows, is_copied in ((4, True), (5, False)):
        core = two(hedge=RACES)
        warm(core, "small_1")
        leases = [*sent(core.arrive(1, LONG)), *sent(core.arrive(2, SHORT))]
        core.arrive(3, *[SHORT] * rows)
        (lease,) = sent(core.close(leases[0], at=core.now + 0.011, service_s=0.011))
        assert (lease.replica_id, len(lease.rows)) == ("large_1", rows)
        core.opens(lease)
        core.close(leases[1], at=core.now + 0.011, service_s=0.011)
        copies = sent(core.tick(core.now + 0.3))
        assert [each.replica_id for each in copies] == ["small_1"] * is_copied


def test_a_long_batch_that_is_staged_is_tied_to_no_small_replica(two):
    core = two(hedge=replace(RACES, mode="tied"))
    warm(core, "small_1")
    core.step(
        Replicas((Replica("large_1", 2, group="large"), Replica("small_1", 1, group="small")))
    )
    leases = [each for n in (1, 2) for each in sent(core.arrive(n, LONG))]
    assert {each.replica_id for each in leases} == {"large_1"}


def test_a_long_row_of_a_lost_replica_waits_for_another_large_one(two):
    core = two(slots=1)
    (first,) = sent(core.arrive(1, LONG))
    core.step(listed("small_1"))
    assert not sent(core.close(first, LeaseEnd.LOST))
    (short,) = sent(core.arrive(2, SHORT))
    assert short.replica_id == "small_1"
    (again,) = sent(core.step(listed("small_1", "large_2")))
    assert (again.replica_id, again.rows) == ("large_2", ((1, 0),))


def test_a_short_retry_does_not_wait_behind_a_long_one(two):
    core = two("large_1", "large_2")
    leases = [*sent(core.arrive(1, LONG)), *sent(core.arrive(2, SHORT))]
    core.step(listed())
    for lease in leases:
        core.close(lease, LeaseEnd.LOST)
    (short,) = sent(core.step(listed("small_1")))
    assert (short.replica_id, short.rows) == ("small_1", ((2, 0),))


def test_a_long_retry_runs_on_the_replica_that_it_avoids_where_no_other_takes_it(two):
    core = two("large_1", "small_1", "small_2")
    (first,) = sent(core.arrive(1, LONG))
    core.close(first, LeaseEnd.LOST)
    (again,) = sent(core.step(listed("large_1", "small_1", "small_2")))
    assert again.replica_id == "large_1"


def test_urgent_long_rows_take_no_place_at_a_small_replica(two):
    core = two()
    core.step(Replicas((Replica("small_1", 2, group="small"),)))
    core.arrive(1, SHORT, priority=2)
    core.arrive(2, SHORT, priority=2)
    assert len(core.open) == 2
    assert not sent(core.arrive(3, LONG, priority=0))
    (urgent,) = sent(core.arrive(4, SHORT, priority=0))
    assert urgent.rows == ((4, 0),)


def test_urgent_long_rows_take_the_place_of_what_is_staged_where_they_may_run(two):
    """Though what is staged at the small replica is less urgent still."""
    core = two(slots=2, max_size=1)
    for request, (length, priority) in enumerate([(LONG, 1), (SHORT, 1), (LONG, 1), (SHORT, 2)]):
        core.arrive(request, length, priority=priority)
    assert len(core.open) == 4
    (urgent,) = sent(core.arrive(9, LONG, priority=0))
    assert (urgent.replica_id, urgent.rows) == ("large_1", ((9, 0),))


def test_rows_take_places_while_more_urgent_ones_wait_for_a_group_that_is_away(two):
    core = two("small_1", slots=2, max_size=1)
    assert not sent(core.arrive(0, LONG, priority=0))
    core.arrive(1, SHORT, priority=2)
    core.arrive(2, SHORT, priority=2)
    assert len(core.open) == 2
    (urgent,) = sent(core.arrive(3, SHORT, priority=1))
    assert urgent.rows == ((3, 0),)
    core.step(listed("small_1", "large_1"))


# ---- admission -----------------------------------------------------------------------------------


def test_long_rows_are_let_in_as_with_no_replica_while_none_takes_them(two):
    core = two("small_1")
    for request in range(20):
        assert not [each for each in core.arrive(request, LONG) if isinstance(each, Reject)]
    core.step(CapacityExpected(60.0))
    actions = core.arrive(99, LONG, slo_s=1.0, timeout_s=2.0)
    refused = [each for each in actions if isinstance(each, Reject)]
    assert [(each.reason, each.retry_after_s) for each in refused] == [(Reason.LATE, 60.0)]
    assert sent(core.arrive(100, SHORT, slo_s=1.0, timeout_s=2.0))
    core.step(listed("small_1", "large_1"))
    actions = core.arrive(101, LONG, slo_s=1.0, timeout_s=2.0)
    assert not [each for each in actions if isinstance(each, Reject)]


def test_a_long_row_is_judged_by_the_replicas_that_take_it(two):
    """Behind over 1 s of long rows for one large replica, whatever nine small ones could do."""
    core = two("large_1", *(f"small_{n}" for n in range(9)), max_size=4)
    core.arrive(0, *[LONG] * 1000, slo_s=1000.0, timeout_s=2000.0)
    (lease,) = core.open.values()
    core.close(lease, at=0.014, service_s=0.014)
    for request, length in ((1, LONG), (2, LONG), (3, SHORT), (4, SHORT)):  # the first may probe
        core.arrive(request, length, slo_s=0.6, timeout_s=1000.0)
    live = core.dispatcher._requests.live
    assert live[2].late
    assert not any(live[request].late for request in (3, 4) if request in live)


def test_late_long_rows_wait_only_if_the_replicas_that_take_them_may_get_to_them(two):
    """7 s of them, for idle moments of one large replica in 10 s, whatever nine small ones do."""
    core = two("large_1", *(f"small_{n}" for n in range(9)), max_size=1)
    for request, length, is_let_in in ((1, SHORT, True), (2, LONG, False)):
        actions = core.arrive(request, *[length] * 600, slo_s=0.0, timeout_s=10.0)
        refused = [each.reason for each in actions if isinstance(each, Reject)]
        assert refused == ([] if is_let_in else [Reason.LATE])
        core.cancel(request)


def test_long_rows_wait_for_their_group_as_long_as_they_live_however_busy_the_others_are(two):
    smalls = [f"small_{n}" for n in range(4)]
    core = two(*smalls, max_size=1)
    for request in range(40):  # the small ones are half busy
        for lease in sent(core.arrive(request, SHORT, slo_s=5.0)):
            core.close(lease, at=core.now + 0.05, service_s=0.05)
    for in_s in (0.0, 4.0):
        core.step(CapacityExpected(in_s), core.now)
        actions = core.arrive(1000 + int(in_s), LONG, slo_s=0.5, timeout_s=60.0)
        actions += core.tick(core.now + 1.0)
        assert not [each for each in actions if isinstance(each, Reject | Evict)]


def test_urgent_long_rows_make_no_short_one_late(two):
    core = two("large_1", "small_1", max_size=4)
    core.arrive(0, *[LONG] * 1000, slo_s=1000.0, timeout_s=2000.0)
    core.arrive(1, SHORT, slo_s=100.0, priority=1)
    for request, lengths in ((2, (SHORT,)), (3, (SHORT,)), (4, (LONG,)), (5, (LONG,))):
        core.arrive(request, *lengths, slo_s=0.6, timeout_s=1000.0, priority=1)
    live = core.dispatcher._requests.live
    assert [live[request].late for request in (2, 3, 5)] == [False, False, True]


def test_a_snapshot_says_that_rows_wait_which_no_running_replica_may_take(two):
    core = two("small_1")
    assert not core.dispatcher.snapshot(core.now).stranded
    core.arrive(1, LONG)
    seen = core.dispatcher.snapshot(core.now)
    assert seen.stranded
    assert dict(seen.longer_backlog) == {128: pytest.approx(seen.backlog_s)}
    core.step(listed("small_1", "large_1"))
    assert not core.dispatcher.snapshot(core.now).stranded


def test_rows_strand_whose_longest_no_running_replica_takes(two):
    core = two("small_1")
    strands = core.dispatcher.strands
    assert [strands(each) for each in ((128,), (SHORT, 129), (9999,), ())] == [
        False, True, True, False,
    ]  # fmt: skip
    core.step(listed("small_1", "large_1"))
    assert not strands((512,))


def test_lengths_that_the_same_groups_take_have_one_bound(two):
    bound_above = two("small_1").dispatcher.bound_above
    assert [bound_above(each) for each in (1, 128, 129, 9999)] == [128, 128, 0, 0]


def test_offered_work_of_long_rows_is_counted_by_rows(two):
    core = two()
    core.arrive(1, SHORT, LONG, LONG)
    offered = core.dispatcher.snapshot(core.now).offered
    assert dict(offered.longer)[128] == pytest.approx(offered.work_s * 2 / 3, rel=0.2)
    core.arrive(2, SHORT)
    after = core.dispatcher.snapshot(core.now).offered
    assert after.longer == offered.longer
    assert after.work_s > offered.work_s


# ---- reserves ------------------------------------------------------------------------------------


def test_a_reserve_opens_for_long_rows_alone_when_the_large_group_is_gone(two):
    reserve = GroupSettings("reserve", profile(0.01, 0.001), after_s=5.0)
    core = two("small_1", "reserve_1", groups=(LARGE, SMALL, reserve))
    (short,) = sent(core.arrive(1, SHORT))
    assert short.replica_id == "small_1"
    assert not sent(core.arrive(2, SHORT))
    (long,) = sent(core.arrive(3, LONG))
    assert (long.replica_id, long.rows) == ("reserve_1", ((3, 0),))
    assert not sent(core.close(long, at=core.now + 0.01, service_s=0.01))


# ---- edges, settings -----------------------------------------------------------------------------


def test_a_bound_stays_an_edge_however_edges_adapt(two):
    buckets = BucketSettings(adaptive=True, max_edges=3, solve_every_s=1.0)
    core = two("large_1", buckets=buckets, policies=PolicyNames(edges="padding"))
    for request in range(60):
        for lease in sent(core.arrive(request, *[60, 400] * 10, at=request * 0.1)):
            core.close(lease, service_s=lease.predicted_s)
    edges = core.dispatcher.snapshot(core.now).edges
    assert edges != EDGES
    assert 128 in edges
    assert len(edges) <= 3


def test_a_new_bound_divides_rows_that_wait(two):
    core = two("small_1", groups=(LARGE, replace(SMALL, max_length=None)))
    (running,) = sent(core.arrive(0, SHORT))
    core.arrive(1, LONG)
    core.arrive(2, SHORT)
    core.step(Reconfigure(replace(core.dispatcher._requests.settings, groups=(LARGE, SMALL))))
    (short,) = sent(core.close(running, at=0.02, service_s=0.02))
    assert short.rows == ((2, 0),)


def test_a_group_that_is_no_longer_listed_takes_no_longer_rows_than_before(two):
    core = two("small_1")
    core.step(Reconfigure(replace(core.dispatcher._requests.settings, groups=(LARGE,))))
    assert not sent(core.arrive(1, LONG))


def test_a_group_that_is_no_longer_listed_stays_while_its_replicas_drain(two):
    core = two("small_1")
    (running,) = sent(core.arrive(0, SHORT))
    core.step(Replicas(()))
    core.step(Reconfigure(replace(core.dispatcher._requests.settings, groups=(LARGE,))))
    core.step(Replicas((Replica("small_1", 1.0, group="small"),)))
    seen = {each.name: each.running for each in core.dispatcher.snapshot(core.now).groups}
    assert seen == {"large": 0, "small": 1}
    core.close(running)
    assert sent(core.arrive(1, SHORT))


def test_work_is_counted_in_seconds_of_a_group_that_takes_all_lengths():
    groups = ReplicaGroups(DispatcherSettings(EDGES, groups=(SMALL, LARGE)))
    assert groups.reference.name == "large"


def test_long_batches_do_not_move_what_a_small_group_is_worth():
    groups = ReplicaGroups(DispatcherSettings(EDGES, groups=(LARGE, SMALL)))
    small = groups.of("small")
    small.cost.observe(8, 512, 9.0, predicted_s=9.0, edge=512)
    before = small.speed
    groups.weigh(512)
    assert small.speed == before


def test_a_bound_that_is_no_edge_is_refused():
    with pytest.raises(BadSettings, match="100"):
        validate(DispatcherSettings(EDGES, groups=(LARGE, replace(SMALL, max_length=100))))


def test_long_rows_expire_where_nobody_comes_who_takes_them(two):
    core = two("small_1")
    core.arrive(1, LONG, slo_s=1.0, timeout_s=2.0)
    evicted = [each for each in core.tick(2.0) if isinstance(each, Evict)]
    assert [each.reason for each in evicted] == [Reason.EXPIRED]


# ---- replicas that are not well ------------------------------------------------------------------


def test_long_rows_go_on_to_the_only_group_that_takes_them_though_it_is_not_well(two):
    core = two(slots=2)
    (lease,) = sent(core.arrive(1, LONG, timeout_s=60))
    core.close(lease, LeaseEnd.LOST, at=0.05)  # it stays listed, as a suspect
    (again,) = sent(core.arrive(2, LONG, at=2.0, timeout_s=60))
    assert (again.replica_id, again.rows) == ("large_1", ((1, 0),))
    (short,) = sent(core.arrive(3, SHORT, timeout_s=60))
    assert short.replica_id == "small_1"
    (long,) = sent(core.close(again, at=2.1, service_s=0.011))
    assert (long.replica_id, long.rows) == ("large_1", ((2, 0),))


def test_an_unhealthy_replica_gets_no_row_that_a_healthy_one_takes(two):
    core = two(slots=2)
    (lease,) = sent(core.arrive(1, LONG, timeout_s=60))
    core.close(lease, LeaseEnd.LOST, at=0.05)
    core.arrive(2, *[SHORT] * 40, timeout_s=60)
    taken = {each.replica_id for each in core.open.values() for row in each.rows if row[0] == 2}
    assert taken == {"small_1"}


def test_no_short_row_rides_in_spare_room_on_a_replica_that_is_kept_for_long_ones(two):
    core = two(hedge=HedgeParameters("off"))
    (lease,) = sent(core.arrive(1, LONG, retryable=False))
    core.close(lease, LeaseEnd.LOST, at=0.05)  # `large_1` stays listed, as a suspect
    (short,) = sent(core.arrive(2, *[SHORT] * 12, timeout_s=60))  # `small_1` takes four
    core.arrive(3, LONG, timeout_s=60)
    (short,) = sent(core.close(short, at=1.04, service_s=0.011))
    assert short.replica_id == "small_1"
    found = sent(core.tick(1.06))
    assert [(each.replica_id, each.rows) for each in found] == [("large_1", ((3, 0),))]


def test_a_reserve_opens_for_a_long_row_that_is_tried_again(two):
    spare = GroupSettings("spare", profile(0.02, 0.002), after_s=5.0)
    core = two("large_1", "small_1", "spare_1", groups=(LARGE, SMALL, spare))
    (lease,) = sent(core.arrive(1, LONG, timeout_s=60))
    assert lease.replica_id == "large_1"
    found = sent(core.close(lease, LeaseEnd.LOST, at=0.05))
    found += sent(core.step(listed("small_1", "spare_1")))
    assert [each.replica_id for each in found] == ["spare_1"]
