"""A batch replica, a batch that it holds, and what it may be given or asked back.

A lease takes one slot. The leases of a replica run one after another, behind the batches that other
gateways have started there. So `BatchLease.starts_at` is a prediction until the replica reports
`Opened`, or until the lease before it has closed. A replica that runs nothing is due at once. One
that runs a batch is due at its predicted finish less the measured transport (*just in time*), so
that the staged batch binds its rows as late as it can without leaving the device idle; while no
transport has been measured there, it is due at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import ClassVar, Final

from routers.api.requests import Replica, ReplicaKind
from routers.estimates.groups import ReplicaGroup, ReplicaGroups
from routers.estimates.ratio_histogram import RatioHistogram
from routers.policies.placement import Placement
from routers.state.flows import Charge
from routers.state.lanes import Lane
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row

_SLACK: Final = 32  # stale entries allowed before a heap is compacted


class Preemptible:
    """The standing (late, priority) of the lease that a replica would return, while that `holds`;
    the higher, the less urgent. Among equals the lower `number` is first."""

    def __init__(self, replica: BatchReplica, late: int, priority: int, number: int) -> None:
        self.replica, self.late, self.priority = replica, late, priority
        self.number, self.holds = number, True

    def __lt__(self, other: Preemptible) -> bool:
        """The less urgent comes first."""
        if self.late != other.late:
            return self.late > other.late
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.number < other.number


class FormedBatch:
    """The content of a lease: rows in order, and what they are predicted to take.

    `width`: tokens a row that costs are predicted for: the longest row, or the mean if packed;
    `edge`: of the bucket that leads.
    """

    def __init__(self, rows: list[Row], width: int, edge: int, charge: Charge) -> None:
        self.rows, self.width, self.edge, self.charge = rows, width, edge, charge


class BatchReplica(ReplicaState["BatchLease"]):
    """A replica that runs batches one after another; `held` counts slots."""

    def __init__(self, spec: Replica, group: ReplicaGroup) -> None:
        super().__init__(spec, group)
        self.isolated_leases = 0  # open leases of rows that travel alone
        self.last_edge = 0  # bucket of the last lease that it was sent; 0: none yet
        self.answered_at = -inf  # when its last answer came
        self.idle_from = 0.0  # when the batch of that answer had left the device
        self.busy_until = 0.0  # the predicted finish that its group was last told
        self.preemptible: Preemptible | None = None  # what it would return for more urgent work

    def has_room(self) -> bool:
        """Whether one more lease fits. One that holds a row that travels alone takes nothing beside
        it."""
        return self.held + 1.0 <= self.spec.capacity and not self.isolated_leases

    def may_probe(self) -> bool:
        """It must hold nothing."""
        return not self.leases

    def due_at(self) -> float:
        if not self.has_room():
            return inf
        if self.transport_s is None:
            return self.blocked_until
        running_s = 0.0
        if self.foreign.shared:
            head = self.head()
            running_s = head.predicted_s if head is not None else self.group.batch_s
        return max(self.finish_at - self.lead_s(running_s), self.blocked_until)

    def busy_share(self) -> float:
        """Whether it holds a batch."""
        return 1.0 if self.leases else 0.0

    def remains(self) -> bool:
        return not (self.draining or self.unhealthy or self.isolated_leases)

    # -- its leases

    def took(self, lease: BatchLease) -> None:
        """Record that it was sent the lease, and runs it behind those that it holds."""
        self.leases[lease.lease_id] = lease
        self.held += 1.0
        self.isolated_leases += lease.isolated
        self.last_used = lease.lease_id
        self.last_edge = lease.batch.edge
        self.finish_at = lease.starts_at + lease.predicted_s

    def gave_back(self, lease: BatchLease, now: float) -> None:
        """Record that the lease has closed. If that lease was running, the one staged behind it is
        taken to start now."""
        was_head = self.head() is lease
        del self.leases[lease.lease_id]
        self.held -= 1.0
        self.isolated_leases -= lease.isolated
        if was_head:
            head = self.head()
            if head is not None and not head.opened:
                head.starts_at = max(now, self.foreign.until)

    def predict_finish(self, now: float) -> None:
        """Predict anew when its open leases will have finished, one after another. A lease that was
        recalled before it opened is taken not to run."""
        finish = self.foreign.until if self.foreign.until > now else 0.0
        for position, lease in enumerate(self.leases.values()):
            if lease.recalled and not lease.opened:
                continue
            if position and not lease.opened:
                lease.starts_at = max(now, finish)
            finish = max(finish, lease.starts_at + lease.predicted_s)
        self.finish_at = finish


class BatchLease(Lease[BatchReplica]):
    """One batch that a replica holds. `starts_at` is predicted until `opened`."""

    def __init__(
        self, lease_id: int, replica: BatchReplica, batch: FormedBatch, now: float
    ) -> None:
        super().__init__(lease_id, replica, batch.rows, now)
        self.batch = batch
        self.predicted_s = batch.charge.predicted_s
        self.starts_at = max(now, replica.finish_at)
        self.staged = bool(replica.leases)  # sent while the replica held another lease
        self.isolated = batch.rows[0].isolated  # of a row that travels alone
        self.non_preemptible = False  # not given up for more urgent work
        self.ratios: RatioHistogram | None = None  # of its group and bucket, once looked up

    @property
    def rank(self) -> tuple[int, int, float]:
        """See `api.actions.Dispatch`."""
        return self.batch.charge.rank


class BatchReplicas(ReplicaSet[BatchReplica]):
    """All batch replicas of a model."""

    kind: ClassVar[ReplicaKind] = ReplicaKind.BATCH

    def __init__(self, groups: ReplicaGroups, placement: Placement) -> None:
        super().__init__(groups, placement)
        self.preemptible = PreemptibleReplicas()

    def make(self, spec: Replica, group: ReplicaGroup) -> BatchReplica:
        return BatchReplica(spec, group)

    def update(self, replicas: Iterable[Replica], now: float) -> list[BatchReplica]:
        for replica in self.by_id.values():
            replica.busy_until = 0.0  # groups are counted anew
        return super().update(replicas, now)

    def follow(self, replica: BatchReplica) -> None:
        if len(self.groups.by_name) > 1:
            free = replica.reasons or replica.draining
            until = 0.0 if free else replica.finish_at
            replica.group.busy_until(replica.busy_until, until)
            replica.busy_until = until
        self.preemptible.place(replica)


class PreemptibleReplicas:
    """Full batch replicas by group, ordered by the standing of the lease that each would return,
    the least urgent first."""

    def __init__(self) -> None:
        self._heaps: dict[ReplicaGroup, _Heap] = {}
        self._pushed = 0
        self.count = 0  # replicas that would return one

    def place(self, replica: BatchReplica) -> None:
        """Find the replica's place anew. To be called after anything about its leases has
        changed."""
        lease, known = preemptible_lease(replica), replica.preemptible
        if lease is None:
            if known is not None:
                self._drop(known)
                replica.preemptible = None
            return
        late, priority, _ = lease.batch.charge.rank
        if known is not None:
            if known.late == late and known.priority == priority:
                return
            self._drop(known)
        heap = self._heaps.get(replica.group)
        if heap is None:
            heap = self._heaps[replica.group] = _Heap()
        self._pushed += 1
        heap.count += 1
        self.count += 1
        replica.preemptible = known = Preemptible(replica, late, priority, self._pushed)
        heap.push(known)

    def _drop(self, known: Preemptible) -> None:
        known.holds = False
        self._heaps[known.replica.group].count -= 1
        self.count -= 1

    def least_urgent(self, lane: Lane | None = None) -> BatchReplica | None:
        """The replica that would return the least urgent batch, of the groups that take a row that
        waits in the lane (None: of all); None where none would return one."""
        least: Preemptible | None = None
        for group, heap in self._heaps.items():
            lengths = None if lane is None else group.lengths
            if lane is not None and lengths is not None and lane.seconds_in(lengths) <= 0.0:
                continue
            first = heap.first()
            if first is not None and (least is None or first < least):
                least = first
        return None if least is None else least.replica


class _Heap:
    """The entries of one group's replicas; `count` of them are valid."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: list[Preemptible] = []

    def push(self, entry: Preemptible) -> None:
        heappush(self._entries, entry)
        if len(self._entries) > 2 * self.count + _SLACK:
            self._entries = [each for each in self._entries if each.holds]
            heapify(self._entries)

    def first(self) -> Preemptible | None:
        entries = self._entries
        while entries:
            if entries[0].holds:
                return entries[0]
            heappop(entries)
        return None


def preemptible_lease(replica: BatchReplica) -> BatchLease | None:
    """The least urgent lease staged at a full, healthy batch replica; None where there is none that
    may be returned."""
    if replica.draining or replica.unhealthy or replica.held != replica.spec.capacity:
        return None
    if len(replica.leases) < 2:
        return None
    found, is_head = None, True
    for lease in replica.leases.values():
        if is_head or lease.opened or lease.non_preemptible or lease.is_probe:
            is_head = False
        elif found is None or lease.rank > found.rank:
            found = lease
    return found
