"""Which invariants must hold after every step of a dispatcher? Checked by scanning all state.

- Every row stands in exactly one place: a queue, or a lease (and perhaps a copy of that lease).
- Every stored count equals what it counts, and shares add up.
- Every live request has exactly one timer.
- Memory is bounded by what is live.
- No replica stays ready while a row waits that it may take.

`check` raises AssertionError. Source: Dask's worker state machine, which validates itself after
every event under test.
"""

from __future__ import annotations

from math import inf, isclose
from typing import Any, TypeVar

from routers.batch.lease import BatchReplica
from routers.batch.scheduler import BatchScheduler
from routers.schedulers import AnyScheduler
from routers.shared.requests import RequestTable
from routers.state.lanes import Bucket, Lane, bucket_of
from routers.state.leases import LeaseTable
from routers.state.replica_state import SILENT, AnyLease, AnyReplica
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import Row, TrackedRequest
from routers.stream.lease import StreamReplica, plan_of

R = TypeVar("R", bound=AnyReplica)
_SLACK = 32  # stale entries that a heap or queue may hold besides twice its live ones


def check(scheduler: AnyScheduler) -> None:
    """Raises AssertionError at the first broken invariant."""
    requests, replicas = scheduler._requests, scheduler._replicas
    for tracked in requests.live.values():
        _check_request(tracked)
    _check_waiting(requests)
    _check_leases(requests, scheduler._leases)
    _check_replicas(replicas, scheduler._leases)
    _check_timers(requests)
    if isinstance(scheduler, BatchScheduler):
        for batches in scheduler._replicas.by_id.values():
            assert batches.held == len(batches.leases)
        for batch in scheduler._leases.open.values():
            assert not batch.begun, "a part of a batch's answer has come"
            assert not (batch.aborted and batch.live), "a batch is aborted that callers wait for"
        _check_no_idle_replica(scheduler)
        return
    for replica in scheduler._replicas.by_id.values():
        assert replica.held == sum(lease.share for lease in replica.leases.values()) >= 0
        _check_reading(replica)
    for lease in scheduler._leases.open.values():
        assert lease.share >= 0
        assert lease.aborted or not lease.recalled, "a stream is wanted back and goes on"
        assert lease.hedge_due or not lease.overdue, "a stream is overdue that is not to be raced"


def _check_request(tracked: TrackedRequest) -> None:
    queued = [row for row in tracked.rows if row.bucket is not None]
    leased = [row for row in tracked.rows if row.lease is not None]
    assert tracked.queued == len(queued)
    assert tracked.open == len(queued) + len(leased) > 0
    assert not any(row.lease for row in queued), "a row is queued and leased"
    for row in queued:
        assert row.bucket is not None
        assert bucket_of(row).queue.lane.late == tracked.late, "a row waits in the wrong lane"
        assert row.length <= row.edge, "a row waits in too short a bucket"
        assert row.bucket.edge in (0, row.edge)


def _check_waiting(requests: RequestTable) -> None:
    waiting, live = requests.waiting, requests.live
    buckets = [bucket for lane in waiting.lanes() for bucket in lane.buckets()]
    rows = [row for bucket in buckets for row in bucket.live()]
    assert len(rows) == len(set(rows)) == waiting.rows, "a row is lost or stands twice"
    assert all(live[row.tracked.request.request_id] is row.tracked for row in rows)
    assert waiting.requests == sum(tracked.queued > 0 for tracked in live.values())
    assert waiting.late_rows == sum(row.tracked.late for row in rows)
    late_s = sum(row.cost_s for row in rows if row.tracked.late)
    assert isclose(waiting.late_s, late_s, abs_tol=1e-6)
    assert isclose(waiting.seconds, sum(row.cost_s for row in rows), abs_tol=1e-6)
    for lane in waiting.lanes():
        _check_lane(lane)
    _check_flows(waiting, rows)
    _check_shares(waiting, rows)


def _check_shares(waiting: RequestQueue, rows: list[Row]) -> None:
    shares, rows = waiting.shares, [row for row in rows if not row.is_retry]
    assert shares.rows == len(rows)
    assert shares.by_tenant.keys() == {row.tracked.flow.tenant for row in rows}
    for share in shares.by_tenant.values():
        own = [row for row in rows if row.tracked.flow.tenant == share.tenant]
        assert share.rows == len(own)
        assert share.late_rows == sum(row.tracked.late for row in own)
        assert isclose(share.seconds, sum(row.cost_s for row in own), abs_tol=1e-6)
    assert isclose(shares.weight, sum(each.weight for each in shares.by_tenant.values()))


