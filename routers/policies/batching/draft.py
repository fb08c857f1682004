"""A batch as it is planned: what it would hold, what its flows would have had, who would be next.

Nothing of the queue changes by it. Each row is charged to its flow in the plan by what it was
predicted to cost, so that the order among flows follows; when the batch is whole, its predicted
seconds are divided in the same proportions and the charges put right (`formed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from math import inf

from routers.api.policies import Order, Ranking, Standing
from routers.api.requests import FlowWork
from routers.api.settings import DispatcherSettings
from routers.state.flows import Flow
from routers.state.lanes import Bucket, Lane, Row
from routers.state.replica_state import FormedBatch, ReplicaCapacity
from routers.state.tag_order import TagOrder


class Draft:
    """`edge`: of the bucket that leads. `room`: rows it may still take, by number and seconds.
    `most_start`: flows with higher start tags have been kept out of it; inf: none has.
    `standings`: of the flows that it charges."""

    __slots__ = (
        "_order",
        "_settings",
        "_shares",
        "capacity",
        "edge",
        "lane",
        "longest",
        "most_start",
        "room",
        "rows",
        "standings",
        "total",
    )  # fmt: skip

    def __init__(
        self,
        order: Order,
        settings: DispatcherSettings,
        lane: Lane,
        edge: int,
        capacity: ReplicaCapacity,
        room: int,
    ) -> None:
        self._order = order
        self._settings = settings
        self._shares: dict[Flow, float] = {}
        self.lane = lane
        self.edge = edge
        self.capacity = capacity
        self.room = room
        self.rows: list[Row] = []
        self.longest = 0
        self.total = 0
        self.most_start = inf
        self.standings: dict[Flow, Standing] = {}

    def width(self, longest: int, rows: int, total: int) -> int:
        """What the device would see a row as: the longest, the shape's edge, or the mean."""
        settings = self._settings
        if settings.buckets.fixed_shapes:
            return self.edge
        return longest if settings.pads else -(-total // rows)

    def holds(self, row: Row) -> bool:
        """Whether the batch keeps its bound in tokens with this row too; its first row always."""
        if not self.rows:
            return True
        length, settings = row.length, self._settings
        if not settings.pads:
            return self.total + length <= settings.max_tokens
        width = length if length > self.longest else self.longest
        if settings.buckets.fixed_shapes:
            width = self.edge
        return (len(self.rows) + 1) * width <= settings.max_tokens

    def take(self, row: Row) -> None:
        """Into the batch, charged to its flow."""
        length, cost_s, flow = row.length, row.cost_s, row.tracked.flow
        self.rows.append(row)
        if length > self.longest:
            self.longest = length
        self.total += length
        self.room -= 1
        standing = self.standings.get(flow) or (flow.start, flow.credit_s)
        self.standings[flow] = self._order.charged(standing, flow.weight, cost_s)
        shares = self._shares
        shares[flow] = shares.get(flow, 0.0) + cost_s

    def start(self, flow: Flow) -> float:
        """Its start tag once what was planned is charged."""
        standing = self.standings.get(flow)
        return flow.start if standing is None else standing[0]

    def predicted_s(self, more: int = 0, tokens: int = 0, quantile: float = 0.5) -> float:
        """Seconds with `more` rows of `tokens` in all, none longer than the longest."""
        rows = len(self.rows) + more
        width = self.width(self.longest, rows, self.total + tokens)
        return self.capacity.group.cost.predict(rows, width, self.capacity.replica_id, quantile)

    def formed(self, start: float) -> FormedBatch:
        """The batch as it is; `start`: the tag that the leading flow had. Ends the draft."""
        rows, group = self.rows, self.capacity.group
        width = self.width(self.longest, len(rows), self.total)
        if rows[0].tracked.plan is not None:
            predicted_s = rows[0].cost_s
        else:
            predicted_s = group.cost.predict(len(rows), width, self.capacity.replica_id)
        if self.capacity.last_edge not in (0, self.edge):
            predicted_s += self._settings.buckets.switch_s
        lane = self.lane
        speed = 1.0 if group.engine is not None else group.speed
        charges = self._put_right(predicted_s * speed)
        rank = (int(lane.late), lane.priority, start)
        return FormedBatch(rows, width, self.edge, rank, predicted_s, charges, speed)

    def _put_right(self, work_s: float) -> tuple[FlowWork, ...]:
        """Charge each flow its share of the batch instead of its rows' own predictions."""
        shares, charged = self._shares, self._order.charged
        whole = sum(shares.values())
        charges = []
        for flow, share in shares.items():
            seconds = work_s * (share / whole if whole > 0.0 else 1.0 / len(shares))
            self.standings[flow] = charged(self.standings[flow], flow.weight, seconds - share)
            charges.append((flow.priority, flow.tenant, seconds))
        return tuple(charges)


class Turns:
    """Whose row is next in a length class, while a draft charges flows for what it takes.

    Walks the class's order from its lowest tag on without changing it: behind each entry of the
    heap that was the lowest, its two children are candidates; a flow that the draft has charged
    stands among them with its new tag. Work: O(log n) a row that is asked for."""

    def __init__(self, order: TagOrder[Bucket], draft: Draft, ranking: Ranking) -> None:
        self._marks = order.heap
        self._draft = draft
        self._by_rank = ranking is not Ranking.SHARES
        self._rows: dict[Bucket, Iterator[Row]] = {}
        self._heads: dict[Bucket, Row | None] = {}
        self._next: list[tuple[float, int, int, Bucket]] = []
        self._look_at(0)

    def first(self) -> Row | None:
        """The next row; None: no more wait. The same again until it is passed."""
        candidates = self._next
        while candidates:
            tag, pushed, index, bucket = candidates[0]
            if index >= 0:
                self._enter(index)
                continue
            head = self._heads[bucket]
            if head is None:
                heappop(candidates)
                continue
            now = self._tag(bucket, head)
            if now == tag:
                return head
            heapreplace(candidates, (now, pushed, -1, bucket))
        return None

    def pass_by(self, row: Row) -> None:
        """The row that `first` has just returned was taken, or leaves."""
        bucket = row.queue
        assert bucket is not None
        self._heads[bucket] = next(self._rows[bucket], None)

    def firsts(self, most: int) -> list[Bucket]:
        """The first buckets, in order."""
        found: list[tuple[float, int, int, Bucket]] = []
        while len(found) < most and self.first() is not None:
            found.append(heappop(self._next))
        for candidate in found:
            heappush(self._next, candidate)
        return [candidate[3] for candidate in found]

    def _enter(self, index: int) -> None:
        """The heap's entry is the lowest candidate: its bucket stands in for it, if it is valid."""
        _, pushed, _, bucket = heappop(self._next)
        self._look_at(2 * index + 1)
        self._look_at(2 * index + 2)
        if bucket.mark is not self._marks[index] or not bucket.rows:
            return
        rows = self._rows[bucket] = bucket.in_order()
        head = self._heads[bucket] = next(rows, None)
        if head is not None:
            heappush(self._next, (self._tag(bucket, head), pushed, -1, bucket))

    def _look_at(self, index: int) -> None:
        if index < len(self._marks):
            tag, pushed, bucket = self._marks[index]
            heappush(self._next, (tag, pushed, index, bucket))

    def _tag(self, bucket: Bucket, head: Row) -> float:
        return bucket.rank_of(head) if self._by_rank else self._draft.start(bucket.flow)
