"""Which rows form the next batch? Rows of any length, in the order in which flows are served.

The simple policy without length buckets: short rows are padded to the longest row beside them. No
row is called late for the batch's sake, left to a faster group, or added to fill spare room. A
batch has as many rows as the model's bounds allow if each row is counted as long as the longest
that may come. For a replica that takes only some lengths, flows without such rows are passed over
one by one. Source: dynamic batching as in Triton Inference Server.
"""

from __future__ import annotations

from routers.estimates.groups import ANY_LENGTH
from routers.policies.batching.types import Batching, BatchView, Choice


class BatchesByArrival(Batching):
    """Takes rows in the order of their flows, whatever their lengths."""

    def choose(self, view: BatchView, now: float) -> Choice:
        return Choice(ANY_LENGTH)
