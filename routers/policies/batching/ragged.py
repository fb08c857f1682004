"""Which rows form a batch of like lengths, in which none of them is late?

The flow with the lowest start tag leads, with the bucket whose turn it is. The batch is filled from
that bucket over all flows in tag order, up to its target size. Rows that cannot meet their deadline
in such a batch are called late instead of taken. With several groups of replicas, a group leaves to
faster ones what those will have finished sooner, and rows that only those can answer in time. Fair
in predicted device seconds; `spare_room` fills room that is left.

Sources: SFQ(D) over weighted flows; early drop by sliding window (Nexus, SOSP'19); token budgets on
padded size as in text-embeddings-inference.
"""

from __future__ import annotations

from math import inf
from typing import Final

from routers.api.policies import SHARES
from routers.estimates.batch_size import pays_to_wait
from routers.estimates.groups import LengthRange
from routers.policies.batching.draft import Draft, Turns, new_draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.shedding import Shedding
from routers.policies.batching.spare_room import backfill, shorter_riders
from routers.policies.batching.types import BatchPlan
from routers.policies.batching.view import QueueView
from routers.state.flows import Flow
from routers.state.lanes import Bucket, FlowQueue, Lane, bucket_of
from routers.state.rows import Row

# A row is late unless it is in time in a batch of this share of the rows that could form one.
_EARLY_DROP: Final = 0.7
_FLOWS: Final = 4  # looked at behind rows that only a faster group can answer in time


class RaggedBatching:
    """The default batching policy."""

    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> BatchPlan | None:
        plan = _planned(view, lane, capacity, capacity.lengths, now)
        longest = capacity.group.longest
        for bound in view.groups.bounds:
            if plan is None or not (plan.holds_back and plan.is_last):
                break
            # Shorter rows are left to another group, which may not take those above the bound.
            if plan.bucket.edge <= bound < longest:
                longer = _planned(view, lane, capacity, LengthRange(bound, longest), now)
                if longer is None:
                    break
                if not (longer.holds_back and longer.is_last):
                    longer.holds_back = True
                    return longer
                plan = longer
        return plan

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        if not draft.capacity.trusted or draft.capacity.others_idle:
            return ()
        before = len(draft.rows)
        shorter_riders(view, draft)
        backfill(view, draft, now)
        return tuple(draft.rows[before:])


def _planned(
    view: QueueView,
    lane: Lane,
    capacity: ReplicaCapacity,
    lengths: LengthRange | None,
    now: float,
) -> BatchPlan | None:
    """The batch that the next flow leads with rows of these lengths (None: of all)."""
    queue = lane.order.first() if lengths is None else lane.first(lengths)
    if queue is None:
        return None
    bucket = _bucket(view, queue, capacity, lengths, now)
    draft = new_draft(view, lane, bucket.edge, capacity)
    held_until = _held_until(view, draft, bucket, now)
    if held_until is not None:
        return BatchPlan(draft, queue, bucket).last(held_until=held_until)
    if capacity.groups is not None and _finishes_sooner(view, draft, now):
        return BatchPlan(draft, queue, bucket).last(holds_back=True)
    return _Filling(view, draft, queue.flow, now).plan(queue, bucket)


def _bucket(
    view: QueueView,
    queue: FlowQueue,
    capacity: ReplicaCapacity,
    lengths: LengthRange | None,
    now: float,
) -> Bucket:
    """The bucket that leads. Where the order compares rows (by deadline or arrival), that of the
    first row. Else the bucket whose turn it is, or the one whose shape the replica has loaded,
    while their turns are apart by less than loading another shape costs."""
    if view.order.ranking is not SHARES:
        return queue.first_bucket(lengths)
    bucket = queue.leading(capacity.group.sizes, now, lengths)
    switch_s = view.settings.buckets.switch_s
    if switch_s > 0.0 and capacity.last_edge not in (0, bucket.edge):
        for loaded in queue.waiting(lengths):
            if loaded.edge == capacity.last_edge and loaded.turn <= bucket.turn + switch_s:
                return loaded
    return bucket


