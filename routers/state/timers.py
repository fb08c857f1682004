"""When does the passing of time change what may become of a live request? The earliest first.

Each live request has one entry in a heap. Entries of forgotten requests are skipped and compacted
away, so the heap holds at most twice the live requests (plus a constant).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from routers.state.rows import TrackedRequest

_SLACK = 32  # stale entries allowed before the heap is compacted


class Timers:
    """One entry a live request. `due` takes an entry out; its caller puts the next one in."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, TrackedRequest]] = []

    def push(self, at: float, tracked: TrackedRequest) -> None:
        """Wake up for the request at this time."""
        heappush(self.heap, (at, tracked.rows[0].order, tracked))

    def due(self, now: float) -> TrackedRequest | None:
        """Take out a live request whose time has come; None if there is none."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            tracked = heappop(heap)[2]
            if tracked.open:
                return tracked
        return None

    def next_at(self) -> float:
        """When the first entry is due; inf: never."""
        heap = self.heap
        while heap:
            if heap[0][2].open:
                return heap[0][0]
            heappop(heap)
        return inf

    def trim(self, live: int) -> None:
        """Drop entries of forgotten requests once they outnumber the `live` requests."""
        if not live:
            self.heap.clear()
        elif len(self.heap) > 2 * live + _SLACK:
            self.heap[:] = [entry for entry in self.heap if entry[2].open]
            heapify(self.heap)
