"""Rows of one flow and one length interval, earliest deadline first.

A heap with lazy deletion: a row that comes back from a replica finds its place by its deadline, and
leaving costs O(log n) amortised. A heap never holds more than twice its live rows (plus a constant)
and an empty bucket holds nothing. Which bucket goes first is `lanes`' and `batcher`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from routers.flows import Flow
from routers.tag_order import Mark
from routers.tickets import Row

if TYPE_CHECKING:
    from routers.lanes import FlowQueue

_SLACK = 32


@dataclass(slots=True, eq=False)
class Bucket:
    """Rows of lengths up to `edge`. `turn`: when it leads next among its flow's buckets, in
    seconds of full batches. `waiting_s`: predicted seconds of its rows."""

    queue: FlowQueue
    flow: Flow
    edge: int
    rows: int = 0
    tokens: int = 0
    waiting_s: float = 0.0
    turn: float = 0.0
    mark: Mark | None = None
    heap: list[tuple[float, int, Row]] = field(default_factory=list)

    def push(self, row: Row) -> None:
        row.queue = self
        self.rows += 1
        self.tokens += row.length
        self.waiting_s += row.cost_s
        heappush(self.heap, (row.ticket.request.deadline, row.order, row))

    def head(self) -> Row | None:
        """The row with the earliest deadline, left where it is."""
        heap = self.heap
        while heap:
            row = heap[0][2]
            if row.queue is self:
                return row
            heappop(heap)
        return None

    def head_since(self) -> float:
        """When the row with the earliest deadline came; inf for an empty bucket."""
        row = self.head()
        return row.ticket.queued_at if row is not None else inf

    def pop_head(self) -> None:
        """Take out the row that `head` has just returned."""
        self._count_out(heappop(self.heap)[2])
        if not self.rows:
            self.heap.clear()

    def discard(self, row: Row) -> None:
        """Take out any row; its heap entry is left behind until it surfaces or is compacted."""
        self._count_out(row)
        if not self.rows:
            self.heap.clear()
        elif len(self.heap) > 2 * self.rows + _SLACK:
            self.tidy()

    def tidy(self) -> None:
        """Forget rows that have left: none of them may come back before."""
        self.heap[:] = [entry for entry in self.heap if entry[2].queue is self]
        heapify(self.heap)

    def live(self) -> list[Row]:
        return [row for _, _, row in sorted(self.heap) if row.queue is self]

    def _count_out(self, row: Row) -> None:
        row.queue = None
        self.rows -= 1
        self.tokens -= row.length
        self.waiting_s = self.waiting_s - row.cost_s if self.rows else 0.0