def _held_until(view: QueueView, draft: Draft, bucket: Bucket, now: float) -> float | None:
    """Until when to wait for the bucket's next arrival; None: do not wait. Only the last idle
    replica waits, and no other replica takes those rows meanwhile."""
    capacity, lane, edge = draft.capacity, draft.lane, draft.edge
    if view.settings.hold != "auto" or lane.late or capacity.idle is capacity.others_idle:
        return None
    rows = lane.length_classes[edge].rows
    gap = view.gaps.get(edge)
    if gap is None or gap.last is None or gap.mean_s == inf or rows >= draft.room:
        return None
    until = gap.last + 2.0 * gap.mean_s  # a row that has not come by then is not expected any more
    predict, head = capacity.group.cost.predict, bucket.head()
    assert head is not None
    in_time = until + predict(rows + 1, edge, quantile=0.99) <= head.tracked.request.deadline
    seconds = predict(1, edge), predict(rows, edge), predict(rows + 1, edge)
    if now >= until or not in_time or not pays_to_wait(rows, gap.mean_s, *seconds):
        return None
    return until


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
        "_leader",
        "_now",
        "_part",
        "_passed_over",
        "_shedding",
        "_turns",
        "_view",
    )

    def __init__(self, view: QueueView, draft: Draft, leader: Flow, now: float) -> None:
        self._view, self._draft, self._leader, self._now = view, draft, leader, now
        length_class, group = draft.lane.length_classes[draft.edge], draft.capacity.group
        self._turns = Turns(length_class.order, draft, view.order.ranking, bucket_of)
        self._far_ahead_s = group.max_work_s
        self._part = group.sizes.part_rows(draft.edge)
        self._done_at = now + _turnaround_s(draft, length_class.rows)
        if draft.lane.late:
            self._done_at = -inf
        self._shedding = Shedding(view, draft, now)
        self._passed_over = False

    def plan(self, queue: FlowQueue, bucket: Bucket) -> BatchPlan:
        """The batch, and the requests that leave."""
        leader_start, part = self._leader.start, self._part
        turns, draft, done_at, shedding = self._turns, self._draft, self._done_at, self._shedding
        gone = shedding.gone
        while draft.room > 0 and (row := turns.first()) is not None:
            tracked = row.tracked
            may_leave = gone or tracked.forecast_s is not None or tracked.request.deadline < done_at
            if may_leave and self._leaves(row):
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
        plan = BatchPlan(draft, queue, bucket)
        plan.leaving, plan.looks = tuple(shedding.leaving), shedding.looks
        plan.holds_back = self._passed_over
        plan.is_last = self._passed_over and not draft.rows
        return plan

    def _leaves(self, row: Row) -> bool:
        """Whether the row's request, with all of its rows, leaves instead of being served now."""
        tracked, shedding = row.tracked, self._shedding
        if tracked in shedding.gone:
            return True
        if tracked.request.deadline >= self._done_at:
            return shedding.sheds(row)
        if self._is_in_time_elsewhere(row):
            self._passed_over = True
            self._fill_in_time()
            return False
        shedding.leaves(tracked, is_shed=False)
        return True

    def _fill_in_time(self) -> None:
        """Fill with rows of the leading bucket that this replica can answer by their deadlines,
        from behind the rows that only a faster group can answer: of the flows furthest below their
        share, earliest deadline first."""
        draft, taken = self._draft, set(self._draft.rows)
        for bucket in self._turns.firsts(_FLOWS):
            for row in bucket.due_from(self._done_at, draft.room + len(taken)):
                if row in taken or row.tracked in self._shedding.gone:
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
        draft, order = self._draft, self._view.order
        if flow is self._leader:
            return False
        if not order.is_far_ahead(draft.start(flow), leader_start, self._far_ahead_s):
            return False
        draft.max_start = leader_start + self._far_ahead_s
        return True


def _turnaround_s(draft: Draft, waiting: int) -> float:
    """Predicted seconds, at the 99th percentile, to the end of a batch of most of the rows that it
    could hold. A row that is in time only in a smaller batch would keep the others waiting."""
    rows = max(1, int(_EARLY_DROP * min(draft.room, waiting)))
    capacity = draft.capacity
    cost = capacity.group.cost
    return capacity.starts_in_s + cost.predict(rows, draft.edge, capacity.replica_id, 0.99)
