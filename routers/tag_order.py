"""Which of these is next by its flow's tag, when tags move while they wait?

A heap with lazy correction: tags mostly grow, so an entry's tag is a lower bound of the true one
and is put right only when it surfaces. A tag that falls (a refund) needs `add` again. Work:
O(log n) amortised for each change of a tag that surfaces. It knows nothing of what it orders but
the flow, whether anything is left in it, and the mark it keeps on it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, Protocol, TypeVar

from routers.flows import Flow

_SLACK = 32


class Tagged(Protocol):
    """`mark`: tag of its valid entry, None: it has none. Owned by the order it stands in."""

    flow: Flow
    rows: int
    mark: float | None


T = TypeVar("T", bound=Tagged)


class TagOrder(Generic[T]):
    def __init__(self) -> None:
        self.heap: list[tuple[float, int, T]] = []
        self._pushed = 0
        self._members = 0

    def add(self, item: T) -> None:
        """It has rows now, or its flow's tag has fallen."""
        start = item.flow.start
        if item.mark is not None and item.mark <= start:
            return
        if item.mark is None:
            self._members += 1
        item.mark = start
        self._pushed += 1
        heappush(self.heap, (start, self._pushed, item))
        if len(self.heap) > 2 * self._members + _SLACK:
            self._compact()

    def first(self) -> T | None:
        """The one with rows whose flow has the lowest tag, first come among equals."""
        heap = self.heap
        while heap:
            mark, number, item = heap[0]
            if item.mark != mark:
                heappop(heap)  # an older entry of one that was added again
            elif not item.rows:
                heappop(heap)
                item.mark = None
                self._members -= 1
            elif item.flow.start != mark:
                item.mark = start = item.flow.start
                heapreplace(heap, (start, number, item))
            else:
                return item
        return None

    def _compact(self) -> None:
        self.heap[:] = [entry for entry in self.heap if entry[2].mark == entry[0]]
        heapify(self.heap)
