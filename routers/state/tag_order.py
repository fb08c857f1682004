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
"""(tag, number of the push, item): one entry of the heap. It is valid while its item has that
number. A plain tuple, which `heapq` compares faster than anything that has a method for it."""


class Tagged:
    """Rows of one flow that can be ordered by tag. A class and no protocol: once compiled, a field
    of a protocol is read fifteen times slower."""

    flow: Flow
    rows: int
    # Of its valid entry; the order in which it stands owns both. Number 0: it has none.
    tag: float
    number: int

    def __init__(self, flow: Flow) -> None:
        self.flow, self.rows, self.tag, self.number = flow, 0, 0.0, 0

    @abstractmethod
    def rank(self) -> float:
        """That of its first row."""

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
        # In a walk: the entries that come next, as heaps. `_ahead`: those that have not surfaced
        # yet, with their index in `heap`; `_surfaced`: items with rows, by tags of now.
        self._ahead: list[tuple[float, int, int]] = []
        self._surfaced: list[Mark] = []
        self._pushed = 0
        self._most = _STALE_ENTRIES

    def tag(self, item: T) -> float:
        """The item's tag as it is now."""
        return item.rank() if self._by_rank else item.flow.start

    def add(self, item: T) -> None:
        """The item has rows now, or its tag has fallen."""
        start = self.tag(item)
        if item.number and item.tag <= start:
            return
        self._pushed += 1
        item.tag, item.number = start, self._pushed
        heappush(self.heap, (start, self._pushed, item))
        if len(self.heap) > self._most:
            self._tidy()

    def first(self) -> T | None:
        """The item with rows that has the lowest tag, the first to come among equals; None if none
        has rows."""
        heap = self.heap
        while heap:
            mark = heap[0]
            item: T = mark[2]
            if item.number != mark[1]:
                heappop(heap)  # an older entry of an item that was added again
            elif not item.rows:
                heappop(heap)
                item.number = 0
            elif (start := self.tag(item)) != mark[0]:
                item.tag = start
                heapreplace(heap, (start, mark[1], item))
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

    # A walk leaves the heap as it is: an item keeps its place among those with equal tags though it
    # had no rows for a moment, and when its flow's charge is taken back. Entries are looked at in
    # order all the same, since in a heap only the two children of an entry can come next after it.

    def begin_walk(self) -> None:
        """Begin at the lowest tag."""
        if self.first() is not None:
            tag, number, _ = self.heap[0]
            self._ahead.append((tag, number, 0))

    def next_row(self, lengths: LengthRange | None = None) -> Row | None:
        """The first row of the item that is next; None: no item has any (of these lengths). Work:
        O(log n) for each item that surfaces, n being those that have."""
        heap, ahead, surfaced = self.heap, self._ahead, self._surfaced
        by_rank = self._by_rank
        while ahead or surfaced:
            is_new = not surfaced or (len(ahead) > 0 and ahead[0] < surfaced[0])
            tag, number, found = heap[ahead[0][2]] if is_new else surfaced[0]
            item: T = found
            row: Row | None = None
            now = tag
            if item.rows and (not is_new or item.number == number):
                row = item.head() if lengths is None else item.head_in(lengths)
                if row is not None:
                    now = row.rank if by_rank else item.flow.start
                    if now == tag:
                        return row
            if is_new:
                self._pass_by(ahead[0][2])
                if row is not None:
                    heappush(surfaced, (now, number, item))
            elif row is not None:
                heapreplace(surfaced, (now, number, item))
            else:
                heappop(surfaced)
        return None

    def _pass_by(self, at: int) -> None:
        """The first entry ahead, at this index, has surfaced: its children come instead."""
        heap, ahead, child = self.heap, self._ahead, 2 * at + 1
        if child >= len(heap):
            heappop(ahead)
            return
        tag, number, _ = heap[child]
        heapreplace(ahead, (tag, number, child))
        child += 1
        if child < len(heap):
            tag, number, _ = heap[child]
            heappush(ahead, (tag, number, child))

    def next_items(self, most: int) -> list[T]:
        """At most `most` of the items that are next, in order."""
        found: list[Mark] = []
        ahead, surfaced = self._ahead, self._surfaced
        while len(found) < most and self.next_row() is not None:
            if not surfaced or (len(ahead) > 0 and ahead[0] < surfaced[0]):
                at = ahead[0][2]
                found.append(self.heap[at])
                self._pass_by(at)
            else:
                found.append(heappop(surfaced))
        for mark in found:
            heappush(surfaced, mark)
        return [mark[2] for mark in found]

    def end_walk(self) -> None:
        if self._ahead:
            self._ahead.clear()
        if self._surfaced:
            self._surfaced.clear()

    def clear(self) -> None:
        """Take out all items: none of them has rows."""
        for mark in self.heap:
            item: T = mark[2]
            item.number = 0
        self.heap.clear()
        self.end_walk()

    def _tidy(self) -> None:
        kept: list[Mark] = []
        for mark in self.heap:
            item: T = mark[2]
            if item.number != mark[1]:
                continue
            if item.rows:
                kept.append(mark)
            else:
                item.number = 0
        heapify(kept)
        self.heap[:] = kept
        self._most = 2 * len(kept) + _STALE_ENTRIES
