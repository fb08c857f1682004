"""Which lane feeds the next batch, now that a replica can take one?

A lane holds the rows of one priority that are on time, or those that are late. Lanes come strictly
in order: on time before late, urgent before less urgent. Exception: a priority that was passed over
for `ageing_s` leads one batch. A retried row travels alone, to a batch replica that holds nothing
else. `policies.batching` plans which rows of the lane form the batch, and is asked again as long as
its plan holds nothing but requests that turn out late; this module, the only one that takes rows
out of the queue to be served, carries the plan out. A stream replica runs an engine that batches by
itself, so it takes rows one by one (`_next_row`). `assignment` calls `form_batch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from routers.api.actions import Action
from routers.api.requests import Reason
from routers.core.request_table import RequestTable
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching import BatchPlan, fill, lead
from routers.policies.draft import Draft, new_draft
from routers.state.flows import Flow
from routers.state.lanes import Bucket, FlowQueue, Lane, bucket_of
from routers.state.rows import FormedBatch, ReplicaCapacity, Row


def _carry_out(requests: RequestTable, plan: BatchPlan, now: float, actions: list[Action]) -> None:
    """Take the plan's rows out of the queue, and demote or evict the requests that it names, in
    the plan's order."""
    draft, taken = plan.draft, 0
    for leaving in plan.leaving:
        _take(requests, draft.rows[taken : leaving.after], now)
        taken = leaving.after
        requests.demote_or_evict(leaving.tracked, now, actions)
    _take(requests, draft.rows[taken:], now)
    if plan.holds_back:
        draft.capacity.group.holds_back = True


def _take(requests: RequestTable, rows: Iterable[Row], now: float) -> None:
    """Take the rows out of the queue. A request that had a forecast of its queue wait is reported
    to the admission, which learns how good the forecast was."""
    waiting = requests.waiting
    for row in rows:
        waiting.remove(row)
        if row.tracked.forecast_s is not None:
            requests.starts(row.tracked, now)


def _form(
    requests: RequestTable, draft: Draft, leader: Flow, competing_weight: float
) -> FormedBatch:
    """The batch of the draft's rows, which have left the queue; charges their flows. `leader`: the
    flow whose turn it was. `competing_weight`: sum of the weights of the flows of its priority
    that had on-time rows waiting before the batch was formed."""
    flows = requests.flows
    tag = flows.tag(leader)
    batch = draft.formed(tag)
    for flow, account in draft.accounts.items():
        flows.set_account(flow, account)
    flows.leads(leader, tag, batch.work_s, competing_weight)
    return batch


def _min_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """Seconds of work that a bucket's turn costs at least: the cheapest full batch of the flow's
    buckets. Without it a bucket with few rows would pay little for each turn, and be served in many
    small batches."""
    waiting = [edge for edge, bucket in queue.buckets.items() if bucket.rows]
    return group.speed * min([group.sizes.full_s(edge) for edge in waiting], default=0.0)


_FLOWS = 4  # flows, of the lowest tags, whose rows may pass a row that has no room


def _next_row(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, actions: list[Action]
) -> Row | None:
    """The row to send, still queued; None: the replica may take none of the rows that were tried.
    Sets `requests.row_without_room` to the first row that lacked room. Evicts rows that no running
    replica can hold."""
    while (queue := lane.order.first()) is not None:
        row = _head_or_evict(requests, queue.in_turn(), actions)
        if row is None:
            continue  # its request was evicted, so the next flow may be another one
        if not _may_take(requests, capacity, row):
            return _row_that_passes(requests, lane, capacity, row, actions)
        return row
    return None


def _row_that_passes(
    requests: RequestTable,
    lane: Lane,
    capacity: ReplicaCapacity,
    row: Row,
    actions: list[Action],
) -> Row | None:
    """A row that may pass `row`, which the replica may not take; None: there is none."""
    if row.tracked.plan is None:
        return None
    if not capacity.has_room(row) and row.tracked.plan.room <= capacity.whole:
        requests.row_without_room = requests.row_without_room or row
    for queue in lane.order.firsts(_FLOWS):
        for bucket in queue.by_turn():
            other = _head_or_evict(requests, bucket, actions) if bucket.rows else None
            if other is not None and _may_take(requests, capacity, other):
                return other
    return None


def _head_or_evict(requests: RequestTable, bucket: Bucket, actions: list[Action]) -> Row | None:
    """The bucket's first row; None: no running replica can hold even its prompt, and it was
    evicted."""
    row = bucket.head()
    assert row is not None
    plan, most = row.tracked.plan, requests.largest
    if plan is not None and plan.room > most > 0.0:
        if plan.prompt >= most:
            requests.evict(row.tracked, Reason.TOO_LONG, actions)
            return None
        plan.reserve = most - plan.prompt  # the larger replica that it was admitted for is gone
    return row


