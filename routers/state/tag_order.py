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


class Mark:
    """One entry of the heap. It is valid while its item has no other."""

    tag: float
    number: int  # of the push: the earlier push is first among equal tags
    item: Any
    at: int  # in a walk: its index in the heap

    def __init__(self, tag: float, number: int, item: Any) -> None:
        self.tag, self.number, self.item, self.at = tag, number, item, 0

    def __lt__(self, other: Mark) -> bool:
        if self.tag != other.tag:
            return self.tag < other.tag
        return self.number < other.number


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
        # In a walk: heaps of the entries that come next, and of items that have surfaced and still
        # have rows, by tags of now.
        self._ahead: list[Mark] = []
        self._surfaced: list[Mark] = []
        self._pushed = 0
        self._most = _STALE_ENTRIES

    def tag(self, item: T) -> float:
        """The item's tag as it is now."""
        return item.rank() if self._by_rank else item.flow.start

    def add(self, item: T) -> None:
        """The item has rows now, or its tag has fallen."""
        start, mark = self.tag(item), item.mark
        if mark is not None and mark.tag <= start:
            return
        self._pushed += 1
        item.mark = mark = Mark(start, self._pushed, item)
        heappush(self.heap, mark)
        if len(self.heap) > self._most:
            self._tidy()

    def first(self) -> T | None:
        """The item with rows that has the lowest tag, the first to come among equals; None if none
        has rows."""
        heap = self.heap
        while heap:
            mark = heap[0]
            item: T = mark.item
            if item.mark is not mark:
                heappop(heap)  # an older entry of an item that was added again
            elif not item.rows:
                heappop(heap)
                item.mark = None
            elif (start := self.tag(item)) != mark.tag:
                mark.tag = start
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

    # A walk leaves the heap as it is: an item keeps its place among those with equal tags though it
    # had no rows for a moment, and when its flow's charge is taken back. Entries are looked at in
    # order all the same, since in a heap only the two children of an entry can come next after it.

    def begin_walk(self) -> None:
        """Begin at the lowest tag."""
        if self.first() is not None:
            self._ahead.append(self.heap[0])
            self.heap[0].at = 0

    def next_row(self, lengths: LengthRange | None = None) -> Row | None:
        """The first row of the item that is next; None: no item has any (of these lengths). Work:
        O(log n) for each item that surfaces, n being those that have."""
        ahead, surfaced, by_rank = self._ahead, self._surfaced, self._by_rank
        while ahead or surfaced:
            is_new = self._is_new_next()
            mark = ahead[0] if is_new else surfaced[0]
            item: T = mark.item
            row: Row | None = None
            now = mark.tag
            if item.rows and (not is_new or item.mark is mark):
                row = item.head() if lengths is None else item.head_in(lengths)
                if row is not None:
                    now = item.rank_of(row) if by_rank else item.flow.start
                    if now == mark.tag:
                        return row
            if is_new:
                self._pass_by(mark)
                if row is not None:
                    heappush(surfaced, Mark(now, mark.number, item))
            elif row is not None:
                mark.tag = now
                heapreplace(surfaced, mark)
            else:
                heappop(surfaced)
        return None

    def _is_new_next(self) -> bool:
        """Whether the next entry has not surfaced yet."""
        ahead, surfaced = self._ahead, self._surfaced
        return not surfaced or (len(ahead) > 0 and ahead[0] < surfaced[0])

    def _pass_by(self, mark: Mark) -> None:
        """The first entry ahead has surfaced: its children come instead."""
        heap, ahead, child = self.heap, self._ahead, 2 * mark.at + 1
        if child >= len(heap):
            heappop(ahead)
            return
        heap[child].at = child
        heapreplace(ahead, heap[child])
        child += 1
        if child < len(heap):
            heap[child].at = child
            heappush(ahead, heap[child])

    def next_items(self, most: int) -> list[T]:
        """At most `most` of the items that are next, in order."""
        found: list[Mark] = []
        while len(found) < most and self.next_row() is not None:
            if self._is_new_next():
                mark = self._ahead[0]
                self._pass_by(mark)
                found.append(Mark(mark.tag, mark.number, mark.item))
            else:
                found.append(heappop(self._surfaced))
        for mark in found:
            heappush(self._surfaced, mark)
        return [mark.item for mark in found]

    def end_walk(self) -> None:
        if self._ahead:
            self._ahead.clear()
        if self._surfaced:
            self._surfaced.clear()

    def clear(self) -> None:
        """Take out all items: none of them has rows."""
        for mark in self.heap:
            item: T = mark.item
            item.mark = None
        self.heap.clear()
        self.end_walk()

    def _tidy(self) -> None:
        kept: list[Mark] = []
        for mark in self.heap:
            item: T = mark.item
            if item.mark is not mark:
                continue
            if item.rows:
                kept.append(mark)
            else:
                item.mark = None
        heapify(kept)
        self.heap[:] = kept
        self._most = 2 * len(kept) + _STALE_ENTRIES
