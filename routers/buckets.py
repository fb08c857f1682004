"""What waits, by length: the bounded queue of rows, first in first out within a bucket.

Two lanes hold the same buckets: rows that can still meet their deadline, and late ones. Each lane
also has a queue of retried rows, which travel alone. A bucket is a heap on arrival order with lazy
deletion, so a row that comes back from a replica finds its old place, and leaving costs O(log n)
amortised; a heap never holds more than twice its live rows (plus a constant) and an empty bucket
holds nothing. Which bucket goes first is `batcher`'s question; bounds are `bounds`'.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from routers.settings import DispatcherSettings
from routers.tickets import Row

_SLACK = 32


@dataclass(slots=True, eq=False)
class Lane:
    """Rows of one standing (on time, or late): one bucket an edge, and the retried ones."""

    late: bool
    buckets: tuple[Bucket, ...] = ()
    solo: Bucket = field(init=False)
    rows: int = 0

    def queues(self) -> Iterator[Bucket]:
        yield from self.buckets
        yield self.solo


@dataclass(slots=True, eq=False)
class Bucket:
    """Rows of lengths up to `edge`. `fit`: how many of them one batch may hold, at least 1."""

    lane: Lane
    index: int
    edge: int
    fit: int
    rows: int = 0
    tokens: int = 0
    heap: list[tuple[int, Row]] = field(default_factory=list)

    def push(self, row: Row) -> None:
        row.queue = self
        self.rows += 1
        self.tokens += row.length
        self.lane.rows += 1
        heappush(self.heap, (row.order, row))

    def head(self) -> Row | None:
        """The oldest row, left where it is."""
        heap = self.heap
        while heap:
            row = heap[0][1]
            if row.queue is self:
                return row
            heappop(heap)
        return None

    def pop_head(self) -> None:
        """Take out the row that `head` has just returned."""
        self._count_out(heappop(self.heap)[1])
        if not self.rows:
            self.heap.clear()

    def discard(self, row: Row) -> None:
        """Take out any row; its heap entry is left behind until it surfaces or is compacted."""
        self._count_out(row)
        if not self.rows:
            self.heap.clear()
        elif len(self.heap) > 2 * self.rows + _SLACK:
            self.heap[:] = [entry for entry in self.heap if entry[1].queue is self]
            heapify(self.heap)

    def live(self) -> list[Row]:
        return [row for _, row in sorted(self.heap) if row.queue is self]

    def _count_out(self, row: Row) -> None:
        row.queue = None
        self.rows -= 1
        self.tokens -= row.length
        self.lane.rows -= 1


class Waiting:
    """All rows that wait for one model, and the counts that bounds and snapshots are made from."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.edges = settings.bucket_edges
        self.on_time = self._lane(settings, late=False)
        self.late = self._lane(settings, late=True)
        self.requests = 0

    @property
    def rows(self) -> int:
        return self.on_time.rows + self.late.rows

    def bucket_of(self, length: int) -> int:
        """Index of the bucket for a length; `len(edges)` when it is longer than all."""
        return bisect_left(self.edges, length)

    def add(self, row: Row) -> None:
        """Queue a row by its length and its ticket's standing, at its place in arrival order."""
        ticket = row.ticket
        lane = self.late if ticket.late else self.on_time
        bucket = lane.solo if row.retried else lane.buckets[bisect_left(self.edges, row.length)]
        bucket.push(row)
        ticket.queued += 1
        if ticket.queued == 1:
            self.requests += 1

    def remove(self, row: Row) -> None:
        assert row.queue is not None
        row.queue.discard(row)
        self._left(row)

    def take_head(self, bucket: Bucket, row: Row) -> None:
        """As `remove`, for the row that `bucket.head()` has just returned."""
        bucket.pop_head()
        self._left(row)

    def queues(self) -> Iterator[Bucket]:
        yield from self.on_time.queues()
        yield from self.late.queues()

    def _left(self, row: Row) -> None:
        ticket = row.ticket
        ticket.queued -= 1
        if not ticket.queued:
            self.requests -= 1

    @staticmethod
    def _lane(settings: DispatcherSettings, *, late: bool) -> Lane:
        lane = Lane(late)
        lane.buckets = tuple(
            Bucket(lane, index, edge, max(1, min(settings.max_size, settings.max_tokens // edge)))
            for index, edge in enumerate(settings.bucket_edges)
        )
        lane.solo = Bucket(lane, -1, settings.bucket_edges[-1], 1)
        return lane