def _check_lane(lane: Lane) -> None:
    assert lane.rows == sum(bucket.rows for bucket in lane.buckets())
    for queue in lane.queues.values():
        assert queue.rows == sum(bucket.rows for bucket in queue.buckets.values())
        assert not queue.rows or queue.number, "a flow waits and is in no order"
    for edge, length_class in lane.length_classes.items():
        own = [bucket for bucket in lane.buckets() if bucket.edge == edge]
        assert length_class.rows == sum(bucket.rows for bucket in own)
        assert length_class.tokens == sum(bucket.tokens for bucket in own)
        waiting_s = sum(bucket.waiting_s for bucket in own)
        assert isclose(length_class.waiting_s, waiting_s, abs_tol=1e-6)
        assert all(bucket.number for bucket in own), "a bucket is in no order"
    for bucket in lane.buckets():
        _check_bucket(bucket, lane)


def _check_bucket(bucket: Bucket, lane: Lane) -> None:
    rows = bucket.live()
    assert bucket.rows == len(rows)
    assert bucket.tokens == sum(row.length for row in rows)
    places = len(bucket.line) + len(bucket.heap)
    assert places <= 2 * bucket.rows + _SLACK, "a queue outgrows its rows"
    assert all(row.isolated == (bucket is lane.isolated) for row in rows)
    assert all(row.tracked.flow.priority == lane.priority for row in rows)


def _check_flows(waiting: RequestQueue, rows: list[Row]) -> None:
    for flow in waiting.flows.by_key.values():
        own = [row for row in rows if row.tracked.flow is flow]
        late = sum(row.tracked.late for row in own)
        assert (flow.rows, flow.late_rows) == (len(own) - late, late)
        on_time_s = sum(row.cost_s for row in own if not row.tracked.late)
        assert isclose(flow.waiting_s, on_time_s, abs_tol=1e-6)
        assert flow.claims == (flow.rows > 0 or flow.peer_demand_s > 0.0)
    for priority, weight in enumerate(waiting.flows.weights):
        active = [
            f.weight for f in waiting.flows.by_key.values() if f.claims and f.key[0] == priority
        ]
        assert isclose(weight, sum(active), rel_tol=1e-6, abs_tol=1e-9)


def _check_leases(requests: RequestTable, leases: LeaseTable[Any]) -> None:
    live = requests.live
    for lease_id, lease in leases.open.items():
        members = lease.members()
        assert lease.lease_id == lease_id
        assert lease.live == len(members)
        assert all(live[row.tracked.request.request_id] is row.tracked for row in members)
        assert lease.replica.leases[lease_id] is lease
        _check_copy(lease)
    rows = [row for tracked in live.values() for row in tracked.rows]
    assert sum(row.lease is not None for row in rows) == leases.rows()
    assert not any(row.copy for row in rows if row.lease is None), "a copy of nothing"
    shown = [row for row in rows if row.shown]
    assert all(row.lease and not row.copy for row in shown), "it may be shown twice"


def _check_copy(lease: AnyLease) -> None:
    """A copy runs on another replica and holds no rows but those of the lease that it copies."""
    copy = lease.copy
    if copy is None:
        assert not any(row.copy for row in lease.rows if row.lease is lease)
        return
    assert copy.copy_of is lease
    assert copy.is_copy
    assert copy.replica is not lease.replica
    assert copy.unsettled_charge is None
    assert all(row.lease is lease and row.copy is copy for row in copy.members())
    assert all(row.copied and not row.isolated for row in copy.rows)


def _check_replicas(replicas: ReplicaSet[Any], leases: LeaseTable[Any]) -> None:
    by_id = replicas.by_id
    assert sum(len(replica.leases) for replica in by_id.values()) == len(leases.open)
    assert replicas.running == sum(not replica.draining for replica in by_id.values())
    assert len(replicas.timers) <= 2 * len(by_id) + _SLACK + 1
    for replica_id, replica in by_id.items():
        assert replica.spec.replica_id == replica_id
        assert replica.leases or not replica.draining, "a drained replica was kept"
        assert replica.unhealthy == (replica.reasons > 0)
        if replica in replicas.ready:
            assert replica.has_room()
            assert not replica.draining
            assert not replica.reasons & SILENT
    well = [replica for replica in by_id.values() if not replica.draining and not replica.unhealthy]
    assert replicas.healthy == len(well)
    assert replicas.ready.count(spare=True) == len(_ready(replicas))
    _check_groups(replicas)


