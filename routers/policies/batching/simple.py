"""Which rows form the next batch? The simple answers, beside the default one (`ragged.py`).

None calls a row late for the batch's sake, leaves one to a faster group, or adds one to fill spare
room.
"""

from __future__ import annotations

from math import inf
from typing import Final

from routers.estimates.groups import ANY_LENGTH
from routers.policies.batching.types import Batching, BatchView, Choice, LengthView, hold


class BatchesByArrival(Batching):
    """Rows of any length, in the order in which their flows are served.

    Without length buckets: short rows are padded to the longest row beside them. A batch has as
    many rows as the model's bounds allow if each row is counted as long as the longest that may
    come. For a replica that takes only some lengths, flows without such rows are passed over one by
    one. Source: dynamic batching as in Triton Inference Server.
    """

    def choose(self, view: BatchView, now: float) -> Choice:
        return Choice(ANY_LENGTH)


class BatchesByBucket(Batching):
    """Rows of the bucket whose turn it is, and no others, up to the bounds.

    No bucket goes first because it is fuller or because a replica has its shape loaded. Source:
    `bucket_by_sequence_length` as in TensorFlow, with turns between buckets.
    """

    def choose(self, view: BatchView, now: float) -> Choice:
        return Choice(view.in_turn().edge)


_FULL: Final = 0.75  # of the target size
_SLACK: Final = 0.5  # that a row waits for more rows


class FullBatches(Batching):
    """Holds rows back until their bucket fills a batch, or can wait no longer.

    For models whose device seconds count for more than their latency. Of the length classes that
    are full, or hold a row whose time has come, the one of the flow with the lowest tag leads. A
    row waits at most for a share of its slack: of the time from its arrival to its latest start.
    Late rows wait for nobody; less urgent priorities wait while an urgent one does. Work: a look at
    each length class, and at each flow of those that are not full. Source: preferred batch size and
    maximum queue delay, as in Triton Inference Server.
    """

    def choose(self, view: BatchView, now: float) -> Choice:
        first: LengthView | None = None
        held_until = inf
        for each in view.lengths():
            due = -inf if view.late else _due_at(view, each)
            if due > now:
                held_until = min(held_until, due)
            elif first is None or (each.tag, each.turn) < (first.tag, first.turn):
                first = each
        if first is None:
            return hold(held_until)
        return Choice(first.edge)


def _due_at(view: BatchView, lengths: LengthView) -> float:
    """When these lengths are to lead a batch at the latest; -inf: they fill one."""
    target = view.group.sizes.target(lengths.edge) if view.trusted else 1
    if lengths.rows >= _FULL * target:
        return -inf
    return view.slack_used_at(lengths.edge, _SLACK)
