"""What is the state of the core now, in numbers for metrics, `status` and tests?

Reads all parts and changes nothing. Work: proportional to buckets, replicas and open leases, not to
the rows that wait. Exception: retried rows are counted one by one; there are at most as many as one
lost replica held.
"""

from __future__ import annotations

from typing import Any

from routers.api.snapshot import (
    FlowSnapshot,
    GroupSnapshot,
    ReplicaSnapshot,
    Snapshot,
)
from routers.estimates.groups import ReplicaGroup
from routers.estimates.pressure import pressure
from routers.shared.races import Races
from routers.shared.requests import RequestTable
from routers.state.flows import Flow, Flows
from routers.state.lanes import Bucket
from routers.state.leases import LeaseTable
from routers.state.replica_state import EJECTED, SILENT, AnyReplica
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue


def take_snapshot(
    requests: RequestTable,
    running: ReplicaSet[Any],
    leases: LeaseTable[Any],
    races: Races[Any],
    now: float,
) -> Snapshot:
    """The fields are explained in `api.snapshot`."""
    waiting, counts, groups = requests.waiting, races.counts, running.groups
    replicas = tuple(_replica(replica) for replica in running.by_id.values())
    utilisation = races.utilisation.read(running.busy_share, now)
    refused = requests.arrivals.refused.read(now)
    return Snapshot(
        waiting_rows=waiting.rows,
        late_rows=waiting.late_rows,
        waiting_requests=waiting.requests,
        oldest_wait_s=_oldest_wait_s(waiting, now),
        leases=len(leases.open),
        leased_rows=leases.rows(),
        drift=sum(replica.drift for replica in replicas),
        rows_by_bucket=_rows_by_bucket(waiting),
        backlog_s=waiting.seconds,
        replicas=replicas,
        unknown_closes=leases.unknown_closes,
        flows=tuple(_flow(waiting.flows, flow) for flow in waiting.flows.by_key.values()),
        controllers=requests.controllers.snapshot(groups.capacity, now),
        edges=waiting.edges,
        batch_targets=tuple(
            (edge, requests.groups.reference.sizes.shown(edge)[0]) for edge in waiting.edges
        ),
        edge_switches=requests.arrivals.edges.state.switches,
        hedges=counts.hedges,
        hedges_won=counts.hedges_won,
        ties=counts.ties,
        probes=counts.probes,
        retries=counts.retries,
        suspensions=counts.suspensions,
        moved_rows=counts.moved_rows,
        late_rows_used=counts.late_rows_used,
        evictions=counts.evictions,
        preempted=counts.preempted,
        budget_s=races.budget.level_s,
        utilisation=utilisation,
        pressure=int(pressure(refused, utilisation, races.hedge.max_utilisation)),
        idle_gap_s=counts.idle_gap_s,
        early_binding_s=counts.early_binding_s,
        generation=requests.generation_snapshot(),
        groups=tuple(_group(group) for group in groups.all()),
        longer_backlog=tuple((bound, waiting.seconds_above(bound)) for bound in groups.bounds),
        stranded=_is_stranded(waiting, running),
        offered=requests.arrivals.offered.snapshot(),
    )


def _is_stranded(waiting: RequestQueue, running: ReplicaSet[Any]) -> bool:
    """Whether rows wait that no running replica may take, however free it is."""
    groups = running.groups
    if not (running.running and groups.bounds):
        return waiting.rows > 0 and not running.running
    edges = [edge for edge, rows in _rows_by_bucket(waiting) if rows]
    return bool(edges) and not groups.takes(max(edges))


def _flow(flows: Flows, flow: Flow) -> FlowSnapshot:
    return FlowSnapshot(
        tenant=flow.tenant,
        priority=flow.priority,
        weight=flow.weight,
        rows=flow.rows,
        late_rows=flow.late_rows,
        waiting_s=flow.waiting_s,
        served_s=flow.served_s,
        start=flows.tag(flow),
    )


def _replica(replica: AnyReplica) -> ReplicaSnapshot:
    spec = replica.spec
    return ReplicaSnapshot(
        replica_id=spec.replica_id,
        capacity=spec.capacity,
        held=replica.held,
        leases=len(replica.leases),
        draining=replica.draining,
        drift=replica.drift,
        unhealthy=replica.unhealthy,
        ejected=replica.reasons & EJECTED > 0,
        suspended=replica.reasons & SILENT > 0,
        slowdown=replica.slowdown,
        group=replica.group.name,
    )


def _group(group: ReplicaGroup) -> GroupSnapshot:
    service = group.service()
    return GroupSnapshot(
        name=group.name,
        running=group.running,
        healthy=group.healthy,
        speed=group.speed,
        batch_s=group.batch_s,
        is_open=group.is_open,
        planned_s=service.seconds,
        planned_p99_s=service.p99_s,
        planned_scv=service.scv,
    )


def _oldest_wait_s(waiting: RequestQueue, now: float) -> float:
    buckets = [bucket for lane in waiting.lanes() for bucket in lane.buckets()]
    heads = [head for bucket in buckets if (head := bucket.head()) is not None]
    return max((now - head.tracked.queued_at for head in heads), default=0.0)


def _rows_by_bucket(waiting: RequestQueue) -> tuple[tuple[int, int], ...]:
    """Rows that wait, by edge: of the edges in force, and of older ones with rows."""
    counts = dict.fromkeys(waiting.edges, 0)
    for lane in waiting.lanes():
        for bucket in lane.buckets():
            for edge, rows in _by_edge(bucket):
                counts[edge] = counts.get(edge, 0) + rows
    return tuple(sorted(counts.items()))


def _by_edge(bucket: Bucket) -> list[tuple[int, int]]:
    if bucket.edge:
        return [(bucket.edge, bucket.rows)]
    return [(row.edge, 1) for row in bucket.live()]
