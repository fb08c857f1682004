"""Which rows form the next batch: rows of like lengths, none of which is late in it?

The flow with the lowest start tag leads, with the bucket whose turn it is. The batch is filled from
that bucket over all flows in tag order, up to its target size (`lead`). Rows that cannot meet their
deadline in such a batch are called late instead. A group of replicas leaves to faster ones what
those will have finished sooner, and rows that only those can answer in time. Shorter rows are added
to the room that is left (`fill`) where that saves predicted device seconds: so buckets merge when
little arrives and part when much does. The core takes the rows out of the queue and charges flows.

Sources: early drop by sliding window (Nexus, SOSP'19); spill-up and merge-when-idle (BucketServe).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from routers.estimates.batch_size import gap_s
from routers.policies.draft import Draft, QueueView, Turns, new_draft
from routers.state.flows import Flow
from routers.state.lanes import Bucket, FlowQueue, Lane, LengthClass
from routers.state.rows import ReplicaCapacity, Row, TrackedRequest

_LOW_LOAD = 0.1  # of the SLO: on-time work that waits, seconds a replica, up to which there is time
# A row is late unless it is in time in a batch of this share of the rows that could form one.
_EARLY_DROP = 0.7
_FLOWS = 4  # looked at behind rows that only a faster group can answer in time


@dataclass(frozen=True, slots=True)
class Leaving:
    """A request that is not served in this batch although its turn has come: it is called late."""

    after: int  # rows of the plan that were taken before
    tracked: TrackedRequest


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch with its first rows; without rows where none is to be sent."""

    draft: Draft
    queue: FlowQueue  # of the flow that leads
    bucket: Bucket  # of that flow
    leaving: tuple[Leaving, ...] = ()
    holds_back: bool = False  # what waits is left to another group
    is_last: bool = False  # nothing more in this lane is for this replica


def lead(view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float) -> BatchPlan | None:
    """The batch that the lane's next flow leads; None: only rows that travel alone wait there, or
    none."""
    queue = lane.order.first()
    if queue is None:
        return None
    bucket = _bucket(view, queue, capacity, now)
    draft = new_draft(view, lane, bucket.edge, capacity)
    if capacity.groups is not None and _finishes_sooner(view, draft, now):
        return BatchPlan(draft, queue, bucket, holds_back=True, is_last=True)
    return _Filling(view, draft, queue.flow, now).plan(queue, bucket)


