"""Which work that was sent gives its place to a more urgent row? The least urgent, if less urgent.

Two sorts of work may be taken back for an on-time row that waits. On a batch replica: a batch that
is staged there unstarted. One lease more than fits is sent, and the replica, whose rule is to
return its least urgent staged batch, returns it; no work is lost. On a stream replica, where
settings allow it: of the least urgent priority that runs, the lease that began last, of whose
answer no token has come, and whose rows are all retryable and were not stopped before. Late batches
are less urgent than any on time. The core sends, recalls and counts. Work: O(log n) where a replica
changes, O(1) where a stream begins or ends. Source: vLLM stops sequences in the same order.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice

from routers.state.replica_state import Lease, PreemptionEntry, ReplicaState

_SLACK = 32  # stale entries allowed before the heap is compacted
_TRIES = 4  # leases of a priority that are looked at


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

    def gives_back(self, urgent: int) -> ReplicaState | None:
        """The full replica that returns its least urgent staged batch to a row of the priority
        `urgent`; None: none does."""
        heap = self._heap
        while heap and not _is_valid(heap[0]):
            heappop(heap)
        if not heap:
            return None
        late, priority, _, replica = heap[0]
        return replica if (-late, -priority) > (0, urgent) else None


def _is_valid(entry: PreemptionEntry) -> bool:
    """Whether this is the last entry that was made for its replica."""
    valid = entry[3].preemption_entry
    return valid is not None and valid[2] == entry[2]


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

    def stops(self, urgent: int) -> Lease | None:
        """The lease that is stopped for a row of the priority `urgent`, so that its row waits
        again; None: none is, of the latest few of the least urgent priority."""
        least = max([each for each, leases in self._by_priority.items() if leases], default=0)
        if least <= urgent:
            return None
        latest_first = islice(reversed(self._by_priority[least]), _TRIES)
        return next((lease for lease in latest_first if _may_stop(lease)), None)


def _may_stop(lease: Lease) -> bool:
    """Not while another lease of its replica is being recalled, not a lease that may not run again
    or whose first token has come, and not a row that was stopped before or of whose answer its
    caller has had a part."""
    running = lease.running
    if (
        lease.non_preemptible
        or not lease.live
        or (running is not None and running.first_at is not None)
        or any(other.recalled for other in lease.replica.leases.values())
    ):
        return False
    rows = lease.members()
    return all(r.tracked.request.retryable and not (r.stopped or r.shown) for r in rows)


def _rank(lease: Lease) -> tuple[int, int, float]:
    return lease.batch.rank
