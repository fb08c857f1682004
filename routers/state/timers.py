"""When is each request, lease or replica to be looked at next? The earliest first.

Entries of what was forgotten, moved or dropped are skipped and compacted away, so a heap holds at
most twice what is live (plus a constant). Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

from routers.state.rows import TrackedRequest

_SLACK: Final = 32  # stale entries allowed before the heap is compacted


class Timers:
    """One entry a live request: when the passing of time changes what may become of it. `due` takes
    an entry out; its caller puts the next one in."""

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


T = TypeVar("T", bound=Hashable)


class CheckTimes(Generic[T]):
    """One time for each item. Of items due at the same time, the one with the lowest `order` is
    first; without an order, the one asked for first."""

    def __init__(self) -> None:
        self._at: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._last_order = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, what: T) -> float:
        """When the item is to be looked at; inf: never."""
        return self._at.get(what, inf)

    def look_at(self, what: T, at: float, order: int | None = None) -> None:
        """Look at the item at this time instead of any time asked for before; inf: never."""
        if at == inf:
            self.drop(what)
            return
        self._at[what] = at
        if order is None:
            self._last_order = order = self._last_order + 1
        heap = self._heap
        heappush(heap, (at, order, what))
        if len(heap) > 2 * len(self._at) + _SLACK:
            heap[:] = [entry for entry in heap if self._at.get(entry[2]) == entry[0]]
            heapify(heap)

    def drop(self, what: T) -> None:
        """Do not look at the item."""
        self._at.pop(what, None)

    def due(self, now: float) -> tuple[T, float] | None:
        """An item that is due, and the time it was due at; None if none is. An item is returned
        once for each time that was asked for."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, what = heappop(heap)
            if self._at.get(what) == at:
                del self._at[what]
                return what, at
        return None

    def first(self) -> T | None:
        """The item that is due first; None if there is none."""
        return self._heap[0][2] if self.next_at() < inf else None

    def next_at(self) -> float:
        """When the first item is due; inf: never."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf
