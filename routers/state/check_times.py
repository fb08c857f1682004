"""When is each of these to be looked at next? The earliest first, one time each.

Entries whose time has moved, or is asked for no more, are skipped and compacted away.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

_SLACK = 32

T = TypeVar("T", bound=Hashable)


class CheckTimes(Generic[T]):
    """Of those due at the same time the one of the lowest `order` is first, or where none is given
    the one that was asked for first."""

    def __init__(self) -> None:
        self._at: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._asked = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, what: T) -> float:
        """inf: never."""
        return self._at.get(what, inf)

    def look_at(self, what: T, at: float, order: int | None = None) -> None:
        """Instead of when it was to be looked at before; inf: not at all."""
        if at == inf:
            self.drop(what)
            return
        self._at[what] = at
        if order is None:
            self._asked = order = self._asked + 1
        heap = self._heap
        heappush(heap, (at, order, what))
        if len(heap) > 2 * len(self._at) + _SLACK:
            heap[:] = [entry for entry in heap if self._at.get(entry[2]) == entry[0]]
            heapify(heap)

    def drop(self, what: T) -> None:
        """It is not to be looked at."""
        self._at.pop(what, None)

    def due(self, now: float) -> tuple[T, float] | None:
        """Who is due, and since when; once for each time that was asked for."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, what = heappop(heap)
            if self._at.get(what) == at:
                del self._at[what]
                return what, at
        return None

    def first(self) -> T | None:
        return self._heap[0][2] if self.next_at() < inf else None

    def next_at(self) -> float:
        """inf: never."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf
