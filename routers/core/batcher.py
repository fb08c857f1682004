"""Which lane feeds the next batch, now that a replica can take one?

Lanes strictly in order: on time before late, urgent before less urgent, except that a priority
passed over for `ageing_s` leads one batch. A retried row travels alone, on a replica that holds
nothing else. A stream replica takes one row. Which rows of a lane form a batch the batching policy
plans; here that is carried out, and asked again while all that it names leaves instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from routers.api.actions import Action
from routers.core.batch_builder import carry_out, form, least_turn_s, take
from routers.core.request_table import RequestTable
from routers.core.stream_turns import next_row
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching.draft import new_draft
from routers.state.formed_batch import FormedBatch, ReplicaCapacity
from routers.state.lanes import Lane, bucket_of
from routers.state.rows import Row


def form_batch(
    requests: RequestTable, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """The rows for this replica, taken out of the queue and charged to their flows; None when it
    may take none of them, or an idle replica should wait until `requests.held_until`."""
    requests.waiting.reorder()
    requests.wants_room = None
    lead = _stream if capacity.streams else _led
    for lane in _in_order(requests, now):
        retried = lane.solo.head()
        if retried is not None and _may_go(requests, retried, capacity, now):
            if capacity.may_try(retried):
                lane.since = now
                return _alone(requests, lane, retried, capacity, now)
            if retried.tracked.plan is None:
                return None
            if retried.tracked.plan.room <= capacity.whole:
                requests.wants_room = retried
        if lane.rows == lane.solo.rows:
            continue  # nothing, or nothing that this replica may take
        batch = lead(
            requests, _with_lowest_tag(requests, lane, capacity.group), capacity, now, actions
        )
        if batch is not None:
            lane.since = now
            return batch
        if requests.held_until is not None or (capacity.streams and _is_strict(requests)):
            return None
    return None


def _in_order(requests: RequestTable, now: float) -> Iterator[Lane]:
    """Lanes, the one to serve first in front; the late ones as they are once these were asked."""
    waiting = requests.waiting
    due = waiting.passed_over(requests.settings.ageing_s, now)
    if due is not None:
        yield due
    yield from [lane for lane in waiting.on_time if lane.rows and lane is not due]
    yield from waiting.late


def _may_go(requests: RequestTable, row: Row, capacity: ReplicaCapacity, now: float) -> bool:
    """Whether the retried row may be tried on this replica; when else, if it is held back."""
    at = requests.suspects.may_go_at(row, capacity, now)
    if now < at < requests.tries_at:
        requests.tries_at = at
    return at <= now


def _with_lowest_tag(requests: RequestTable, lane: Lane, group: ReplicaGroup) -> Lane:
    """The lane itself, or the late one of its priority where a flow with late rows alone is a batch
    further below its share: being late may cost it its place among its own, not its share. Less
    than that is no matter of shares (of 1,200 rows/s offered by 100 equal tenants, 490 instead of
    1,055 were in time when any difference counted)."""
    late_lanes = requests.waiting.late
    if lane.late or len(late_lanes) <= lane.priority:
        return lane
    late, first = late_lanes[lane.priority].order.first(), lane.order.first()
    if late is None or first is None or late.flow.rows:
        return lane
    batch_s = group.most_work_s / late.flow.weight
    is_far_below = requests.flows.order.is_far_ahead(first.flow.start, late.flow.start, batch_s)
    return late.lane if is_far_below else lane


def _led(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A batch of the flow whose turn it is; None when all of the lane's rows turned out late, or
    it pays to wait for more."""
    batching, view = requests.batching, requests.view
    while (plan := batching.lead(view, lane, capacity, now)) is not None:
        rivals = requests.flows.weights[lane.priority]
        carry_out(requests, plan, now, actions)
        draft = plan.draft
        if draft.rows:
            take(requests, batching.fill(view, draft, now), now)
            batch = form(requests, draft, plan.queue.flow, rivals)
            least_s = least_turn_s(capacity.group, plan.queue)
            plan.queue.took_turn(plan.bucket, max(batch.work_s, least_s))
            return batch
        if plan.is_last:
            requests.held_until = plan.held_until
            return None
    return None


def _stream(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    row = next_row(requests, lane, capacity, now, actions)
    if row is None:
        return None
    bucket = bucket_of(row)
    bucket.queue.took_turn(bucket, row.cost_s)
    return _alone(requests, lane, row, capacity, now)


def _is_strict(requests: RequestTable) -> bool:
    """Whether less urgent rows wait because more urgent ones could not be taken: not where those
    wait for nothing but the reading of other prompts."""
    return requests.generations is None or requests.wants_room is not None


def _alone(
    requests: RequestTable, lane: Lane, row: Row, capacity: ReplicaCapacity, now: float
) -> FormedBatch:
    draft = new_draft(requests.view, lane, row.edge, capacity)
    rivals = requests.flows.weights[lane.priority]
    draft.take(row)
    take(requests, (row,), now)
    return form(requests, draft, row.tracked.flow, rivals)
