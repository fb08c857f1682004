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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Any, Final

from routers.api.policies import ARRIVALS, SHARES, Ranking
from routers.estimates.groups import LengthRange
from routers.state.flows import Flow
from routers.state.rows import Row
from routers.state.tag_order import Tagged, TagOrder

_SLACK: Final = 32  # stale entries allowed before a bucket is compacted
# Buckets or length classes; from here on empty ones, and their turns, are dropped
_KEPT: Final = 16


Place = tuple[float, int, Row]
"""(rank, order of arrival, row): rank is the deadline, or the order of arrival."""
_NO_PLACES: Final[list[Place]] = []  # of all buckets whose rows came in order; stays empty


class Bucket(Tagged):
    """Rows of one flow with lengths up to `edge`, earliest deadline first, or in order of arrival
    where the lane's ranking is by arrival.

    Most rows come in that order and stand in `line` from `first` on; a row that does not, or that
    comes back from a replica, goes to `heap`. A place in either is valid while its row says that it
    stands in this bucket. Deletion is lazy: leaving costs O(log n) amortised,
    `line` and `heap` together hold at most twice the live rows (plus a constant), and an empty
    bucket holds nothing. A list with the place of its first row takes 56 bytes while it is empty, a
    deque 760, and there is a bucket for each flow and length.
    """

    queue: FlowQueue
    edge: int
    tokens: int
    waiting_s: float  # predicted service seconds of its rows
    turn: float  # when it leads next among its flow's buckets, in seconds of full batches
    line: list[Row]
    first: int  # index in `line`; what stands before has left
    heap: list[Place]

    def __init__(self, queue: FlowQueue, flow: Flow, edge: int) -> None:
        super().__init__(flow)
        self.queue, self.edge = queue, edge
        self.tokens = self.first = 0
        self.waiting_s = self.turn = 0.0
        self.line, self.heap = [], _NO_PLACES

    def push(self, row: Row) -> None:
        row.bucket = self
        self.rows += 1
        self.tokens += row.length
        self.waiting_s += row.cost_s
        line, by_deadline = self.line, self.queue.lane.by_deadline
        row.rank = rank = row.tracked.request.deadline if by_deadline else float(row.order)
        if self.first < len(line):
            last = line[-1]
            if rank < last.rank or (rank == last.rank and row.order < last.order):
                if not self.heap:
                    self.heap = []
                heappush(self.heap, (rank, row.order, row))
                return
        line.append(row)

    def head(self) -> Row | None:
        """The first row, left where it is."""
        if not self.rows:
            return None
        line, heap, first = self.line, self.heap, self._first_in_line()
        while heap and heap[0][2].bucket is not self:
            heappop(heap)
        if heap and not (first < len(line) and _place(line[first]) < heap[0]):
            return heap[0][2]
        return line[first] if first < len(line) else None

    def _first_in_line(self) -> int:
        """Where in line the first row stands that has not left."""
        line, first = self.line, self.first
        last = len(line)
        while first < last and line[first].bucket is not self:
            first += 1
        if first != self.first:
            self._begin_at(first)
        return self.first

    def _begin_at(self, first: int) -> None:
        """What stands in line before `first` has left. It is dropped once it is half of it all."""
        if 2 * first >= len(self.line):
            del self.line[:first]
            first = 0
        self.first = first

    def head_since(self) -> float:
        """When the first row was queued; inf for an empty bucket."""
        row = self.head()
        return row.tracked.queued_at if row is not None else inf

    def rank(self) -> float:
        """The rank of the first row; inf for an empty bucket."""
        row = self.head()
        return inf if row is None else row.rank

    def head_in(self, lengths: LengthRange) -> Row | None:
        """The same: lengths never divide the rows of one bucket."""
        return self.head()

    def last(self) -> Row | None:
        """One of the rows that are due last, left where it is: the last in line, or the heap's last
        entry if that row is due later still."""
        line, heap, first = self.line, self.heap, self.first
        while len(line) > first and line[-1].bucket is not self:
            line.pop()
        while heap and heap[-1][2].bucket is not self:
            heap.pop()
        if heap and not (len(line) > first and heap[-1] < _place(line[-1])):
            return heap[-1][2]
        return line[-1] if len(line) > first else None

    def due_from(self, deadline: float, most: int) -> list[Row]:
        """At most `most` rows due at `deadline` or later, the earliest first, left where they are.
        Rows in the heap are left out; empty where rows stand by arrival. Work: what is returned,
        and the rows that have left between."""
        found: list[Row] = []
        line = self.line
        if not self.queue.lane.by_deadline:
            return found
        for index in range(bisect_left(line, deadline, self.first, key=_rank), len(line)):
            if len(found) >= most:
                break
            row = line[index]
            if row.bucket is self:
                found.append(row)
        return found

    def discard(self, row: Row) -> None:
        """Take out any row. The place of a row that is not the first stays behind until it surfaces
        or is compacted."""
        line, heap, first = self.line, self.heap, self._first_in_line()
        row.bucket = None
        self.rows -= 1
        if not self.rows:
            self.waiting_s, self.tokens, self.first = 0.0, 0, 0
            line.clear()
            if heap:
                heap.clear()
            return
        self.tokens -= row.length
        self.waiting_s -= row.cost_s
        if first < len(line) and line[first] is row:
            self._begin_at(first + 1)
        elif heap and heap[0][2] is row:
            heappop(heap)
        if len(line) + len(heap) > 2 * self.rows + _SLACK:
            self.tidy()

    def tidy(self) -> None:
        """Drop the places of rows that have left."""
        waiting = islice(self.line, self.first, None)
        self.line, self.first = [row for row in waiting if row.bucket is self], 0
        self.heap = [place for place in self.heap if place[2].bucket is self]
        heapify(self.heap)

    def live(self) -> list[Row]:
        """All its rows, in order."""
        rows = [*self.line[self.first :], *[row for _, _, row in self.heap]]
        here = dict.fromkeys([row for row in rows if row.bucket is self])
        return sorted(here, key=_place)


