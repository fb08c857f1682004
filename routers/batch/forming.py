"""Which rows form the next batch, now that a replica can take one?

A lane holds the rows of one priority that are on time, or those that are late. Lanes come strictly
in order: on time before late, urgent before less urgent. Exception: a priority that was passed over
for `ageing_s` leads one batch. A retried row travels alone, to a replica that holds nothing else.
The batching policy plans which rows of the lane form the batch, and is asked again as long as its
plan holds nothing but requests that leave the queue unserved. A plan also names requests that are
called late or shed, each with its place among the rows that are taken: they leave in that order, so
that each eviction reports the queue as it was when the policy decided it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from routers.api.actions import Action
from routers.api.policies import SHARES
from routers.api.requests import Reason
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching.draft import Draft, new_draft
from routers.policies.batching.formed_batch import FormedBatch, ReplicaCapacity
from routers.policies.batching.types import BatchPlan
from routers.policies.batching.view import QueueView
from routers.policies.registry import BATCHINGS
from routers.shared.requests import RequestTable
from routers.state.flows import Flow
from routers.state.lanes import FlowQueue, Lane
from routers.state.rows import Row


class Forming:
    """Forms batches, and takes their rows out of the queue."""

    def __init__(self, settings: DispatcherSettings, requests: RequestTable) -> None:
        self._requests = requests
        self.held_until: float | None = None  # until when a replica lets a batch grow
        # When the first retried row that was held back in this step may risk the last replica.
        self.next_retry_at = inf
        self._batching = BATCHINGS[settings.policies.batching]()
        self._view = QueueView(
            requests.waiting, requests.flows.order, requests.arrivals.gaps,
            requests.controllers.at_turn, requests.groups, settings,
        )  # fmt: skip

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under these settings, which `requests` has adopted."""
        requests, view = self._requests, self._view
        self._batching = BATCHINGS[settings.policies.batching]()
        view.settings, view.order = settings, requests.flows.order
        view.at_turn = requests.controllers.at_turn

    def form(
        self, capacity: ReplicaCapacity, now: float, actions: list[Action]
    ) -> FormedBatch | None:
        """The batch for this replica: its rows have left the queue, and their flows are charged.
        None: the replica may take no row, or it waits for a larger batch, until `held_until` or
        longer: that is the earliest time until which a replica waits."""
        self._requests.waiting.reorder()
        earlier = self.held_until
        self._hold_until(None)
        batch = self._first(capacity, now, actions)
        held = self.held_until
        if earlier is not None and (held is None or earlier < held):
            self._hold_until(earlier)
        return batch

    # Methods of their own: where a function assigns None to a field that others set meanwhile, mypy
    # takes it to be None still, and the compiled core fails when it is not.

    def begin_pass(self) -> None:
        """No replica waits yet, and no retried row was held back."""
        self.held_until, self.next_retry_at = None, inf

    def _hold_until(self, at: float | None) -> None:
        self.held_until = at

    def _first(
        self, capacity: ReplicaCapacity, now: float, actions: list[Action]
    ) -> FormedBatch | None:
        """The batch of the first lane that has one for this replica. Lanes after one that waits for
        more rows are not asked."""
        requests, lengths = self._requests, capacity.lengths
        for lane in requests.waiting.lanes_in_turn(requests.settings.ageing_s, now):
            retried = lane.isolated.head() if lengths is None else lane.first_alone(lengths)
            if retried is not None and self._may_retry_on(retried, capacity, now):
                if not capacity.idle:
                    return None  # it empties for this row, so that a loss has one possible cause
                lane.since = now
                return self._alone(lane, retried, capacity, now)
            if lane.rows == lane.isolated.rows:
                continue  # nothing waits here but retried rows
            chosen = requests.waiting.lane_in_turn(lane, capacity.group, lengths)
            batch = self._led(chosen, capacity, now, actions)
            if batch is not None:
                lane.since = now
                return batch
            if self.held_until is not None:
                return None
        return None

    def _may_retry_on(self, row: Row, capacity: ReplicaCapacity, now: float) -> bool:
        """Whether the retried row may run on this replica now. If the row is held back until later,
        `next_retry_at` becomes that time, unless it is earlier."""
        if not capacity.allows(row):
            return False
        at = self._requests.suspects.may_go_at(row, capacity.replica_id, now)
        if now < at < self.next_retry_at:
            self.next_retry_at = at
        return at <= now

    def _led(
        self, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
    ) -> FormedBatch | None:
        """A batch led by the flow whose turn it is. None: all rows of the lane turned out late, or
        it pays to wait for more rows (`held_until` says until when)."""
        requests, batching, view = self._requests, self._batching, self._view
        while (plan := batching.lead(view, lane, capacity, now)) is not None:
            competing_weight = requests.flows.weights[lane.priority]
            _carry_out(requests, plan, now, actions)
            draft = plan.draft
            if draft.rows:
                _take(requests, batching.fill(view, draft, now), now)
                batch = _formed(requests, draft, plan.queue.flow, competing_weight)
                min_s = _min_turn_s(capacity.group, plan.queue)
                plan.queue.took_turn(plan.bucket, max(batch.charge.work_s, min_s))
                return batch
            if plan.is_last:
                self.held_until = plan.held_until
                return None
        return None

    def _alone(self, lane: Lane, row: Row, capacity: ReplicaCapacity, now: float) -> FormedBatch:
        """A batch of this row alone, taken out of the queue."""
        draft = new_draft(self._view, lane, row.edge, capacity)
        competing_weight = self._requests.flows.weights[lane.priority]
        draft.take(row)
        _take(self._requests, (row,), now)
        return _formed(self._requests, draft, row.tracked.flow, competing_weight)


