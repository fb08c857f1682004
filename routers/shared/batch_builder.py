"""Carries out a batching policy's plan: takes rows out of the queue and charges their flows.

This is the only module that takes rows out of the queue to be served; `batcher` calls it. A plan
also names requests that are called late or shed, each with its place among the rows that are taken.
They leave in that order, so that each eviction reports the queue as it was when the policy decided
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from routers.api.actions import Action
from routers.api.policies import Ranking
from routers.api.requests import Reason
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching.draft import Draft
from routers.policies.batching.types import BatchPlan
from routers.shared.requests import RequestTable
from routers.state.flows import Flow
from routers.state.formed_batch import FormedBatch
from routers.state.lanes import FlowQueue
from routers.state.rows import Row


def carry_out(requests: RequestTable, plan: BatchPlan, now: float, actions: list[Action]) -> None:
    """Take the plan's rows out of the queue, and demote or evict the requests that it names, in
    the plan's order. Passes on what the admission controllers saw while it was made."""
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
            requests.demote_or_evict(leaving.tracked, now, actions)
    take(requests, draft.rows[taken:], now)
    if plan.holds_back:
        draft.capacity.group.holds_back = True


def take(requests: RequestTable, rows: Iterable[Row], now: float) -> None:
    """Take the rows out of the queue. A request that had a forecast of its queue wait is reported
    to the controllers, which learn how good the forecast was."""
    waiting = requests.waiting
    for row in rows:
        waiting.remove(row)
        if row.tracked.forecast_s is not None:
            requests.starts(row.tracked, now)


def form(
    requests: RequestTable, draft: Draft, leader: Flow, competing_weight: float
) -> FormedBatch:
    """The batch of the draft's rows, which have left the queue; charges their flows. `leader`: the
    flow whose turn it was. `competing_weight`: sum of the weights of the flows of its priority
    that had on-time rows waiting before the batch was formed."""
    flows = requests.flows
    tag = flows.tag(leader)
    is_told = flows.order.ranking is Ranking.SHARES
    batch = draft.formed(tag if is_told else 0.0, flows.epoch)
    for flow, account in draft.accounts.items():
        flows.set_account(flow, account)
    flows.leads(leader, tag, batch.work_s, competing_weight)
    return batch


def min_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """Seconds of work that a bucket's turn costs at least: the cheapest full batch of the flow's
    buckets. Without it a bucket with few rows would pay little for each turn, and be served in many
    small batches."""
    waiting = [edge for edge, bucket in queue.buckets.items() if bucket.rows]
    return group.speed * min([group.sizes.full_s(edge) for edge in waiting], default=0.0)
