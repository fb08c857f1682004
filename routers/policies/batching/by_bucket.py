"""Which rows form the next batch? Rows of the bucket whose turn it is, and no others.

The simple policy with fixed buckets: no bucket goes first because it is fuller or because a replica
has its shape loaded. No row is called late for the batch's sake, left to a faster group, or added
to fill spare room. Source: `bucket_by_sequence_length` as in TensorFlow, with turns between
buckets.
"""

from __future__ import annotations

from routers.api.policies import SHARES
from routers.policies.batching.draft import Draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.shedding import of_bucket
from routers.policies.batching.types import BatchPlan
from routers.policies.batching.view import QueueView
from routers.state.lanes import Lane
from routers.state.rows import Row


class BatchesByBucket:
    """Takes rows of one bucket, up to the bounds."""

    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> BatchPlan | None:
        queue = lane.first(capacity.lengths)
        if queue is None:
            return None
        is_shared = view.order.ranking is SHARES
        lengths = capacity.lengths
        bucket = queue.in_turn(lengths) if is_shared else queue.first_bucket(lengths)
        return of_bucket(view, lane, capacity, bucket, now)

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        return ()
