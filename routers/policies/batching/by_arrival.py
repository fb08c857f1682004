"""Which rows form the next batch? Rows of any length, in the order in which flows are served.

The simple policy without length buckets: short rows are padded to the longest row beside them. No
row is called late for the batch's sake, left to a faster group, or added to fill spare room. A
batch has as many rows as the model's bounds allow if each row is counted as long as the longest
that may come. For a replica that takes only some lengths, flows without such rows are passed over
one by one. Source: dynamic batching as in Triton Inference Server.
"""

from __future__ import annotations

from routers.policies.batching.draft import Draft, Turns, new_draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.shedding import in_order
from routers.policies.batching.types import BatchPlan
from routers.policies.batching.view import QueueView
from routers.state.lanes import FlowQueue, Lane, bucket_of
from routers.state.rows import Row


class BatchesByArrival:
    """Takes rows in the order of their flows, whatever their lengths."""

    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> BatchPlan | None:
        lengths = capacity.lengths
        queue = lane.first(lengths)
        if queue is None:
            return None
        longest = min(view.waiting.edges[-1], capacity.group.longest)
        draft = new_draft(view, lane, longest, capacity)
        turns = Turns(lane.order, draft, view.order.ranking, _queue_of, lengths)
        return in_order(view, draft, turns, queue.first_bucket(lengths), now)

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        return ()


def _queue_of(row: Row) -> FlowQueue:
    return bucket_of(row).queue