class FlowQueue(Tagged):
    """One flow's rows in one lane. `turn` is the virtual time of its buckets' turns."""

    lane: Lane
    turn: float
    buckets: dict[int, Bucket]

    def __init__(self, lane: Lane, flow: Flow) -> None:
        super().__init__(flow)
        self.lane, self.turn = lane, 0.0
        self.buckets = {}

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

    def counted_before_s(self, edge: int, seconds: float, counted: Callable[[int], float]) -> float:
        """The same, where the work of a bucket counts so many times."""
        own = self.buckets.get(edge)
        own_s = seconds if own is None else own.waiting_s + seconds
        parts = [min(b.waiting_s, own_s) * counted(b.edge) for b in self.buckets.values()]
        return seconds * counted(edge) + sum(parts)

    def waiting(self, lengths: LengthRange | None) -> list[Bucket]:
        """The buckets that hold rows of these lengths; None: of all lengths."""
        if lengths is None:
            return [bucket for bucket in self.buckets.values() if bucket.rows]
        return [each for each in self.buckets.values() if each.rows and each.edge in lengths]

    def first_bucket(self, lengths: LengthRange | None = None) -> Bucket:
        """The bucket whose first row has the lowest rank."""
        return min(self.waiting(lengths), key=Bucket.rank)

    def in_turn(self, lengths: LengthRange | None = None) -> Bucket:
        """The bucket whose turn it is, where rows travel one by one."""
        return min(self.waiting(lengths), key=_turn)

    def by_turn(self, lengths: LengthRange | None = None) -> list[Bucket]:
        """The buckets that hold rows, the one whose turn it is first."""
        return sorted(self.waiting(lengths), key=_turn)

    def head(self) -> Row | None:
        """The first row over all buckets, left where it is."""
        return self.head_in(None)

    def head_in(self, lengths: LengthRange | None) -> Row | None:
        first: Row | None = None
        lowest = (inf, 0)
        for bucket in self.waiting(lengths):
            row = bucket.head()
            if row is None:
                continue
            place = row.rank, row.order
            if first is None or place < lowest:  # it may be due at no time
                first, lowest = row, place
        return first

    def rank(self) -> float:
        """The lowest rank among its buckets; inf when it is empty."""
        return min([bucket.rank() for bucket in self.buckets.values() if bucket.rows], default=inf)

    def last(self) -> Row | None:
        """One of the rows that are due last, of the bucket that holds most rows."""
        return max(self.buckets.values(), key=_rows).last()

    def took_turn(self, bucket: Bucket, seconds: float) -> None:
        """The bucket led a batch of `seconds`: its next turn comes after as much work of the other
        buckets. A bucket that was empty meanwhile takes its turn from here on."""
        lowest = bucket.turn
        for each in self.buckets.values():
            if each.rows and each.turn < lowest:
                lowest = each.turn
        self.turn = max(self.turn, lowest)
        bucket.turn += seconds


