"""Which queue is next by its tag, when tags change while queues wait?

A tag is the start tag of the queue's flow, or the rank of its first row.
"""

from __future__ import annotations

from abc import abstractmethod
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

from routers.estimates.groups import LengthRange
from routers.state.flows import Flow
from routers.state.rows import Row

_STALE_ENTRIES: Final = 32  # allowed before the heap is compacted


Mark = tuple[float, int, Any]
"""(tag, number of the push, item): one entry of the heap."""


class Tagged:
    """Rows of one flow that can be ordered by tag. `mark` is its valid entry, or None; the order in
    which it stands owns that field. A class and no protocol: once compiled, a field of a protocol
    is read fifteen times slower."""

    flow: Flow
    rows: int
    mark: Mark | None

    def __init__(self, flow: Flow) -> None:
        self.flow, self.rows, self.mark = flow, 0, None

    @abstractmethod
    def rank(self) -> float:
        """That of its first row."""

    @abstractmethod
    def rank_of(self, row: Row) -> float:
        """The key that orders a row among the others, lowest first."""

    @abstractmethod
    def head(self) -> Row | None:
        """The first row, left where it is."""

    @abstractmethod
    def head_in(self, lengths: LengthRange) -> Row | None:
        """The first row of these lengths, left where it is."""


T = TypeVar("T", bound=Tagged)


class TagOrder(Generic[T]):
    """The items with rows, by the start tags of their flows or (`by_rank`) the ranks of their first
    rows, the lowest first.

    A heap with lazy correction: tags mostly grow, so the tag in an entry is a lower bound of the
    true one and is corrected only when the entry surfaces. An item whose tag has fallen (by a
    refund) needs `add` again. Work: O(log n) amortised for each change of a tag that surfaces;
    memory: at most twice the items that had rows when the heap was last compacted.
    """

    def __init__(self, *, by_rank: bool = False) -> None:
        self._by_rank = by_rank
        self.heap: list[Mark] = []
        self._aside: list[Mark] = []  # entries that have surfaced in a walk, as they stood
        self._surfaced: list[Mark] = []  # a heap of their items with rows, by tags of now
        self._pushed = 0
        self._most = _STALE_ENTRIES

    def tag(self, item: T) -> float:
        """The item's tag as it is now."""
        return item.rank() if self._by_rank else item.flow.start

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
        heap = self.heap
        while heap:
            mark = heap[0]
            item: T = mark[2]
            valid = item.mark
            if valid is None or valid[1] != mark[1]:
                heappop(heap)  # an older entry of an item that was added again
            elif not item.rows:
                heappop(heap)
                item.mark = None
            elif (start := self.tag(item)) != mark[0]:
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

    # -- a walk: whose row is next, while rows are taken and their flows charged?

    def begin_walk(self) -> None:
        """Begin at the lowest tag. What surfaces is set aside until the walk ends, and then stands
        where it stood: an item keeps its place among those with equal tags though it had no rows
        for a moment, and when its flow's charge is taken back."""
        self.first()

    def next_row(self, lengths: LengthRange | None = None) -> Row | None:
        """The first row of the item that is next; None: no item has any (of these lengths). Work:
        O(log n) for each item that surfaces."""
        heap, surfaced, by_rank = self.heap, self._surfaced, self._by_rank
        while heap or surfaced:
            is_new = not surfaced or (len(heap) > 0 and heap[0] < surfaced[0])
            mark = heap[0] if is_new else surfaced[0]
            item: T = mark[2]
            row: Row | None = None
            now = mark[0]
            if item.rows and (not is_new or _is_valid(mark)):
                row = item.head() if lengths is None else item.head_in(lengths)
                if row is not None:
                    now = item.rank_of(row) if by_rank else item.flow.start
                    if now == mark[0]:
                        return row
            if is_new:
                self._aside.append(heappop(heap))
                if row is not None:
                    heappush(surfaced, (now, mark[1], item))
            elif row is not None:
                heapreplace(surfaced, (now, mark[1], item))
            else:
                heappop(surfaced)
        return None

    def next_items(self, most: int) -> list[T]:
        """At most `most` of the items that are next, in order."""
        found: list[Mark] = []
        heap, surfaced = self.heap, self._surfaced
        while len(found) < most and self.next_row() is not None:
            if not surfaced or (len(heap) > 0 and heap[0] < surfaced[0]):
                mark = heappop(heap)
                self._aside.append(mark)
            else:
                mark = heappop(surfaced)
            found.append(mark)
        for mark in found:
            heappush(surfaced, mark)
        return [mark[2] for mark in found]

    def end_walk(self) -> None:
        if self._aside:
            for mark in self._aside:
                heappush(self.heap, mark)
            self._aside.clear()
            self._surfaced.clear()

    def clear(self) -> None:
        """Take out all items: none of them has rows."""
        for mark in self.heap:
            mark[2].mark = None
        self.heap.clear()
        if self._aside:
            for mark in self._aside:
                mark[2].mark = None
            self._aside.clear()
            self._surfaced.clear()

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
