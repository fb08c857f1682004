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

from routers.policies.batching.types import Batching, BatchView, Choice, LengthView, hold

_FULL: Final = 0.75  # of the target size
_SLACK: Final = 0.5  # that a row waits for more rows


class FullBatches(Batching):
    """Holds rows back until their bucket fills a batch."""

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
