"""Which requests leave, now that their turn has come, instead of being served?

Every batching policy asks this alike. Once one row of a request leaves, all its rows do. What
controllers of admission (`AtTurn`) have seen on the way is part of the plan.
"""

from __future__ import annotations

from typing import Any

from routers.policies.admission.types import TurnLook
from routers.policies.batching.draft import Draft, Turns, new_draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.types import BatchPlan, Leaving
from routers.policies.batching.view import QueueView
from routers.state.lanes import Bucket, Lane, bucket_of
from routers.state.rows import Row, TrackedRequest


class Shedding:
    """The requests that leave a planned batch."""

    __slots__ = ("_draft", "_now", "_view", "gone", "leaving", "looks")

    def __init__(self, view: QueueView, draft: Draft, now: float) -> None:
        self._view, self._draft, self._now = view, draft, now
        self.gone: set[TrackedRequest] = set()  # the same requests as in `leaving`
        self.leaving: list[Leaving] = []
        self.looks: tuple[TurnLook, ...] = ()  # what controllers have seen

    def sheds(self, row: Row) -> bool:
        """Whether the row leaves: its request already does, or a controller sheds it."""
        tracked = row.tracked
        if tracked in self.gone:
            return True
        if tracked.forecast_s is None or self._draft.lane.late or not self._is_shed(tracked):
            return False
        self.leaves(tracked, is_shed=True)
        return True

    def leaves(self, tracked: TrackedRequest, *, is_shed: bool) -> None:
        """The request leaves: shed by a controller, or late."""
        self.leaving.append(Leaving(len(self._draft.rows), tracked, is_shed))
        self.gone.add(tracked)

    def _is_shed(self, tracked: TrackedRequest) -> bool:
        """Whether a controller sheds the request. Controllers are asked only about a request of
        which no row has been served."""
        asked, rows = self._view.at_turn, tracked.rows
        if not asked or tracked.queued < len(rows):
            return False
        if len(rows) > 1 and any(row.tracked is tracked for row in self._draft.rows):
            return False
        looks = self.looks
        if not looks:
            looks = self.looks = tuple([TurnLook(each) for each in asked])
        flow, wait_s = tracked.flow.key, self._now - tracked.queued_at
        for look in looks:
            seen, controller = look.seen, look.controller
            known = seen[flow] if flow in seen else controller.seen(flow)
            seen[flow], is_no = controller.look(known, tracked, wait_s, self._now)
            look.noes += is_no
            if is_no and controller.verdicts.acts:
                return True
        return False


def in_order(
    view: QueueView, draft: Draft, turns: Turns[Any], bucket: Bucket, now: float
) -> BatchPlan:
    """A plan of as many rows as the draft holds, in the order of `turns`, without those that leave;
    `bucket` leads."""
    shedding = Shedding(view, draft, now)
    while draft.room > 0 and (row := turns.first()) is not None:
        if not shedding.sheds(row):
            if not draft.holds(row):
                break
            draft.take(row)
        turns.pass_by(row)
    plan = BatchPlan(draft, bucket.queue, bucket)
    plan.leaving, plan.looks = tuple(shedding.leaving), shedding.looks
    return plan


def of_bucket(
    view: QueueView, lane: Lane, capacity: ReplicaCapacity, bucket: Bucket, now: float
) -> BatchPlan:
    """A plan of rows of the bucket's length class; the bucket leads."""
    draft = new_draft(view, lane, bucket.edge, capacity)
    order = lane.length_classes[bucket.edge].order
    turns = Turns(order, draft, view.order.ranking, bucket_of)
    return in_order(view, draft, turns, bucket, now)
