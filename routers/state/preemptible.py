"""What was sent and might be taken back, in the order in which it is looked for.

Full batch replicas by the batch that each would return, and stream leases by priority. Whether any
of them gives way to more urgent rows is `policies.preemption`'s question. Work: O(log n) where a
replica changes, O(1) where a stream begins or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from routers.state.replica_state import Lease, PreemptionEntry, ReplicaState

_SLACK = 32  # stale entries allowed before the heap is compacted


class PreemptibleReplicas:
    """Full batch replicas, ordered by the standing of the lease that each would return, the least
    urgent first."""

    def __init__(self) -> None:
        self._heap: list[PreemptionEntry] = []
        self._count = 0
        self._pushed = 0

    def place(self, replica: ReplicaState) -> None:
        """Find the replica's place anew. To be called after anything about its leases has
        changed."""
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

    def least_urgent(self) -> ReplicaState | None:
        """The replica that would return the least urgent batch; None where none would return
        one."""
        heap = self._heap
        while heap and not _is_valid(heap[0]):
            heappop(heap)
        return heap[0][3] if heap else None


def _is_valid(entry: PreemptionEntry) -> bool:
    """Whether this is the last entry that was made for its replica."""
    valid = entry[3].preemption_entry
    return valid is not None and valid[2] == entry[2]


def standing(replica: ReplicaState) -> tuple[int, int]:
    """(late, priority) of the batch that this replica, one of those that would return one, would
    return; the higher, the less urgent."""
    entry = replica.preemption_entry
    assert entry is not None
    return -entry[0], -entry[1]


def preemptible_lease(replica: ReplicaState) -> Lease | None:
    """The least urgent lease staged at a full, healthy batch replica; None where there is none that
    may be returned."""
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
    """Open stream leases by priority, in the order in which they began."""

    def __init__(self) -> None:
        self._by_priority: dict[int, dict[Lease, None]] = {}

    def began(self, lease: Lease) -> None:
        """A stream lease was opened."""
        self._by_priority.setdefault(lease.batch.rank[1], {})[lease] = None

    def ended(self, lease: Lease) -> None:
        """A stream lease has closed."""
        self._by_priority.get(lease.batch.rank[1], {}).pop(lease, None)

    def priorities(self) -> Iterable[int]:
        """The priorities that have an open lease."""
        return [each for each, leases in self._by_priority.items() if leases]

    def latest_first(self, priority: int) -> Iterator[Lease]:
        """The leases of this priority, the one that began last first."""
        return reversed(self._by_priority.get(priority, {}))


def _rank(lease: Lease) -> tuple[int, int, float]:
    return lease.batch.rank