def _may_take(requests: RequestTable, capacity: ReplicaCapacity, row: Row) -> bool:
    """Whether the replica has room for the row, and may read its prompt beside other long ones."""
    generations = requests.generations
    if generations is None or row.tracked.plan is None:
        return capacity.fits(row)
    settings = generations.settings
    return capacity.fits(row) and capacity.reads(
        row, settings.long_tokens, settings.max_long_tokens
    )


def form_batch(
    requests: RequestTable, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """The batch for this replica: its rows have left the queue, and their flows are charged. None:
    the replica may take no row. Also sets `requests.row_without_room` and
    `requests.next_retry_at`."""
    requests.waiting.reorder()
    requests.row_without_room = None
    form_next = _stream_batch if capacity.streams else _led_batch
    for lane in _lanes_in_order(requests, now):
        retried = lane.isolated.head()
        if retried is not None and _may_retry_on(requests, retried, capacity, now):
            if capacity.may_try(retried):
                lane.since = now
                return _single_row_batch(requests, lane, retried, capacity, now)
            if retried.tracked.plan is None:
                return None
            if retried.tracked.plan.room <= capacity.whole:
                requests.row_without_room = retried
        if lane.rows == lane.isolated.rows:
            continue  # nothing waits here but retried rows
        batch = form_next(
            requests, _with_lowest_tag(requests, lane, capacity.group), capacity, now, actions
        )
        if batch is not None:
            lane.since = now
            return batch
        if capacity.streams and _holds_up_others(requests):
            return None
    return None


def _lanes_in_order(requests: RequestTable, now: float) -> Iterator[Lane]:
    """Lanes in the order in which they are asked. Lazy: on-time rows may turn late while their lane
    is asked, and are then found in the late lanes."""
    waiting = requests.waiting
    due = waiting.passed_over(requests.settings.ageing_s, now)
    if due is not None:
        yield due
    yield from [lane for lane in waiting.on_time if lane.rows and lane is not due]
    yield from waiting.late


def _may_retry_on(requests: RequestTable, row: Row, capacity: ReplicaCapacity, now: float) -> bool:
    """Whether the retried row may run on this replica now. If the row is held back until later,
    `requests.next_retry_at` becomes that time, unless it is earlier."""
    at = requests.suspects.may_go_at(row, capacity, now)
    if now < at < requests.next_retry_at:
        requests.next_retry_at = at
    return at <= now


def _with_lowest_tag(requests: RequestTable, lane: Lane, group: ReplicaGroup) -> Lane:
    """The lane itself, or the late lane of its priority, where a flow that has only late rows is
    behind the lane's first flow by more than one batch of service. Lateness may cost a flow its
    place among its own rows, but not its share of the device. Smaller differences do not count: of
    1,200 rows/s offered by 100 equal tenants, 490 rows/s were in time when any difference counted,
    and 1,055 rows/s with this rule."""
    late_lanes = requests.waiting.late
    if lane.late or len(late_lanes) <= lane.priority:
        return lane
    late, first = late_lanes[lane.priority].order.first(), lane.order.first()
    if late is None or first is None or late.flow.rows:
        return lane
    batch_s = group.max_work_s / late.flow.weight
    return late.lane if first.flow.start > late.flow.start + batch_s else lane


def _led_batch(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A batch led by the flow whose turn it is. None: all rows of the lane turned out late, or are
    left to another group."""
    view = requests.view
    while (plan := lead(view, lane, capacity, now)) is not None:
        competing_weight = requests.flows.weights[lane.priority]
        _carry_out(requests, plan, now, actions)
        draft = plan.draft
        if draft.rows:
            _take(requests, fill(view, draft, now), now)
            batch = _form(requests, draft, plan.queue.flow, competing_weight)
            min_s = _min_turn_s(capacity.group, plan.queue)
            plan.queue.took_turn(plan.bucket, max(batch.work_s, min_s))
            return batch
        if plan.is_last:
            return None
    return None


def _stream_batch(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A lease of one row for a stream replica; None: it may take no row of this lane."""
    row = _next_row(requests, lane, capacity, actions)
    if row is None:
        return None
    bucket = bucket_of(row)
    bucket.queue.took_turn(bucket, row.cost_s)
    return _single_row_batch(requests, lane, row, capacity, now)


def _holds_up_others(requests: RequestTable) -> bool:
    """Whether lanes after this one must wait when the stream replica takes no row of it. They need
    not wait where its rows only wait until other prompts have been read."""
    return requests.generations is None or requests.row_without_room is not None


def _single_row_batch(
    requests: RequestTable, lane: Lane, row: Row, capacity: ReplicaCapacity, now: float
) -> FormedBatch:
    """A batch of this row alone, taken out of the queue."""
    draft = new_draft(requests.view, lane, row.edge, capacity)
    competing_weight = requests.flows.weights[lane.priority]
    draft.take(row)
    _take(requests, (row,), now)
    return _form(requests, draft, row.tracked.flow, competing_weight)
