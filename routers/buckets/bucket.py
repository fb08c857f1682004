"""Rows of one flow and one length interval, earliest deadline first.

They mostly come in that order and stand in a line; one that does not, or comes back from a replica,
finds its place in a heap beside it. Deletion is lazy: leaving costs O(log n) amortised, line and
heap never hold more than twice the live rows (plus a constant), and an empty bucket holds nothing.
Which bucket goes first is `lanes`' and `batcher`'s question.
"""

from __future__ import annotations

from collections import deque
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

Place = tuple[float, int, Row]
"""Deadline, order of arrival, and who stands there, if the row still says so."""


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
    line: deque[Place] = field(default_factory=deque)
    heap: list[Place] = field(default_factory=list)

    def push(self, row: Row) -> None:
        row.queue = self
        self.rows += 1
        self.tokens += row.length
        self.waiting_s += row.cost_s
        line, place = self.line, (row.ticket.request.deadline, row.order, row)
        if not line or line[-1] <= place:
            line.append(place)
        else:
            heappush(self.heap, place)

    def head(self) -> Row | None:
        """The row with the earliest deadline, left where it is."""
        line, heap = self.line, self.heap
        while line and line[0][2].queue is not self:
            line.popleft()
        while heap and heap[0][2].queue is not self:
            heappop(heap)
        if heap and not (line and line[0] < heap[0]):
            return heap[0][2]
        return line[0][2] if line else None

    def head_since(self) -> float:
        """When the row with the earliest deadline came; inf for an empty bucket."""
        row = self.head()
        return row.ticket.queued_at if row is not None else inf

    def pop_head(self) -> None:
        """Take out the row that `head` has just returned."""
        line, heap = self.line, self.heap
        in_heap = heap and not (line and line[0] < heap[0])
        self._count_out(heappop(heap)[2] if in_heap else line.popleft()[2])

    def discard(self, row: Row) -> None:
        """Take out any row; its place is left behind until it surfaces or is compacted."""
        self._count_out(row)
        if len(self.line) + len(self.heap) > 2 * self.rows + _SLACK:
            self.tidy()

    def tidy(self) -> None:
        """Forget rows that have left: none of them may come back before."""
        self.line = deque([place for place in self.line if place[2].queue is self])
        self.heap = [place for place in self.heap if place[2].queue is self]
        heapify(self.heap)

    def live(self) -> list[Row]:
        return [row for _, _, row in sorted([*self.line, *self.heap]) if row.queue is self]

    def _count_out(self, row: Row) -> None:
        row.queue = None
        self.rows -= 1
        self.tokens -= row.length
        self.waiting_s -= row.cost_s
        if not self.rows:
            self.waiting_s = 0.0
            self.line.clear()
            self.heap.clear()
