"""Which less urgent work, already sent, may be taken back for more urgent rows?

On a batch replica: a batch that is staged there unstarted. One lease more than fits is sent, and
the replica, whose rule is to return its least urgent staged batch, returns it. No work is lost and
no message is added.

On a stream replica without room, where settings allow preemption: of the least urgent priority that
runs there, the lease that began last. All its rows must be retryable and not have been stopped
before, no token of its answer may have come, and its caller may have had nothing of it.

A batch that leads because its priority had been passed over too long is never taken back, and
nothing is taken back while such a batch is due. Only on-time rows preempt.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from routers.state.replica_state import Lease, PreemptionEntry, ReplicaState

_TRIES = 4  # leases looked at for one preemption
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

    def for_priority(self, priority: int) -> ReplicaState | None:
        """The replica that would return the least urgent lease, if that lease is less urgent than
        on-time work of this priority; else None."""
        heap = self._heap
        while heap and not _is_valid(heap[0]):
            heappop(heap)
        if heap and (-heap[0][0], -heap[0][1]) > (0, priority):
            return heap[0][3]
        return None


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

    def victim(self, priority: int) -> Lease | None:
        """Of the least urgent priority that runs, below this one, the lease that began last and may
        be stopped: it loses least. None where there is none."""
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
    """Not while another lease of its replica is being recalled, not a lease that may not run again
    or whose first token has come, and not a row that was stopped before."""
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