@dataclass(slots=True, eq=False)
class LengthClass:
    """All flows' buckets of one edge in one lane."""

    edge: int
    order: TagOrder[Bucket]
    rows: int = 0
    tokens: int = 0
    waiting_s: float = 0.0  # predicted service seconds of its rows


@dataclass(slots=True, eq=False)
class Lane:
    """All rows of one standing. `rows` and `waiting_s` (predicted seconds) include those in
    `isolated`."""

    late: bool
    priority: int
    ranking: Ranking = SHARES
    rows: int = 0
    waiting_s: float = 0.0
    since: float = 0.0  # when it last led a batch, or began to wait
    by_deadline: bool = field(init=False)
    order: TagOrder[FlowQueue] = field(init=False)
    queues: dict[Flow, FlowQueue] = field(default_factory=dict)
    length_classes: dict[int, LengthClass] = field(default_factory=dict)
    isolated: Bucket = field(init=False)  # rows that travel alone, earliest deadline first

    def __post_init__(self) -> None:
        self.by_deadline = self.ranking is not ARRIVALS
        self.order = self._new_order()
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
        length_class.waiting_s += row.cost_s
        queue.rows += 1
        if bucket.rows == 1:
            bucket.turn = max(bucket.turn, queue.turn)
            length_class.order.add(bucket)
            if queue.rows == 1:
                self.order.add(queue)
        if self.ranking is not SHARES:
            length_class.order.add(bucket)
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
            length_class.waiting_s -= row.cost_s
            if not length_class.rows:
                length_class.waiting_s = 0.0
                length_class.order.clear()

    def reorder(self, flow: Flow) -> None:
        """Find the flow's place again after its start tag has fallen."""
        queue = self.queues.get(flow)
        if queue is not None and queue.rows:
            self.order.add(queue)
            for bucket in queue.buckets.values():
                if bucket.rows:
                    self.length_classes[bucket.edge].order.add(bucket)

    def first(self, lengths: LengthRange | None) -> FlowQueue | None:
        """The flow with the lowest tag of those with rows of these lengths (None: of all), rows
        that travel alone left out; None: no flow has any. Work: a look at each length class."""
        if lengths is None:
            return self.order.first()
        found: FlowQueue | None = None
        lowest = inf
        for edge, length_class in self.length_classes.items():
            if edge in lengths and (bucket := length_class.order.first()) is not None:
                tag = length_class.order.tag(bucket)
                if found is None or tag < lowest:
                    found, lowest = bucket.queue, tag
        return found

    def first_alone(self, lengths: LengthRange | None) -> Row | None:
        """The first row of these lengths that travels alone."""
        if lengths is None:
            return self.isolated.head()
        return next((row for row in self.isolated.live() if row.edge in lengths), None)

    def seconds_in(self, lengths: LengthRange) -> float:
        """Predicted seconds of its rows of these lengths, those that travel alone left out."""
        classes = self.length_classes.items()
        return sum([each.waiting_s for edge, each in classes if edge in lengths])

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
            self.queues = {f: q for f, q in self.queues.items() if q.rows or q.number}
        queue = self.queues[flow] = FlowQueue(self, flow)
        return queue

    def _open_class(self, edge: int) -> LengthClass:
        if len(self.length_classes) >= _KEPT:
            self.length_classes = {e: s for e, s in self.length_classes.items() if s.rows}
        length_class = self.length_classes[edge] = LengthClass(edge, self._new_order())
        return length_class

    def _new_order(self) -> TagOrder[Any]:
        return TagOrder(by_rank=self.ranking is not SHARES)


def bucket_of(row: Row) -> Bucket:
    """The bucket in which the row waits; the row must be queued."""
    bucket = row.bucket
    assert isinstance(bucket, Bucket)
    return bucket


def _place(row: Row) -> Place:
    return row.rank, row.order, row


def _rank(row: Row) -> float:
    return row.rank


def _turn(bucket: Bucket) -> float:
    return bucket.turn


def _rows(bucket: Bucket) -> int:
    return bucket.rows
