"""Which queue is next by its tag, when tags change while queues wait?

A tag is the start tag of the queue's flow, or the rank of its first row.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, Protocol, TypeVar

from routers.state.flows import Flow

_STALE_ENTRIES = 32  # allowed before the heap is compacted


Mark = tuple[float, int, Any]
"""(tag, number of the push, item): one entry of the heap."""


class Tagged(Protocol):
    """What can be ordered by tag. `mark` is its valid entry, or None; the order in which it stands
    owns that field. `rank` is that of its first row."""

    flow: Flow
    rows: int
    mark: Mark | None

    def rank(self) -> float: ...


def start_tag(item: Tagged) -> float:
    """The start tag of its flow."""
    return item.flow.start


def rank_tag(item: Tagged) -> float:
    """The rank of its first row."""
    return item.rank()


T = TypeVar("T", bound=Tagged)


class TagOrder(Generic[T]):
    """The items with rows, by their `tag`, the lowest first.

    A heap with lazy correction: tags mostly grow, so the tag in an entry is a lower bound of the
    true one and is corrected only when the entry surfaces. An item whose tag has fallen (by a
    refund) needs `add` again. Work: O(log n) amortised for each change of a tag that surfaces;
    memory: at most twice the items that had rows when the heap was last compacted.
    """

    def __init__(self, tag: Callable[[T], float] = start_tag) -> None:
        self.tag = tag
        self.heap: list[Mark] = []
        self._pushed = 0
        self._most = _STALE_ENTRIES

    def add(self, item: T) -> None:
        """The item has rows now, or its tag has fallen."""
        start, mark = self.tag(item), item.mark
        if mark is not None and mark[0] <= start:
            return
        self._pushed += 1
        item.mark = mark = (start, self._pushed, item)
        heappush(self.heap, mark)
        if len(self.heap) > self._most:
            self._tidy()

    def first(self) -> T | None:
        """The item with rows that has the lowest tag, the first to come among equals; None if none
        has rows."""
        heap, tag = self.heap, self.tag
        while heap:
            mark = heap[0]
            item: T = mark[2]
            valid = item.mark
            if valid is None or valid[1] != mark[1]:
                heappop(heap)  # an older entry of an item that was added again
            elif not item.rows:
                heappop(heap)
                item.mark = None
            elif (start := tag(item)) != mark[0]:
                item.mark = mark = (start, mark[1], item)
                heapreplace(heap, mark)
            else:
                return item
        return None

    def firsts(self, most: int) -> list[T]:
        """At most `most` items in order, left where they are."""
        found: list[T] = []
        marks: list[Mark] = []
        while len(found) < most and (item := self.first()) is not None:
            found.append(item)
            marks.append(heappop(self.heap))
        for mark in marks:
            heappush(self.heap, mark)
        return found

    def clear(self) -> None:
        """Take out all items: none of them has rows."""
        for mark in self.heap:
            mark[2].mark = None
        self.heap.clear()

    def _tidy(self) -> None:
        kept: list[Mark] = []
        for mark in self.heap:
            item = mark[2]
            if not _is_valid(mark):
                continue
            if item.rows:
                kept.append(mark)
            else:
                item.mark = None
        heapify(kept)
        self.heap[:] = kept
        self._most = 2 * len(kept) + _STALE_ENTRIES


def _is_valid(mark: Mark) -> bool:
    """Whether this is the last entry that was made for its item."""
    valid: Mark | None = mark[2].mark
    return valid is not None and valid[1] == mark[1]
