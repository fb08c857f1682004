"""What was sent and might be taken back, in the order in which it is looked for.

Full batch replicas by the batch that each would return, and stream leases by priority. Whether any
of them gives way to more urgent rows is `policies.preemption`'s question. Work: O(log n) where a
replica changes, O(1) where a stream begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from routers.estimates.groups import ReplicaGroup
from routers.state.replica_state import Lease, PreemptionEntry, ReplicaState

_SLACK = 32  # stale entries allowed before a heap is compacted


class PreemptibleReplicas:
    """Full batch replicas by group, ordered by the standing of the lease that each would return,
    the least urgent first."""

    def __init__(self) -> None:
        self._heaps: dict[ReplicaGroup, _Heap] = {}
        self._pushed = 0

    def place(self, replica: ReplicaState) -> None:
        """Find the replica's place anew. To be called after anything about its leases has
        changed."""
        lease = preemptible_lease(replica)
        entry = replica.preemption_entry
        if lease is None:
            if entry is not None:
                self._heaps[replica.group].count -= 1
                replica.preemption_entry = None
            return
        heap = self._heaps.get(replica.group)
        if heap is None:
            heap = self._heaps[replica.group] = _Heap()
        late, priority = lease.batch.rank[:2]
        if entry is not None:
            if entry[:2] == (-late, -priority):
                return
            heap.count -= 1
        self._pushed += 1
        heap.count += 1
        replica.preemption_entry = entry = (-late, -priority, self._pushed, replica)
        heap.push(entry)

    def least_urgent(
        self, counts: Callable[[ReplicaGroup], bool] | None = None
    ) -> ReplicaState | None:
        """The replica that would return the least urgent batch, of the groups that count (None:
        all); None where none would return one."""
        least: PreemptionEntry | None = None
        for group, heap in self._heaps.items():
            entry = heap.first() if counts is None or counts(group) else None
            if entry is not None and (least is None or entry[:3] < least[:3]):
                least = entry
        return None if least is None else least[3]


class _Heap:
    """The entries of one group's replicas; `count` of them are valid."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: list[PreemptionEntry] = []

    def push(self, entry: PreemptionEntry) -> None:
        heappush(self._entries, entry)
        if len(self._entries) > 2 * self.count + _SLACK:
            self._entries = [each for each in self._entries if _is_valid(each)]
            heapify(self._entries)

    def first(self) -> PreemptionEntry | None:
        entries = self._entries
        while entries and not _is_valid(entries[0]):
            heappop(entries)
        return entries[0] if entries else None


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
