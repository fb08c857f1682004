"""Which lane feeds the next batch, now that a replica can take one?

A lane holds the rows of one priority that are on time, or those that are late. Lanes come strictly
in order: on time before late, urgent before less urgent. Exception: a priority that was passed over
for `ageing_s` leads one batch. A retried row travels alone, to a batch replica that holds nothing
else. A stream replica takes one row. The batching policy plans which rows of the lane form the
batch; `batch_builder` carries the plan out. The policy is asked again as long as its plan holds
nothing but requests that leave the queue unserved. `assignment` calls `form_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator

from routers.api.actions import Action
from routers.policies.batching.draft import new_draft
from routers.shared.batch_builder import carry_out, form, min_turn_s, take
from routers.shared.requests import RequestTable
from routers.shared.stream_turns import next_row
from routers.state.formed_batch import FormedBatch, ReplicaCapacity
from routers.state.lanes import Lane, bucket_of
from routers.state.rows import Row


def form_batch(
    requests: RequestTable, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """The batch for this replica: its rows have left the queue, and their flows are charged. None:
    the replica may take no row, or it waits for a larger batch, until `requests.held_until` or
    longer: that is the earliest time until which a replica waits. Also sets
    `requests.row_without_room` and `requests.next_retry_at`."""
    requests.waiting.reorder()
    requests.row_without_room = None
    earlier, requests.held_until = requests.held_until, None
    batch = _first_batch(requests, capacity, now, actions)
    held = requests.held_until
    if earlier is not None and (held is None or earlier < held):
        requests.held_until = earlier
    return batch


def _first_batch(
    requests: RequestTable, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """The batch of the first lane that has one for this replica. Lanes after one that waits for
    more rows are not asked."""
    lead = _stream_batch if capacity.streams else _led_batch
    for lane in _lanes_in_order(requests, now):
        lengths = capacity.lengths
        retried = lane.isolated.head() if lengths is None else lane.first_alone(lengths)
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
        batch = lead(requests, _with_lowest_tag(requests, lane, capacity), capacity, now, actions)
        if batch is not None:
            lane.since = now
            return batch
        if requests.held_until is not None or (capacity.streams and _holds_up_others(requests)):
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


def _with_lowest_tag(requests: RequestTable, lane: Lane, capacity: ReplicaCapacity) -> Lane:
    """The lane itself, or the late lane of its priority, where a flow that has only late rows is
    behind the lane's first flow by more than one batch of service. Lateness may cost a flow its
    place among its own rows, but not its share of the device. Smaller differences do not count: of
    1,200 rows/s offered by 100 equal tenants, 490 rows/s were in time when any difference counted,
    and 1,055 rows/s with this rule."""
    late_lanes = requests.waiting.late
    if lane.late or len(late_lanes) <= lane.priority:
        return lane
    lengths = capacity.lengths
    late, first = late_lanes[lane.priority].first(lengths), lane.first(lengths)
    if late is None or first is None or late.flow.rows:
        return lane
    batch_s = capacity.group.max_work_s / late.flow.weight
    is_far_below = requests.flows.order.is_far_ahead(first.flow.start, late.flow.start, batch_s)
    return late.lane if is_far_below else lane


def _led_batch(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A batch led by the flow whose turn it is. None: all rows of the lane turned out late, or it
    pays to wait for more rows (`requests.held_until` says until when)."""
    batching, view = requests.batching, requests.view
    while (plan := batching.lead(view, lane, capacity, now)) is not None:
        competing_weight = requests.flows.weights[lane.priority]
        carry_out(requests, plan, now, actions)
        draft = plan.draft
        if draft.rows:
            take(requests, batching.fill(view, draft, now), now)
            batch = form(requests, draft, plan.queue.flow, competing_weight)
            min_s = min_turn_s(capacity.group, plan.queue)
            plan.queue.took_turn(plan.bucket, max(batch.work_s, min_s))
            return batch
        if plan.is_last:
            requests.held_until = plan.held_until
            return None
    return None


def _stream_batch(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A lease of one row for a stream replica; None: it may take no row of this lane."""
    row = next_row(requests, lane, capacity, now, actions)
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
    take(requests, (row,), now)
    return form(requests, draft, row.tracked.flow, competing_weight)
