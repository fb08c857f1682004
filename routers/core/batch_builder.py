"""Carries out what a batching policy has planned: rows leave the queue, their flows are charged.

The only place where rows are taken out to be served. A plan says who leaves in between, called late
or shed, at the place in the order where that was decided, so that what others are told of the queue
is what it then was.
"""

from __future__ import annotations

from collections.abc import Iterable

from routers.api.actions import Action
from routers.api.policies import Ranking
from routers.api.requests import Reason
from routers.core.request_table import RequestTable
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching.draft import Draft
from routers.policies.batching.types import LeadPlan
from routers.state.flows import Flow
from routers.state.formed_batch import FormedBatch
from routers.state.lanes import FlowQueue
from routers.state.rows import Row


def carry_out(requests: RequestTable, plan: LeadPlan, now: float, actions: list[Action]) -> None:
    """Takes the plan's first rows; who leaves goes where it says."""
    draft, taken = plan.draft, 0
    for look in plan.looks:
        look.controller.learn(look.seen)
        for _ in range(look.noes):
            look.controller.verdicts.no()
    for leaving in plan.leaving:
        take(requests, draft.rows[taken : leaving.after], now)
        taken = leaving.after
        if leaving.is_shed:
            requests.evict(leaving.tracked, Reason.SHED, actions)
        else:
            requests.call_late(leaving.tracked, now, actions)
    take(requests, draft.rows[taken:], now)
    if plan.holds_back:
        draft.capacity.group.holds_back = True


def take(requests: RequestTable, rows: Iterable[Row], now: float) -> None:
    """Out of the queue; their requests' forecasts have come true or not."""
    waiting = requests.waiting
    for row in rows:
        waiting.remove(row)
        if row.tracked.forecast_s is not None:
            requests.starts(row.tracked, now)


def form(requests: RequestTable, draft: Draft, leader: Flow, rivals: float) -> FormedBatch:
    """The lease's batch, of rows that have been taken out; `rivals`: weights of the flows of its
    priority that had on-time work waiting before. Charges the flows."""
    flows = requests.flows
    tag = flows.tag(leader)
    is_told = flows.order.ranking is Ranking.SHARES
    batch = draft.formed(tag if is_told else 0.0, flows.epoch)
    for flow, account in draft.accounts.items():
        flows.set_account(flow, account)
    flows.leads(leader, tag, batch.work_s, rivals)
    return batch


def least_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """A turn costs at least what the cheapest full batch of the flow's buckets does, or buckets
    in which little waits would be served in many small batches."""
    waiting = [edge for edge, bucket in queue.buckets.items() if bucket.rows]
    return group.speed * min([group.sizes.full_s(edge) for edge in waiting], default=0.0)
