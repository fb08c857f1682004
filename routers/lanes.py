"""What waits at one standing: a priority's rows that are on time, or its late ones.

A lane orders flows by their start tags twice: over all lengths, to find who leads the next batch,
and within each length interval (a shelf), to find who fills it. Rows that a replica has lost stand
apart and travel alone. Buckets are kept by their edge, so edges may change while rows wait: what
waits stays where it is. Work: O(log flows) a row; within a flow a look at each of its buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from routers.batch_size import BatchSizes
from routers.buckets.bucket import Bucket
from routers.flows import Flow
from routers.tag_order import Mark, TagOrder
from routers.tickets import Row

_KEPT = 16  # buckets, or shelves, before empty ones are dropped, and the turns they remember


@dataclass(slots=True, eq=False)
class FlowQueue:
    """One flow's rows in one lane. `turn`: virtual time of its buckets' turns."""

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
        """What of the flow goes before a newcomer of so many seconds, they included, when buckets
        are served by turn: what waits in its bucket, and of every other one at most as much."""
        own = self.buckets.get(edge)
        own_s = seconds if own is None else own.waiting_s + seconds
        before_s = seconds
        for bucket in self.buckets.values():
            waiting_s = bucket.waiting_s
            before_s += waiting_s if waiting_s < own_s else own_s
        return before_s

    def leading(self, sizes: BatchSizes, now: float) -> Bucket:
        """The bucket that fills most of a batch, over all flows, in turn among equals; but one that
        is behind it in turns goes first if, that batch awaited, it had waited too long."""
        waiting = [bucket for bucket in self.buckets.values() if bucket.rows]
        if len(waiting) == 1:
            return waiting[0]
        shelves = self.lane.shelves
        fullest = min(
            waiting,
            key=lambda each: (
                -min(1.0, shelves[each.edge].rows / sizes.target(each.edge)), each.turn,
            ),
        )  # fmt: skip
        long_ago = now + sizes.full_s(fullest.edge) - sizes.most_passed_s
        owed = [
            each for each in waiting if each.turn < fullest.turn and each.head_since() <= long_ago
        ]
        return min(owed, key=_turn) if owed else fullest

    def in_turn(self) -> Bucket:
        """The bucket whose turn it is, where rows travel one by one."""
        return min([bucket for bucket in self.buckets.values() if bucket.rows], key=_turn)

    def by_turn(self) -> list[Bucket]:
        """Those that hold rows, the one whose turn it is in front."""
        return sorted([bucket for bucket in self.buckets.values() if bucket.rows], key=_turn)

    def took_turn(self, bucket: Bucket, seconds: float) -> None:
        """The bucket led a batch: its next turn comes after as much of the others' work. What was
        empty meanwhile has its turn from here on."""
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
    """`since`: when it last led a batch, or began to wait. `solo`: retried rows, oldest deadline
    first. `rows` and `waiting_s`, predicted seconds, include them."""

    late: bool
    priority: int
    rows: int = 0
    waiting_s: float = 0.0
    since: float = 0.0
    order: TagOrder[FlowQueue] = field(default_factory=TagOrder)
    queues: dict[Flow, FlowQueue] = field(default_factory=dict)
    shelves: dict[int, LengthClass] = field(default_factory=dict)
    solo: Bucket = field(init=False)

    def __post_init__(self) -> None:
        nobody = Flow("", self.priority)
        self.solo = Bucket(FlowQueue(self, nobody), nobody, 0)

    def push(self, row: Row, now: float) -> None:
        if not self.rows:
            self.since = now
        self.rows += 1
        self.waiting_s += row.cost_s
        if row.retried:
            self.solo.push(row)
            return
        flow, edge = row.ticket.flow, row.edge
        queue = self.queues.get(flow)
        if queue is None:
            queue = self._open(flow)
        bucket = queue.buckets.get(edge) or queue.bucket(edge)
        bucket.push(row)
        shelf = self.shelves.get(edge)
        if shelf is None:
            shelf = self._shelf(edge)
        shelf.rows += 1
        shelf.tokens += row.length
        queue.rows += 1
        if bucket.rows == 1:
            bucket.turn = max(bucket.turn, queue.turn)
            shelf.order.add(bucket)
            if queue.rows == 1:
                self.order.add(queue)

    def left(self, row: Row, bucket: Bucket) -> None:
        """The row was taken out of the bucket."""
        self.rows -= 1
        self.waiting_s -= row.cost_s
        if not self.rows:
            self.waiting_s = 0.0
        if bucket is not self.solo:
            bucket.queue.rows -= 1
            shelf = self.shelves[bucket.edge]
            shelf.rows -= 1
            shelf.tokens -= row.length
            if not shelf.rows:
                shelf.order.clear()

    def reorder(self, flow: Flow) -> None:
        """The flow's tag has fallen."""
        queue = self.queues.get(flow)
        if queue is not None and queue.rows:
            self.order.add(queue)
            for bucket in queue.buckets.values():
                if bucket.rows:
                    self.shelves[bucket.edge].order.add(bucket)

    def buckets(self) -> Iterator[Bucket]:
        """All that hold rows, the retried ones' last."""
        for queue in self.queues.values():
            for bucket in queue.buckets.values():
                if bucket.rows:
                    yield bucket
        if self.solo.rows:
            yield self.solo

    def _open(self, flow: Flow) -> FlowQueue:
        if len(self.queues) > 2 * len(self.order.heap) + 64:
            self.queues = {f: q for f, q in self.queues.items() if q.rows or q.mark is not None}
        queue = self.queues[flow] = FlowQueue(self, flow)
        return queue

    def _shelf(self, edge: int) -> LengthClass:
        if len(self.shelves) >= _KEPT:
            self.shelves = {e: s for e, s in self.shelves.items() if s.rows}
        shelf = self.shelves[edge] = LengthClass(edge)
        return shelf


def _turn(bucket: Bucket) -> float:
    return bucket.turn