def _carry_out(requests: RequestTable, plan: BatchPlan, now: float, actions: list[Action]) -> None:
    """Take the plan's rows out of the queue, and demote or evict the requests that it names, in
    the plan's order. Passes on what the admission controllers saw while it was made."""
    draft, taken = plan.draft, 0
    for look in plan.looks:
        look.controller.learn(look.seen)
        for _ in range(look.noes):
            look.controller.verdicts.no()
    for leaving in plan.leaving:
        _take(requests, draft.rows[taken : leaving.after], now)
        taken = leaving.after
        if leaving.is_shed:
            requests.evict(leaving.tracked, Reason.SHED, actions)
        else:
            requests.demote_or_evict(leaving.tracked, now, actions)
    _take(requests, draft.rows[taken:], now)
    if plan.holds_back:
        draft.capacity.group.holds_back = True


def _take(requests: RequestTable, rows: Iterable[Row], now: float) -> None:
    """Take the rows out of the queue."""
    for row in rows:
        requests.take_out(row, now)


def _formed(
    requests: RequestTable, draft: Draft, leader: Flow, competing_weight: float
) -> FormedBatch:
    """The batch of the draft's rows, which have left the queue; charges their flows. `leader`: the
    flow whose turn it was. `competing_weight`: sum of the weights of the flows of its priority
    that had on-time rows waiting before the batch was formed."""
    flows = requests.flows
    tag = flows.tag(leader)
    is_told = flows.order.ranking is SHARES
    batch = draft.formed(tag if is_told else 0.0, flows.epoch)
    for flow, account in draft.accounts.items():
        flows.set_account(flow, account)
    flows.leads(leader, tag, batch.charge.work_s, competing_weight)
    return batch


def _min_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """Seconds of work that a bucket's turn costs at least: the cheapest full batch of the flow's
    buckets. Without it a bucket with few rows would pay little for each turn, and be served in many
    small batches."""
    waiting = [edge for edge, bucket in queue.buckets.items() if bucket.rows]
    return group.speed * min([group.sizes.full_s(edge) for edge in waiting], default=0.0)
