"""What a batching policy is asked, and what it answers.

It is asked twice for a batch: which rows lead it (`lead`), and which others fill the room that is
left (`fill`). Both answers are plans. The core takes the rows out of the queue, charges their
flows, calls late or sheds the requests that the plan names, and asks again if nothing was left to
send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routers.policies.admission.types import TurnLook
from routers.policies.batching.draft import Draft
from routers.policies.batching.formed_batch import ReplicaCapacity
from routers.policies.batching.view import QueueView
from routers.state.lanes import Bucket, FlowQueue, Lane
from routers.state.rows import Row, TrackedRequest


@dataclass(frozen=True, slots=True)
class Leaving:
    """A request that is not served in this batch although its turn has come."""

    after: int  # rows of the plan that were taken before
    tracked: TrackedRequest
    is_shed: bool  # a controller sheds it; else it is called late


class BatchPlan:
    """A batch with its first rows; without rows where none is to be sent."""

    draft: Draft
    queue: FlowQueue  # of the flow that leads
    bucket: Bucket  # of that flow
    leaving: tuple[Leaving, ...]
    held_until: float | None  # an idle replica waits until then for more rows
    holds_back: bool  # what waits is left to another group
    is_last: bool  # nothing more in this lane is for this replica
    looks: tuple[TurnLook, ...]  # what controllers have seen of requests whose turn has come

    def __init__(self, draft: Draft, queue: FlowQueue, bucket: Bucket) -> None:
        self.draft, self.queue, self.bucket = draft, queue, bucket
        self.leaving, self.held_until, self.looks = (), None, ()
        self.holds_back = self.is_last = False

    def last(self, *, held_until: float | None = None, holds_back: bool = False) -> BatchPlan:
        """The plan itself, after which nothing more in this lane is for this replica."""
        self.held_until, self.holds_back, self.is_last = held_until, holds_back, True
        return self


class Batching(Protocol):
    """Which rows form the next batch?"""

    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> BatchPlan | None:
        """The batch that the lane's next flow leads; None: only rows that travel alone wait there,
        or none."""
        ...

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        """Rows for the room that is left, once the first rows have been taken out of the queue."""
        ...