def fill(view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
    """Rows for the room that is left, once the first rows have been taken out of the queue."""
    if not draft.capacity.trusted or draft.capacity.others_idle:
        return ()
    before = len(draft.rows)
    _add_shorter(view, draft)
    _backfill(view, draft, now)
    return tuple(draft.rows[before:])


def _bucket(view: QueueView, queue: FlowQueue, capacity: ReplicaCapacity, now: float) -> Bucket:
    """The bucket that leads: the one whose turn it is, or the one whose shape the replica has
    loaded, while their turns are apart by less than loading another shape costs."""
    bucket = queue.leading(capacity.group.sizes, now)
    switch_s = view.settings.buckets.switch_s
    if switch_s > 0.0 and capacity.last_edge not in (0, bucket.edge):
        loaded = queue.buckets.get(capacity.last_edge)
        if loaded is not None and loaded.rows and loaded.turn <= bucket.turn + switch_s:
            return loaded
    return bucket


def _finishes_sooner(view: QueueView, draft: Draft, now: float) -> bool:
    """Whether a faster group, though busy, will have finished what waits sooner than this
    replica."""
    capacity, lane, waiting = draft.capacity, draft.lane, view.waiting
    assert capacity.groups is not None
    before_s = waiting.on_time_s if lane.late else waiting.urgent_s(lane.priority)
    rows = lane.length_classes[draft.edge].rows
    return capacity.groups.finishes_sooner(
        capacity.group, rows, draft.edge, before_s + lane.waiting_s, now
    )


class _Filling:
    """Fills a draft with rows of the leading bucket over all flows, lowest tag first, leaving out
    those that would be late. Flows far above their share fill only a part of a batch, so that the
    others' cycle through their buckets stays short."""

    __slots__ = (
        "_done_at",
        "_draft",
        "_far_ahead_s",
        "_gone",
        "_leader",
        "_leaving",
        "_now",
        "_part",
        "_passed_over",
        "_turns",
    )

    def __init__(self, view: QueueView, draft: Draft, leader: Flow, now: float) -> None:
        self._draft, self._leader, self._now = draft, leader, now
        length_class, group = draft.lane.length_classes[draft.edge], draft.capacity.group
        self._turns = Turns(length_class.order, draft)
        self._far_ahead_s = group.max_work_s
        self._part = group.sizes.part_rows(draft.edge)
        self._done_at = now + _turnaround_s(draft, length_class.rows)
        if draft.lane.late:
            self._done_at = -inf
        # Requests that leave; once one row of a request leaves, all its rows do.
        self._leaving: list[Leaving] = []
        self._gone: set[TrackedRequest] = set()
        self._passed_over = False

    def plan(self, queue: FlowQueue, bucket: Bucket) -> BatchPlan:
        """The batch, and the requests that leave."""
        leader_start, part = self._leader.start, self._part
        turns, draft, done_at, gone = self._turns, self._draft, self._done_at, self._gone
        while draft.room > 0 and (row := turns.first()) is not None:
            tracked = row.tracked
            if (gone or tracked.request.deadline < done_at) and self._leaves(row):
                turns.pass_by(row)
                continue
            if self._passed_over:
                break
            if len(draft.rows) >= part and self._is_kept_out(tracked.flow, leader_start):
                break
            if not draft.holds(row):
                break
            turns.pass_by(row)
            draft.take(row)
        passed_over = self._passed_over
        is_last = passed_over and not draft.rows
        return BatchPlan(draft, queue, bucket, tuple(self._leaving), passed_over, is_last)

    def _leaves(self, row: Row) -> bool:
        """Whether the row's request, with all of its rows, leaves instead of being served now."""
        tracked = row.tracked
        if tracked in self._gone:
            return True
        if tracked.request.deadline >= self._done_at:
            return False
        if self._is_in_time_elsewhere(row):
            self._passed_over = True
            self._fill_in_time()
            return False
        self._leaving.append(Leaving(len(self._draft.rows), tracked))
        self._gone.add(tracked)
        return True

    def _fill_in_time(self) -> None:
        """Fill with rows of the leading bucket that this replica can answer by their deadlines,
        from behind the rows that only a faster group can answer: of the flows furthest below their
        share, earliest deadline first."""
        draft, taken = self._draft, set(self._draft.rows)
        for bucket in self._turns.firsts(_FLOWS):
            for row in bucket.due_from(self._done_at, draft.room + len(taken)):
                if row in taken or row.tracked in self._gone:
                    continue
                if draft.room <= 0 or not draft.holds(row):
                    return
                draft.take(row)

    def _is_in_time_elsewhere(self, row: Row) -> bool:
        """Whether another group can answer in time a row that would be late here."""
        capacity = self._draft.capacity
        groups, deadline = capacity.groups, row.tracked.request.deadline
        return groups is not None and groups.in_time_elsewhere(
            capacity.group, 1, self._draft.edge, deadline, self._now
        )

    def _is_kept_out(self, flow: Flow, leader_start: float) -> bool:
        """Whether the flow is too far above its share to take more than its part of the batch."""
        draft, max_start = self._draft, leader_start + self._far_ahead_s
        if flow is self._leader or not draft.start(flow) > max_start:
            return False
        draft.max_start = max_start
        return True


def _turnaround_s(draft: Draft, waiting: int) -> float:
    """Predicted seconds, at the 99th percentile, to the end of a batch of most of the rows that it
    could hold. A row that is in time only in a smaller batch would keep the others waiting."""
    rows = max(1, int(_EARLY_DROP * min(draft.room, waiting)))
    capacity = draft.capacity
    cost = capacity.group.cost
    return capacity.starts_in_s + cost.predict(rows, draft.edge, capacity.replica_id, 0.99)


def _add_shorter(view: QueueView, draft: Draft) -> None:
    """Add rows of shorter length classes to the draft, the longest first, where that saves device
    seconds."""
    length_classes = draft.lane.length_classes
    if draft.room <= 0 or len(length_classes) < 2:
        return
    shorter = [
        edge
        for edge, length_class in length_classes.items()
        if length_class.rows and edge < draft.edge
    ]
    for edge in sorted(shorter, reverse=True):
        length_class = length_classes[edge]
        turns = Turns(length_class.order, draft)
        for _ in range(_how_many(view, draft, length_class)):
            row = turns.first()
            if row is None or not draft.holds(row):
                break
            turns.pass_by(row)
            draft.take(row)


def _how_many(view: QueueView, draft: Draft, length_class: LengthClass) -> int:
    """Rows to add of the length class: all of them, as many as fit, or none."""
    settings = view.settings
    count = min(length_class.rows, draft.room)
    mean = -(-length_class.tokens // length_class.rows)
    rows = len(draft.rows) + count
    if settings.pads:
        count -= max(0, rows - settings.max_tokens // draft.longest)
    elif mean:
        count = min(count, (settings.max_tokens - draft.total) // mean)
    if count <= 0:
        return 0
    grown_s = draft.predicted_s(count, count * mean)
    if grown_s > draft.capacity.group.sizes.max_s():
        return 0
    saved_s = _saved_s(view, draft, length_class, count, grown_s)
    return count if grown_s - draft.predicted_s() <= saved_s else 0


def _saved_s(
    view: QueueView, draft: Draft, length_class: LengthClass, count: int, meanwhile_s: float
) -> float:
    """Seconds by which the length class's own next batch is expected to shrink without `count` of
    its rows, if that batch comes after `meanwhile_s`."""
    group = draft.capacity.group
    width = (
        length_class.edge if view.settings.pads else -(-length_class.tokens // length_class.rows)
    )
    predict = group.cost.predict
    own = min(length_class.rows, group.sizes.target(length_class.edge))
    if length_class.rows > count:
        return predict(own, width) - predict(max(1, own - count), width)
    fixed_s = max(0.0, 2.0 * predict(1, width) - predict(2, width))
    others_come = 1.0 - exp(-meanwhile_s / gap_s(view.gaps, length_class.edge))
    return predict(own, width) - others_come * fixed_s


def _backfill(view: QueueView, draft: Draft, now: float) -> None:
    """Add late rows of the same bucket to the draft, while on-time work leaves time for them. A
    device that always has on-time rows, though it is not overloaded, would otherwise not serve late
    rows before they expire. Late rows of flows that are not above their share are also added while
    only flows above theirs keep the device busy."""
    waiting, lane = view.waiting, draft.lane
    if lane.late or draft.room <= 0 or len(waiting.late) <= lane.priority:
        return
    length_class = waiting.late[lane.priority].length_classes.get(draft.edge)
    if length_class is None or not length_class.rows:
        return
    if draft.max_start == inf and _load_s(view, draft) > _LOW_LOAD * view.settings.slo_s:
        return
    deadline = min([row.tracked.request.deadline for row in draft.rows])
    due_s = deadline - now - draft.capacity.starts_in_s
    turns = Turns(length_class.order, draft)
    while draft.room > 0 and (row := turns.first()) is not None:
        if not draft.holds(row) or draft.start(row.tracked.flow) > draft.max_start:
            return
        if draft.predicted_s(1, row.length, quantile=0.99) > due_s:
            return
        turns.pass_by(row)
        draft.take(row)


def _load_s(view: QueueView, draft: Draft) -> float:
    """Predicted seconds of on-time work that waits, for each running replica, once the rows of this
    draft have left."""
    riders_s = sum([row.cost_s for row in draft.rows if row.bucket is not None])
    return (view.waiting.on_time_s - riders_s) / (view.groups.capacity or 1.0)
