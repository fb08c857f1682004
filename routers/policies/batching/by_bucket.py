"""Which rows form the next batch? Rows of the bucket whose turn it is, and no others.

The simple policy with fixed buckets: no bucket goes first because it is fuller or because a replica
has its shape loaded. No row is called late for the batch's sake, left to a faster group, or added
to fill spare room. Source: `bucket_by_sequence_length` as in TensorFlow, with turns between
buckets.
"""

from __future__ import annotations

from routers.policies.batching.types import Batching, BatchView, Choice


class BatchesByBucket(Batching):
    """Takes rows of one bucket, up to the bounds."""

    def choose(self, view: BatchView, now: float) -> Choice:
        return Choice(view.in_turn().edge)
