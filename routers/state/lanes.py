"""What waits at one standing: the on-time rows of one priority, or its late rows.

A lane orders its flows by start tag twice: over all lengths, to find the flow that leads the next
batch, and within each length class, to find the flows that fill it. Rows that travel alone (lost
once, or suspects) stand apart in `isolated`. A bucket holds the rows of one flow and one length
class, earliest deadline first. Buckets are kept by their edge, so edges may change while rows wait:
what waits stays where it is. Work: O(log flows) a row, and within a flow a look at each of its
buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace, merge
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from routers.estimates.batch_size import BatchSizes
from routers.state.flows import Flow
from routers.state.rows import Row

_STALE_ENTRIES = 32  # allowed before the heap is compacted


Mark = tuple[float, int, Any]
"""(tag, number of the push, item): one entry of the heap."""


class Tagged(Protocol):
    """What can be ordered by the tag of its flow. `mark` is its valid entry, or None; the order in
    which it stands owns that field."""

    flow: Flow
    rows: int
    mark: Mark | None


T = TypeVar("T", bound=Tagged)


class TagOrder(Generic[T]):
    """The items with rows, by the start tags of their flows, the lowest first.

    A heap with lazy correction: tags mostly grow, so the tag in an entry is a lower bound of the
    true one and is corrected only when the entry surfaces. An item whose tag has fallen (by a
    refund) needs `add` again. Work: O(log n) amortised for each change of a tag that surfaces;
    memory: at most twice the items that had rows when the heap was last compacted.
    """

    def __init__(self) -> None:
        self.heap: list[Mark] = []
        self._pushed = 0
        self._most = _STALE_ENTRIES

    def add(self, item: T) -> None:
        """The item has rows now, or its tag has fallen."""
        start, mark = item.flow.start, item.mark
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
            elif (start := item.flow.start) != mark[0]:
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


_SLACK = 32  # stale entries allowed before a bucket is compacted
_KEPT = 16  # buckets or length classes; from here on empty ones, and their turns, are dropped


Place = tuple[float, int, Row]
"""(deadline, order of arrival, row): valid while its row says that it stands in that bucket."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Rows of one flow with lengths up to `edge`, earliest deadline first.

    Most rows come in that order and stand in `line`; a row that does not, or that comes back from a
    replica, goes to `heap`. Deletion is lazy: leaving costs O(log n) amortised, `line` and `heap`
    together hold at most twice the live rows (plus a constant), and an empty bucket holds nothing.
    """

    queue: FlowQueue
    flow: Flow
    edge: int
    rows: int = 0
    tokens: int = 0
    waiting_s: float = 0.0  # predicted service seconds of its rows
    turn: float = 0.0  # when it leads next among its flow's buckets, in seconds of full batches
    mark: Mark | None = None
    line: deque[Place] = field(default_factory=deque)
    heap: list[Place] = field(default_factory=list)

    def push(self, row: Row) -> None:
        row.bucket = self
        self.rows += 1
        self.tokens += row.length
        self.waiting_s += row.cost_s
        line, place = self.line, (row.tracked.request.deadline, row.order, row)
        if not line or line[-1] <= place:
            line.append(place)
        else:
            heappush(self.heap, place)

    def head(self) -> Row | None:
        """The first row, left where it is."""
        line, heap = self.line, self.heap
        while line and line[0][2].bucket is not self:
            line.popleft()
        while heap and heap[0][2].bucket is not self:
            heappop(heap)
        if heap and not (line and line[0] < heap[0]):
            return heap[0][2]
        return line[0][2] if line else None

    def head_since(self) -> float:
        """When the first row was queued; inf for an empty bucket."""
        row = self.head()
        return row.tracked.queued_at if row is not None else inf

    def in_order(self) -> Iterator[Row]:
        """Its rows in order, left where they are; no row may leave meanwhile. Work: O(log n) for
        each row that is asked for."""
        line: Iterator[Place] = iter(self.line)
        places = merge(line, heap_in_order(self.heap)) if self.heap else line
        last = None  # a row that came back may still have its old place beside the new one
        for _, _, row in places:
            if row.bucket is self and row is not last:
                yield row
                last = row

    def last(self) -> Row | None:
        """One of the rows that are due last, left where it is: the last in line, or the heap's last
        entry if that row is due later still."""
        line, heap = self.line, self.heap
        while line and line[-1][2].bucket is not self:
            line.pop()
        while heap and heap[-1][2].bucket is not self:
            heap.pop()
        if heap and not (line and heap[-1] < line[-1]):
            return heap[-1][2]
        return line[-1][2] if line else None

    def due_from(self, deadline: float, most: int) -> list[Row]:
        """At most `most` rows due at `deadline` or later, the earliest first, left where they are.
        Rows in the heap are left out. Work: what is returned, and the rows that have left
        between."""
        found: list[Row] = []
        line = self.line
        for index in range(bisect_left(line, (deadline,)), len(line)):
            if len(found) >= most:
                break
            row = line[index][2]
            if row.bucket is self:
                found.append(row)
        return found

    def discard(self, row: Row) -> None:
        """Take out any row. The place of a row that is not the first stays behind until it surfaces
        or is compacted."""
        line, heap = self.line, self.heap
        while line and line[0][2].bucket is not self:
            line.popleft()
        if line and line[0][2] is row:
            line.popleft()
        elif heap and heap[0][2] is row:
            heappop(heap)
        self._count_out(row)
        if len(self.line) + len(self.heap) > 2 * self.rows + _SLACK:
            self.tidy()

    def tidy(self) -> None:
        """Drop the places of rows that have left."""
        self.line = deque([place for place in self.line if place[2].bucket is self])
        self.heap = [place for place in self.heap if place[2].bucket is self]
        heapify(self.heap)

    def live(self) -> list[Row]:
        """All its rows, in order."""
        rows = [row for _, _, row in sorted([*self.line, *self.heap]) if row.bucket is self]
        return list(dict.fromkeys(rows))

    def _count_out(self, row: Row) -> None:
        row.bucket = None
        self.rows -= 1
        self.tokens -= row.length
        self.waiting_s -= row.cost_s
        if not self.rows:
            self.waiting_s = 0.0
            self.line.clear()
            self.heap.clear()


@dataclass(slots=True, eq=False)
class FlowQueue:
    """One flow's rows in one lane. `turn` is the virtual time of its buckets' turns."""

    lane: Lane
    flow: Flow
    rows: int = 0
    turn: float = 0.0
    mark: Mark | None = None
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def bucket(self, edge: int) -> Bucket:
        found = self.buckets.get(edge)
        if found is None:
            if len(self.buckets) >= _KEPT:
                self.buckets = {e: b for e, b in self.buckets.items() if b.rows}
            found = self.buckets[edge] = Bucket(self, self.flow, edge)
        return found

    def before_s(self, edge: int, seconds: float) -> float:
        """Predicted seconds of this flow's work that is served up to and with a new request of
        `seconds`, buckets being served by turn: what waits in the request's bucket, and from every
        other bucket at most as much."""
        own = self.buckets.get(edge)
        own_s = seconds if own is None else own.waiting_s + seconds
        before_s = seconds
        for bucket in self.buckets.values():
            waiting_s = bucket.waiting_s
            before_s += waiting_s if waiting_s < own_s else own_s
        return before_s

    def leading(self, sizes: BatchSizes, now: float) -> Bucket:
        """The bucket that fills most of a batch, over all flows; among equals the one whose turn is
        first. But a bucket whose turn comes before that one's leads if it would have waited too
        long once that batch was served."""
        waiting = [bucket for bucket in self.buckets.values() if bucket.rows]
        if len(waiting) == 1:
            return waiting[0]
        length_classes = self.lane.length_classes
        fullest = min(
            waiting,
            key=lambda each: (
                -min(1.0, length_classes[each.edge].rows / sizes.target(each.edge)), each.turn,
            ),
        )  # fmt: skip
        long_ago = now + sizes.full_s(fullest.edge) - sizes.max_passed_s
        owed = [
            each for each in waiting if each.turn < fullest.turn and each.head_since() <= long_ago
        ]
        return min(owed, key=_turn) if owed else fullest

    def in_turn(self) -> Bucket:
        """The bucket whose turn it is, where rows travel one by one."""
        return min([bucket for bucket in self.buckets.values() if bucket.rows], key=_turn)

    def by_turn(self) -> list[Bucket]:
        """The buckets that hold rows, the one whose turn it is first."""
        return sorted([bucket for bucket in self.buckets.values() if bucket.rows], key=_turn)

    def last(self) -> Row | None:
        """One of the rows that are due last, of the bucket that holds most rows."""
        return max(self.buckets.values(), key=_rows).last()

    def took_turn(self, bucket: Bucket, seconds: float) -> None:
        """The bucket led a batch of `seconds`: its next turn comes after as much work of the other
        buckets. A bucket that was empty meanwhile takes its turn from here on."""
        waiting = [each.turn for each in self.buckets.values() if each.rows]
        self.turn = max(self.turn, min([bucket.turn, *waiting]))
        bucket.turn += seconds


@dataclass(slots=True, eq=False)
class LengthClass:
    """All flows' buckets of one edge in one lane."""

    edge: int
    rows: int = 0
    tokens: int = 0
    order: TagOrder[Bucket] = field(default_factory=TagOrder)


