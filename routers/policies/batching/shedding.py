"""Who leaves instead of being served now that its turn has come: in every batching alike.

Once one of a request's rows leaves, all do. What CoDel has seen on the way is part of the plan.
"""

from __future__ import annotations

from typing import Any

from routers.api.requests import FlowKey
from routers.policies.admission.controllers import Watch
from routers.policies.batching.draft import Draft, Turns
from routers.policies.batching.types import LeadPlan, Leaving
from routers.policies.batching.view import QueueView
from routers.state.lanes import Bucket
from routers.state.rows import Row, TrackedRequest


class Shedding:
    """`gone`: requests that leave. `watches`, `too_old`: what CoDel has seen, and how often it has
    said no."""

    __slots__ = ("_draft", "_now", "_view", "gone", "leaving", "too_old", "watches")

    def __init__(self, view: QueueView, draft: Draft, now: float) -> None:
        self._view, self._draft, self._now = view, draft, now
        self.gone: set[TrackedRequest] = set()
        self.leaving: list[Leaving] = []
        self.watches: dict[FlowKey, Watch] = {}
        self.too_old = 0

    def sheds(self, row: Row) -> bool:
        """Whether it leaves: its request does already, or has waited too long."""
        tracked = row.tracked
        if tracked in self.gone:
            return True
        if tracked.forecast is None or self._draft.lane.late or not self._is_too_old(tracked):
            return False
        self.leaves(tracked, is_shed=True)
        return True

    def leaves(self, tracked: TrackedRequest, *, is_shed: bool) -> None:
        self.leaving.append(Leaving(len(self._draft.rows), tracked, is_shed))
        self.gone.add(tracked)

    def _is_too_old(self, tracked: TrackedRequest) -> bool:
        """What CoDel says of a request of which no row has been served."""
        codel = self._view.codel
        if codel.verdicts.off or tracked.queued < len(tracked.rows):
            return False
        if len(tracked.rows) > 1 and any(row.tracked is tracked for row in self._draft.rows):
            return False
        flow = tracked.flow.key
        watch = self.watches.get(flow) or codel.watch(flow)
        wait_s = self._now - tracked.queued_at
        self.watches[flow], is_over = codel.judge(watch, wait_s, self._now)
        self.too_old += is_over
        return is_over and codel.verdicts.acts


def in_order(
    view: QueueView, draft: Draft, turns: Turns[Any], bucket: Bucket, now: float
) -> LeadPlan:
    """As many as the draft holds, but for those that leave; `bucket` leads."""
    shedding = Shedding(view, draft, now)
    while draft.room > 0 and (row := turns.first()) is not None:
        if not shedding.sheds(row):
            if not draft.holds(row):
                break
            draft.take(row)
        turns.pass_by(row)
    return LeadPlan(
        draft, bucket.queue, bucket, tuple(shedding.leaving),
        watches=shedding.watches, too_old=shedding.too_old,
    )  # fmt: skip
