"""When is a lease to be looked at next? The earliest first, one time a lease.

Entries of leases whose time has moved, or that have closed, are skipped and compacted away.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from routers.state.replica_state import Lease

_SLACK = 32


class LeaseTimers:
    """`next_check_at` of a lease says which of its entries holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def look_at(self, lease: Lease, at: float) -> None:
        """Instead of when it was to be looked at before."""
        lease.next_check_at = at
        if at < inf:
            heappush(self._heap, (at, lease.lease_id, lease))

    def due(self, now: float) -> Lease | None:
        """Once for each time that was asked for."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, lease = heappop(heap)
            if lease.next_check_at == at:
                lease.next_check_at = inf
                return lease
        return None

    def next_at(self) -> float:
        """inf: never."""
        heap = self._heap
        while heap and heap[0][2].next_check_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf

    def trim(self, leases: int) -> None:
        """Drop what holds no more once it outnumbers the open leases."""
        if len(self._heap) > 2 * leases + _SLACK:
            self._heap[:] = [entry for entry in self._heap if entry[2].next_check_at == entry[0]]
            heapify(self._heap)
