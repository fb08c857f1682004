"""What a batching policy is shown, and what it answers.

It is asked twice for a batch: whose rows lead it (`lead`), and whether others fill the room that is
left (`fill`). Both answers are plans; the core takes the rows out of the queue, charges their flows
and calls late who is named so, and asks again where nothing was left to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routers.policies.admission.types import TurnLook
from routers.policies.batching.draft import Draft
from routers.policies.batching.view import QueueView
from routers.state.formed_batch import ReplicaCapacity
from routers.state.lanes import Bucket, FlowQueue, Lane
from routers.state.rows import Row, TrackedRequest


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who is not served in this batch although its turn has come, after so many rows of the plan
    were taken: called late, or shed because it has waited too long."""

    after: int
    tracked: TrackedRequest
    is_shed: bool


@dataclass(frozen=True, slots=True)
class LeadPlan:
    """`draft`: the batch with its first rows, without any where there is none to be. `queue`,
    `bucket`: who leads. `held_until`: an idle replica waits until then for more. `holds_back`: what
    waits is left to another group. `is_last`: there is nothing more in this lane for this replica.
    `looks`: what controllers have seen of those whose turn has come."""

    draft: Draft
    queue: FlowQueue
    bucket: Bucket
    leaving: tuple[Leaving, ...] = ()
    held_until: float | None = None
    holds_back: bool = False
    is_last: bool = False
    looks: tuple[TurnLook, ...] = ()


class Batching(Protocol):
    def lead(
        self, view: QueueView, lane: Lane, capacity: ReplicaCapacity, now: float
    ) -> LeadPlan | None:
        """The batch that the lane's next flow leads; None: nothing waits there but retried rows."""
        ...

    def fill(self, view: QueueView, draft: Draft, now: float) -> tuple[Row, ...]:
        """Rows for the room that is left, once the first ones have been taken out of the queue."""
        ...
