"""Which rows form the next batch? Rows of one bucket, once it fills a batch or can wait no longer.

For models whose device seconds count for more than their latency. Of the length classes that are
full, or hold a row whose time has come, the one of the flow with the lowest tag leads. A row waits
at most for a share of its slack: of the time from its arrival to its latest start. Late rows wait
for nobody; less urgent priorities wait while an urgent one does. No row is called late for the
batch's sake, left to a faster group, or added to fill spare room. Work: a look at each length
class, and at each flow of those that are not full.
Source: preferred batch size and maximum queue delay, as in Triton Inference Server.
"""

from __future__ import annotations

from math import inf
from typing import Final

from routers.policies.batching.draft import Draft, new_draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.shedding import of_bucket
from routers.policies.batching.types import BatchPlan
from routers.policies.batching.view import QueueView
from routers.state.lanes import Bucket, Lane, LengthClass
from routers.state.rows import Row

_FULL: Final = 0.75  # of the target size
_SLACK: Final = 0.5  # that a row waits for more rows


class FullBatches:
    """Holds rows back until their bucket fills a batch."""

    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> BatchPlan | None:
        first: tuple[float, float, Bucket] | None = None
        held_until = inf
        for edge, length_class in lane.length_classes.items():
            if capacity.lengths is not None and edge not in capacity.lengths:
                continue
            bucket = length_class.order.first()
            if bucket is None:
                continue
            due = -inf if lane.late else _due_at(length_class, capacity)
            place = length_class.order.tag(bucket), bucket.turn, bucket
            if due > now:
                held_until = min(held_until, due)
            elif first is None or place[:2] < first[:2]:
                first = place
        if first is None:
            return _held(view, lane, capacity, held_until)
        return of_bucket(view, lane, capacity, first[2], now)

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        return ()


def _held(view: QueueView, lane: Lane, capacity: ReplicaCapacity, until: float) -> BatchPlan | None:
    """A plan to wait for more rows; None: no row of the lane is for this replica."""
    queue = lane.first(capacity.lengths)
    if queue is None:
        return None
    bucket = queue.first_bucket(capacity.lengths)
    draft = new_draft(view, lane, bucket.edge, capacity)
    return BatchPlan(draft, queue, bucket).last(held_until=until)


def _due_at(length_class: LengthClass, capacity: ReplicaCapacity) -> float:
    """When the length class is to lead a batch at the latest; -inf: it is full."""
    target = capacity.group.sizes.target(length_class.edge) if capacity.trusted else 1
    rows = length_class.rows
    if rows >= _FULL * target:
        return -inf
    heads = [bucket.head() for bucket in length_class.order.firsts(rows)]
    return min([_leaves_at(head) for head in heads if head is not None], default=-inf)


def _leaves_at(row: Row) -> float:
    tracked = row.tracked
    return tracked.queued_at + _SLACK * (tracked.latest_start - tracked.queued_at)
