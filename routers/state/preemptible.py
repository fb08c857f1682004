"""What less urgent work, already sent, may be taken back for rows that are more urgent?

On a batch replica: what is staged there unstarted. One lease more is signed, and the replica, whose
rule is that its least urgent staged batch goes back, returns it; no work is lost, no call is added.
On a stream replica without room, where that is allowed: the lease that began last of the least
urgent class, if all of it may run again, once, and no token of it has come. What leads because its
priority had been passed over too long is never taken back, and nothing is while such a batch is
due. Only on-time rows push.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from routers.state.replica_state import Lease, PreemptionEntry, ReplicaState

_TRIES = 4
_SLACK = 32


class PreemptibleReplicas:
    """Full batch replicas by the standing of what they would give up, the least urgent first."""

    def __init__(self) -> None:
        self._heap: list[PreemptionEntry] = []
        self._count = 0
        self._pushed = 0

    def place(self, replica: ReplicaState) -> None:
        lease = preemptible_lease(replica)
        entry = replica.preemption_entry
        if lease is None:
            if entry is not None:
                self._count -= 1
                replica.preemption_entry = None
            return
        late, priority = lease.batch.rank[:2]
        if entry is not None:
            if entry[:2] == (-late, -priority):
                return
            self._count -= 1
        self._pushed += 1
        self._count += 1
        replica.preemption_entry = entry = (-late, -priority, self._pushed, replica)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * self._count + _SLACK:
            self._heap = [each for each in self._heap if _is_valid(each)]
            heapify(self._heap)

    def for_priority(self, priority: int) -> ReplicaState | None:
        """The replica that would give up the least urgent lease, if that is less urgent."""
        heap = self._heap
        while heap and not _is_valid(heap[0]):
            heappop(heap)
        if heap and (-heap[0][0], -heap[0][1]) > (0, priority):
            return heap[0][3]
        return None


def _is_valid(entry: PreemptionEntry) -> bool:
    """Whether no other entry was made for its replica since."""
    valid = entry[3].preemption_entry
    return valid is not None and valid[2] == entry[2]


def preemptible_lease(replica: ReplicaState) -> Lease | None:
    """The least urgent lease that is staged at a full replica, unless it may not be given up."""
    if (
        replica.streams
        or replica.draining
        or replica.unhealthy
        or replica.held != replica.spec.capacity
    ):
        return None
    head = replica.head()
    staged = [
        lease
        for lease in replica.leases.values()
        if lease is not head and not (lease.opened or lease.non_preemptible or lease.probe)
    ]
    return max(staged, key=_rank, default=None)


class PreemptibleStreams:
    """Stream leases by priority, in the order in which they began."""

    def __init__(self) -> None:
        self._by_priority: dict[int, dict[Lease, None]] = {}

    def began(self, lease: Lease) -> None:
        self._by_priority.setdefault(lease.batch.rank[1], {})[lease] = None

    def ended(self, lease: Lease) -> None:
        self._by_priority.get(lease.batch.rank[1], {}).pop(lease, None)

    def victim(self, priority: int) -> Lease | None:
        """The one that lost least by being stopped, of the least urgent class that runs."""
        least = max([each for each, leases in self._by_priority.items() if leases], default=0)
        if least <= priority:
            return None
        for tries, lease in enumerate(reversed(self._by_priority[least])):
            if tries == _TRIES:
                break
            if _may_preempt(lease):
                return lease
        return None


def _may_preempt(lease: Lease) -> bool:
    """Not twice, not what may not run again, and one at a time on a replica."""
    running = lease.running
    if (
        lease.non_preemptible
        or not lease.live
        or (running is not None and running.first_at is not None)
        or any(other.recalled for other in lease.replica.leases.values())
    ):
        return False
    return all(row.tracked.request.retryable and not row.stopped for row in lease.members())


def _rank(lease: Lease) -> tuple[int, int, float]:
    return lease.batch.rank