def _check_groups(running_set: ReplicaSet[Any]) -> None:
    """Each replica is counted in its own group, whose sums equal its replicas' values."""
    groups, replicas = running_set.groups, running_set.by_id.values()
    names = list(groups.by_name)
    assert groups.reference.name in names
    for group in groups.all():
        own = [each for each in replicas if each.group is group]
        running = [each for each in own if not each.draining]
        assert groups.by_name[group.name] is group
        assert group.running == len(running)
        assert group.healthy == sum(not each.unhealthy for each in running)
        assert 0.0 < group.speed < inf
        if len(names) > 1:
            ends = [each.busy_until for each in own if getattr(each, "busy_until", 0.0)]
            assert group.held_s(0.0) == 0.0 or isclose(group.held_s(0.0), sum(ends), abs_tol=1e-6)
    assert all(each.group is groups.by_name[each.group.name] for each in replicas)
    assert isclose(groups.capacity, sum(each.running * each.speed for each in groups.all()))


def _check_reading(replica: StreamReplica) -> None:
    """The prompts being read at a replica are those of its leases without a first token."""
    streams = [lease.running for lease in replica.leases.values()]
    assert isclose(replica.reading, sum(each.reads for each in streams), abs_tol=1e-6)
    long = sum(each.reads for each in streams if each.is_long)
    assert isclose(replica.reading_long, long, abs_tol=1e-6)
    assert all(not each.reads for each in streams if each.first_at is not None)
    row = replica.saving()
    assert replica.saved >= 0.0
    if row is not None:
        assert replica.saved <= plan_of(row).room


def _ready(replicas: ReplicaSet[R]) -> list[R]:
    return [each for each in replicas.by_id.values() if each in replicas.ready]


def _check_timers(requests: RequestTable) -> None:
    timers, live = requests.timers, requests.live
    kept = timers.line[timers.first :] + [tracked for _, _, tracked in timers.heap]
    entries = [tracked for tracked in kept if tracked.open]
    assert len(entries) == len(set(entries)) == len(live), "a live request has no timer, or two"
    places = len(timers.line) + len(timers.heap)
    assert places <= 2 * len(live) + _SLACK * bool(live), "timers outgrow what is live"


def _check_no_idle_replica(scheduler: BatchScheduler) -> None:
    """One that is ready while rows wait empties for a retried row, may take none of them, waits
    for a batch to grow, or is of a group that leaves them to another, which is not left to itself.
    """
    replicas = scheduler._replicas
    if scheduler._requests.waiting.rows and scheduler._forming.held_until == inf:
        for replica in _ready(replicas):
            if replica.unhealthy and replicas.spares_above is None:
                continue
            if not _leaves_rows_to_others(scheduler, replica):
                _check_idle(scheduler, replica)


def _leaves_rows_to_others(scheduler: BatchScheduler, replica: BatchReplica) -> bool:
    """Whether its group has left what waits to others, which take rows of those lengths."""
    group, groups = replica.group, scheduler._groups.all()
    if group.is_open and not group.holds_back:
        return False
    lanes = list(scheduler._requests.waiting.lanes())
    lengths = scheduler._replicas.lengths_of(replica)
    alone = [lane.first_alone(lengths) for lane in lanes]
    if replica.leases and any(row and _allows(scheduler, replica, row) for row in alone):
        return True  # it empties for one of these, whatever its group said of the others
    edges = [e for lane in lanes for e, each in lane.length_classes.items() if each.rows]
    others = [each for each in groups if each.healthy and each.is_open and not each.holds_back]
    for edge in edges:
        if group.lengths is None or edge in group.lengths:
            assert any(each.lengths is None or edge in each.lengths for each in others), (
                "every group leaves what waits to another"
            )
    return True


def _check_idle(scheduler: BatchScheduler, replica: BatchReplica) -> None:
    """A ready replica must find nothing to take. Which lane comes first depends on the time, so the
    replica may be kept empty for any retried row that is not held back."""
    lengths = scheduler._replicas.lengths_of(replica)
    lanes = list(scheduler._requests.waiting.lanes())
    heads = [lane.first_alone(lengths) for lane in lanes]
    free = [head for head in heads if head is not None and not _is_held(scheduler, head)]
    if any(_allows(scheduler, replica, head) for head in free):
        assert replica.leases, "an empty replica is ready while a retried row waits"
        return
    assert all(lane.first(lengths) is None for lane in lanes), (
        "a replica is ready while rows wait that it may take"
    )


def _allows(scheduler: BatchScheduler, replica: BatchReplica, row: Row) -> bool:
    """Whether the retried row may go there: to the replica that it avoids only where no other one
    runs that takes rows of its length."""
    beside = scheduler._replicas.longest_beside(replica)
    return row.avoid != replica.spec.replica_id or row.edge > beside


def _is_held(scheduler: BatchScheduler, row: Row) -> bool:
    """Whether the row is held back because it would risk the last replica. `next_retry_at` is the
    earliest end of such a hold, and all of them lie ahead."""
    return row.held_until >= scheduler._forming.next_retry_at
