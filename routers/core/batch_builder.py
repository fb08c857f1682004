"""A batch while it is being formed, and whether shorter or late rows may fill the room it has left.

Rows are taken out of the queue one by one and charged to their flows at once by what each was
predicted to cost, so that the order among flows follows; when the batch is whole, its predicted
seconds are divided in the same proportions and the charges put right.

Shorter rows ride along where device seconds fall by it: what the batch grows by, padded to its
longest, against what their own batch would shrink by. Its fixed part is saved only if no more rows
come to that bucket meanwhile, so buckets merge when little arrives and part when much does. Source:
spill-up and merge-when-idle (BucketServe, arXiv 2507.17120), decided by predicted cost.
"""

from __future__ import annotations

from math import exp, inf

from routers.api.requests import FlowWork
from routers.core.request_table import RequestTable
from routers.estimates.groups import ReplicaGroup
from routers.state.flows import Flow
from routers.state.lanes import Lane, LengthClass, Row
from routers.state.replica_state import FormedBatch, ReplicaCapacity

_GRAIN = 16  # tokens: means are rounded up to it, so that few targets are worked out
_FLOWS = 4  # that are looked at behind rows which only a faster group can answer in time
_EASY = 0.1  # of the SLO: waiting on-time work, in seconds a replica, below which there is time