@dataclass(slots=True, eq=False)
class Lane:
    """All rows of one standing. `rows` and `waiting_s` (predicted seconds) include those in
    `isolated`."""

    late: bool
    priority: int
    rows: int = 0
    waiting_s: float = 0.0
    since: float = 0.0  # when it last led a batch, or began to wait
    order: TagOrder[FlowQueue] = field(default_factory=TagOrder)
    queues: dict[Flow, FlowQueue] = field(default_factory=dict)
    length_classes: dict[int, LengthClass] = field(default_factory=dict)
    isolated: Bucket = field(init=False)  # rows that travel alone, earliest deadline first

    def __post_init__(self) -> None:
        nobody = Flow("", self.priority)
        self.isolated = Bucket(FlowQueue(self, nobody), nobody, 0)

    def push(self, row: Row, now: float) -> None:
        if not self.rows:
            self.since = now
        self.rows += 1
        self.waiting_s += row.cost_s
        if row.isolated:
            self.isolated.push(row)
            return
        flow, edge = row.tracked.flow, row.edge
        queue = self.queues.get(flow)
        if queue is None:
            queue = self._open_queue(flow)
        bucket = queue.buckets.get(edge) or queue.bucket(edge)
        bucket.push(row)
        length_class = self.length_classes.get(edge)
        if length_class is None:
            length_class = self._open_class(edge)
        length_class.rows += 1
        length_class.tokens += row.length
        queue.rows += 1
        if bucket.rows == 1:
            bucket.turn = max(bucket.turn, queue.turn)
            length_class.order.add(bucket)
            if queue.rows == 1:
                self.order.add(queue)

    def left(self, row: Row, bucket: Bucket) -> None:
        """Count a row out that was taken out of the bucket."""
        self.rows -= 1
        self.waiting_s -= row.cost_s
        if not self.rows:
            self.waiting_s = 0.0
        if bucket is not self.isolated:
            bucket.queue.rows -= 1
            length_class = self.length_classes[bucket.edge]
            length_class.rows -= 1
            length_class.tokens -= row.length
            if not length_class.rows:
                length_class.order.clear()

    def reorder(self, flow: Flow) -> None:
        """Find the flow's place again after its start tag has fallen."""
        queue = self.queues.get(flow)
        if queue is not None and queue.rows:
            self.order.add(queue)
            for bucket in queue.buckets.values():
                if bucket.rows:
                    self.length_classes[bucket.edge].order.add(bucket)

    def buckets(self) -> Iterator[Bucket]:
        """All buckets that hold rows, `isolated` last."""
        for queue in self.queues.values():
            for bucket in queue.buckets.values():
                if bucket.rows:
                    yield bucket
        if self.isolated.rows:
            yield self.isolated

    def _open_queue(self, flow: Flow) -> FlowQueue:
        if len(self.queues) > 2 * len(self.order.heap) + 64:
            self.queues = {f: q for f, q in self.queues.items() if q.rows or q.mark is not None}
        queue = self.queues[flow] = FlowQueue(self, flow)
        return queue

    def _open_class(self, edge: int) -> LengthClass:
        if len(self.length_classes) >= _KEPT:
            self.length_classes = {e: s for e, s in self.length_classes.items() if s.rows}
        length_class = self.length_classes[edge] = LengthClass(edge)
        return length_class


def bucket_of(row: Row) -> Bucket:
    """The bucket in which the row waits; the row must be queued."""
    bucket = row.bucket
    assert isinstance(bucket, Bucket)
    return bucket


def heap_in_order(heap: list[Place]) -> Iterator[Place]:
    """The entries of a binary heap in ascending order, left where they are: once an entry has come,
    its two children are candidates. Source: Frederickson, An optimal algorithm for selection in a
    min-heap (1993), in its simple form."""
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        place, index = heappop(candidates)
        yield place
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heappush(candidates, (heap[child], child))


def _turn(bucket: Bucket) -> float:
    return bucket.turn


def _rows(bucket: Bucket) -> int:
    return bucket.rows
