"""Rows of any length in the order that flows are served in, as a dynamic batcher does.

The plain one without length buckets: short rows are padded to the longest beside them; nothing is
called late for the batch's sake, left to a faster group, or rides along. As many as the model's
bounds hold, counting each row as long as the longest that may come. Source: dynamic batching as in
Triton Inference Server.
"""

from __future__ import annotations

from routers.policies.batching.draft import Draft, Turns, new_draft
from routers.policies.batching.shedding import in_order
from routers.policies.batching.types import LeadPlan
from routers.policies.batching.view import QueueView
from routers.state.formed_batch import ReplicaCapacity
from routers.state.lanes import FlowQueue, Lane, bucket_of
from routers.state.rows import Row


class BatchesByArrival:
    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> LeadPlan | None:
        queue = lane.order.first()
        if queue is None:
            return None
        draft = new_draft(view, lane, view.waiting.edges[-1], capacity)
        turns = Turns(lane.order, draft, view.order.ranking, _queue_of)
        return in_order(view, draft, turns, queue.first_bucket(), now)

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        return ()


def _queue_of(row: Row) -> FlowQueue:
    return bucket_of(row).queue