class BatchBuilder:
    """`edge`: of the bucket that leads. `room`: rows it may still take, by number and seconds.
    `rivals`: weights of the flows of its priority that had on-time work waiting when it began.
    `most_start`: flows with higher start tags have been kept out of it; inf: none has.
    `passed_over`: rows that only another group can answer in time were left there."""

    __slots__ = (
        "_now",
        "_requests",
        "_shares",
        "capacity",
        "edge",
        "lane",
        "longest",
        "most_start",
        "passed_over",
        "rivals",
        "room",
        "rows",
        "total",
    )  # fmt: skip

    def __init__(
        self, requests: RequestTable, lane: Lane, edge: int, capacity: ReplicaCapacity, now: float
    ) -> None:
        self._requests = requests
        self._now = now
        self._shares: dict[Flow, float] = {}
        self.lane = lane
        self.edge = edge
        self.capacity = capacity
        self.rivals = requests.flows.weights[lane.priority]
        self.rows: list[Row] = []
        self.longest = 0
        self.most_start = inf
        self.passed_over = False
        self.total = 0
        self.room = (
            capacity.group.sizes.most_rows(_width(requests, lane, edge)) if capacity.trusted else 1
        )

    def width(self, longest: int, rows: int, total: int) -> int:
        """What the device would see a row as: the longest, the shape's edge, or the mean."""
        settings = self._requests.settings
        if settings.buckets.fixed_shapes:
            return self.edge
        return longest if settings.pads else -(-total // rows)

    def holds(self, row: Row) -> bool:
        """Whether the batch keeps its bound in tokens with this row too; its first row always."""
        if not self.rows:
            return True
        length, settings = row.length, self._requests.settings
        if not settings.pads:
            return self.total + length <= settings.max_tokens
        width = length if length > self.longest else self.longest
        if settings.buckets.fixed_shapes:
            width = self.edge
        return (len(self.rows) + 1) * width <= settings.max_tokens

    def take(self, row: Row, *, is_head: bool = True) -> None:
        """Out of the queue, into the batch, charged. `is_head`: its bucket's `head` has just
        returned it."""
        requests, tracked, length, cost_s = self._requests, row.tracked, row.length, row.cost_s
        if is_head:
            requests.waiting.take_head(row)
        else:
            requests.waiting.remove(row)
        if tracked.forecast is not None:
            requests.starts(tracked, self._now)
        self.rows.append(row)
        if length > self.longest:
            self.longest = length
        self.total += length
        self.room -= 1
        flow = tracked.flow
        flow.charge(cost_s)
        shares = self._shares
        shares[flow] = shares.get(flow, 0.0) + cost_s

    def predicted_s(self, more: int = 0, tokens: int = 0, quantile: float = 0.5) -> float:
        """Seconds with `more` rows of `tokens` in all, none longer than the longest."""
        rows = len(self.rows) + more
        width = self.width(self.longest, rows, self.total + tokens)
        return self.capacity.group.cost.predict(rows, width, self.capacity.replica_id, quantile)

    def formed(self, start: float) -> FormedBatch:
        """The batch as it is; `start`: the tag that the leading flow had."""
        rows, group = self.rows, self.capacity.group
        width = self.width(self.longest, len(rows), self.total)
        if rows[0].tracked.plan is not None:
            predicted_s = rows[0].cost_s
        else:
            predicted_s = group.cost.predict(len(rows), width, self.capacity.replica_id)
        if self.capacity.last_edge not in (0, self.edge):
            predicted_s += self._requests.settings.buckets.switch_s
        lane = self.lane
        speed = 1.0 if group.engine is not None else group.speed
        charges = self._put_right(predicted_s * speed)
        rank = (int(lane.late), lane.priority, start)
        return FormedBatch(rows, width, self.edge, rank, predicted_s, charges, speed)

    def _put_right(self, work_s: float) -> tuple[FlowWork, ...]:
        """Charge each flow its share of the batch instead of its rows' own predictions."""
        shares = self._shares
        whole = sum(shares.values())
        charges = []
        for flow, share in shares.items():
            seconds = work_s * (share / whole if whole > 0.0 else 1.0 / len(shares))
            flow.charge(seconds - share)
            charges.append((flow.priority, flow.tenant, seconds))
        return tuple(charges)


def _width(requests: RequestTable, lane: Lane, edge: int) -> int:
    """What a row of the bucket is reckoned as: its edge, or where batches are packed their mean."""
    if requests.settings.pads:
        return edge
    length_class = lane.length_classes.get(edge)
    mean = (
        length_class.tokens // length_class.rows
        if length_class is not None and length_class.rows
        else edge
    )
    return min(edge, (mean // _GRAIN + 1) * _GRAIN)


def fill_in_time(builder: BatchBuilder, done_at: float) -> None:
    """With rows of the leading bucket that this replica can answer by their deadlines, from behind
    those that only a faster group can: of the flows furthest below their share, earliest first."""
    order = builder.lane.length_classes[builder.edge].order
    for bucket in order.firsts(_FLOWS):
        for row in bucket.due_from(done_at, builder.room):
            if not builder.holds(row):
                return
            builder.take(row, is_head=False)


def fill_spare_room(requests: RequestTable, builder: BatchBuilder) -> None:
    length_classes = builder.lane.length_classes
    if builder.room <= 0 or len(length_classes) < 2:
        return
    shorter = [
        edge
        for edge, length_class in length_classes.items()
        if length_class.rows and edge < builder.edge
    ]
    for edge in sorted(shorter, reverse=True):
        length_class = length_classes[edge]
        count = _how_many(requests, builder, length_class)
        for _ in range(count):
            bucket = length_class.order.first()
            row = bucket.head() if bucket is not None else None
            if row is None or not builder.holds(row):
                break
            builder.take(row)


def _how_many(requests: RequestTable, builder: BatchBuilder, length_class: LengthClass) -> int:
    """All rows of the length class, as many as fit, or none."""
    settings = requests.settings
    count = min(length_class.rows, builder.room)
    mean = -(-length_class.tokens // length_class.rows)
    rows = len(builder.rows) + count
    if settings.pads:
        count -= max(0, rows - settings.max_tokens // builder.longest)
    elif mean:
        count = min(count, (settings.max_tokens - builder.total) // mean)
    if count <= 0:
        return 0
    grown_s = builder.predicted_s(count, count * mean)
    if grown_s > builder.capacity.group.sizes.most_s():
        return 0
    saved_s = _saved_s(requests, builder.capacity.group, length_class, count, grown_s)
    return count if grown_s - builder.predicted_s() <= saved_s else 0


def _saved_s(
    requests: RequestTable,
    group: ReplicaGroup,
    length_class: LengthClass,
    count: int,
    meanwhile_s: float,
) -> float:
    """What the length class's own next batch is expected to take less without `count` of its rows,
    if it comes after `meanwhile_s`."""
    width = (
        length_class.edge
        if requests.settings.pads
        else -(-length_class.tokens // length_class.rows)
    )
    predict = group.cost.predict
    own = min(length_class.rows, group.sizes.target(length_class.edge))
    if length_class.rows > count:
        return predict(own, width) - predict(max(1, own - count), width)
    fixed_s = max(0.0, 2.0 * predict(1, width) - predict(2, width))
    others_come = 1.0 - exp(-meanwhile_s / requests.arrivals.gap_s(length_class.edge))
    return predict(own, width) - others_come * fixed_s


def take_late_along(requests: RequestTable, builder: BatchBuilder, now: float) -> None:
    """Late rows of the same bucket, while what waits on time leaves time for them: a device that is
    never without on-time rows, though not overloaded, would not serve them before they expire. Of
    flows that are not above their share, also while only those above theirs make it busy."""
    waiting, lane = requests.waiting, builder.lane
    if lane.late or builder.room <= 0 or len(waiting.late) <= lane.priority:
        return
    length_class = waiting.late[lane.priority].length_classes.get(builder.edge)
    if length_class is None or not length_class.rows:
        return
    if builder.most_start == inf and requests.load_s() > _EASY * requests.settings.slo_s:
        return
    due = (
        min([row.tracked.request.deadline for row in builder.rows])
        - now
        - builder.capacity.starts_in_s
    )
    while builder.room > 0 and (bucket := length_class.order.first()) is not None:
        row = bucket.head()
        if row is None or not builder.holds(row) or bucket.flow.start > builder.most_start:
            return
        if builder.predicted_s(1, row.length, quantile=0.99) > due:
            return
        builder.take(row)
