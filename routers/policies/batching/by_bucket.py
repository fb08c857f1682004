"""Rows of one bucket, the one whose turn it is, up to the bounds and nothing else.

The rival with fixed buckets: no bucket goes first for being fuller, no row is called late for the
batch's sake, none rides along in the room that is left. Source: `bucket_by_sequence_length` as in
TensorFlow, with turns between buckets.
"""

from __future__ import annotations

from routers.policies.batching.draft import Draft, Turns, new_draft
from routers.policies.batching.types import LeadPlan
from routers.policies.batching.view import QueueView
from routers.state.lanes import Lane, bucket_of
from routers.state.replica_state import ReplicaCapacity
from routers.state.rows import Row


class BatchesByBucket:
    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> LeadPlan | None:
        queue = lane.order.first()
        if queue is None:
            return None
        bucket = queue.in_turn()
        draft = new_draft(view, lane, bucket.edge, capacity)
        turns = Turns(lane.length_classes[bucket.edge].order, draft, view.order.ranking, bucket_of)
        while draft.room > 0 and (row := turns.first()) is not None and draft.holds(row):
            turns.pass_by(row)
            draft.take(row)
        return LeadPlan(draft, queue, bucket)

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        return ()
