"""Which rows form the next batch, now that a replica can take one?

Lanes strictly in order: on time before late, urgent before less urgent, except that a priority
passed over for `ageing_s` leads one batch. In a lane the flow with the lowest start tag leads, with
the bucket whose turn it is; the batch is filled from that bucket over all flows in tag order, up to
its target size. Rows that cannot make their deadline in such a batch are called late instead of
taken. A retried row travels alone, on a replica that holds nothing else. A stream replica takes one
row. Where there are several groups of replicas, one leaves to faster ones what these will have
finished sooner, and rows that only they can answer in time. Fair in predicted device seconds; spare
room is `batch_builder.fill_spare_room`'s question.

Sources: SFQ(D) over weighted flows; early drop by sliding window (Nexus, SOSP'19); token budgets on
padded size as in text-embeddings-inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from routers.api.actions import Action
from routers.core.batch_builder import BatchBuilder, fill_in_time, fill_spare_room, take_late_along
from routers.core.request_table import RequestTable
from routers.core.stream_turns import next_row
from routers.estimates.batch_size import pays_to_wait
from routers.estimates.groups import ReplicaGroup
from routers.state.flows import Flow
from routers.state.lanes import Bucket, FlowQueue, Lane, Row
from routers.state.replica_state import FormedBatch, ReplicaCapacity

_EARLY_DROP = 0.7  # of the batch that could be formed: the size at which a row must make it


def form_batch(
    requests: RequestTable, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """The rows for this replica, taken out of the queue and charged to their flows; None when it
    may take none of them, or an idle replica should wait until `requests.held_until`."""
    requests.waiting.reorder()
    requests.wants_room = None
    form = _stream if capacity.streams else _led
    for lane in _in_order(requests, now):
        retried = lane.solo.head()
        if retried is not None and requests.suspects.may_go(retried, capacity, now):
            if capacity.may_try(retried):
                lane.since = now
                return _alone(requests, lane, retried, capacity, now)
            if retried.tracked.plan is None:
                return None
            if retried.tracked.plan.room <= capacity.whole:
                requests.wants_room = retried
        if lane.rows == lane.solo.rows:
            continue  # nothing, or nothing that this replica may take
        batch = form(
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
    far_below = late.flow.start + group.most_work_s / late.flow.weight
    return late.lane if far_below < first.flow.start else lane


def _led(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    """A batch of the flow whose turn it is; None when all of the lane's rows turned out late, or
    it pays to wait for more."""
    while (queue := lane.order.first()) is not None:
        bucket = _bucket(requests, queue, capacity, now)
        builder = BatchBuilder(requests, lane, bucket.edge, capacity, now)
        if _is_held(requests, builder, bucket, now) or _leaves(requests, builder, now):
            return None
        start = queue.flow.tag
        _fill(requests, builder, queue.flow, now, actions)
        if builder.rows:
            if capacity.trusted and not capacity.others_idle:
                fill_spare_room(requests, builder)
                take_late_along(requests, builder, now)
            batch = builder.formed(start)
            requests.flows.leads(queue.flow, start, batch.work_s, builder.rivals)
            queue.took_turn(bucket, max(batch.work_s, _least_turn_s(capacity.group, queue)))
            return batch
        if builder.passed_over:
            return None
    return None


def _least_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """A turn costs at least what the cheapest full batch of the flow's buckets does, or buckets
    in which little waits would be served in many small batches."""
    waiting = [edge for edge, bucket in queue.buckets.items() if bucket.rows]
    return group.speed * min([group.sizes.full_s(edge) for edge in waiting], default=0.0)


def _bucket(
    requests: RequestTable, queue: FlowQueue, capacity: ReplicaCapacity, now: float
) -> Bucket:
    """The bucket whose turn it is, or the one whose shape the replica has loaded while that one
    is ahead by less than loading another costs."""
    bucket = queue.leading(capacity.group.sizes, now)
    switch_s = requests.settings.buckets.switch_s
    if switch_s > 0.0 and capacity.last_edge not in (0, bucket.edge):
        loaded = queue.buckets.get(capacity.last_edge)
        if loaded is not None and loaded.rows and loaded.turn <= bucket.turn + switch_s:
            return loaded
    return bucket


def _fill(
    requests: RequestTable, builder: BatchBuilder, leader: Flow, now: float, actions: list[Action]
) -> None:
    """Rows of the leading bucket over all flows, lowest tag first, none that would be late. Flows
    far above their share fill only a part: the others' cycle through their buckets stays short."""
    length_class, group = builder.lane.length_classes[builder.edge], builder.capacity.group
    order = length_class.order
    far_ahead = leader.start + group.most_work_s
    part = group.sizes.part_rows(builder.edge)
    done_at = -inf if builder.lane.late else now + _turnaround_s(builder, length_class.rows)
    while builder.room > 0 and (bucket := order.first()) is not None:
        row = bucket.head()
        assert row is not None
        if row.tracked.request.deadline < done_at:
            if _in_time_elsewhere(builder, row, now):
                fill_in_time(builder, done_at)
                break
            requests.call_late(row.tracked, now, actions)
            continue
        if not builder.lane.late and requests.sheds(row.tracked, now, actions):
            continue
        flow = bucket.flow
        if len(builder.rows) >= part and flow is not leader and flow.start > far_ahead:
            builder.most_start = far_ahead
            break
        if not builder.holds(row):
            break
        builder.take(row)


def _turnaround_s(builder: BatchBuilder, waiting: int) -> float:
    """Predicted seconds to the end of a batch of most of what could be in it, at the 99th
    percentile: a row that could only be served in a smaller one would keep the others waiting."""
    rows = max(1, int(_EARLY_DROP * min(builder.room, waiting)))
    busy_s = builder.capacity.starts_in_s
    cost = builder.capacity.group.cost
    return busy_s + cost.predict(rows, builder.edge, builder.capacity.replica_id, 0.99)


def _is_held(requests: RequestTable, builder: BatchBuilder, bucket: Bucket, now: float) -> bool:
    """Whether the bucket's next arrival should be waited for; sets `held_until`. Only the last idle
    replica waits, and then nobody else takes those rows either."""
    capacity, edge = builder.capacity, builder.edge
    if (
        requests.settings.hold != "auto"
        or builder.lane.late
        or capacity.idle is capacity.others_idle
    ):
        return False
    rows = builder.lane.length_classes[edge].rows
    gap = requests.arrivals.gaps.get(edge)
    if gap is None or gap.last is None or gap.mean_s == inf or rows >= builder.room:
        return False
    until = gap.last + 2.0 * gap.mean_s  # by then the one that was expected is not coming
    predict, head = capacity.group.cost.predict, bucket.head()
    assert head is not None
    in_time = until + predict(rows + 1, edge, quantile=0.99) <= head.tracked.request.deadline
    seconds = predict(1, edge), predict(rows, edge), predict(rows + 1, edge)
    if now >= until or not in_time or not pays_to_wait(rows, gap.mean_s, *seconds):
        return False
    requests.held_until = until
    return True


def _leaves(requests: RequestTable, builder: BatchBuilder, now: float) -> bool:
    """Whether what waits is left to a faster group that is busy, and will have finished it sooner
    all the same."""
    capacity, lane = builder.capacity, builder.lane
    if capacity.groups is None:
        return False
    waiting, group = requests.waiting, capacity.group
    before_s = waiting.on_time_s if lane.late else waiting.urgent_s(lane.priority)
    rows = lane.length_classes[builder.edge].rows
    sooner = capacity.groups.finishes_sooner(
        group, rows, builder.edge, before_s + lane.waiting_s, now
    )
    group.holds_back = group.holds_back or sooner
    return sooner


def _in_time_elsewhere(builder: BatchBuilder, row: Row, now: float) -> bool:
    """Whether a row that is late here need not be late."""
    groups, group = builder.capacity.groups, builder.capacity.group
    deadline = row.tracked.request.deadline
    if groups is None or not groups.in_time_elsewhere(group, 1, builder.edge, deadline, now):
        return False
    builder.passed_over = group.holds_back = True
    return True


def _stream(
    requests: RequestTable, lane: Lane, capacity: ReplicaCapacity, now: float, actions: list[Action]
) -> FormedBatch | None:
    row = next_row(requests, lane, capacity, now, actions)
    if row is None:
        return None
    bucket = row.queue
    assert bucket is not None
    bucket.queue.took_turn(bucket, row.cost_s)
    return _alone(requests, lane, row, capacity, now)


def _is_strict(requests: RequestTable) -> bool:
    """Whether less urgent rows wait because more urgent ones could not be taken: not where those
    wait for nothing but the reading of other prompts."""
    return requests.generations is None or requests.wants_room is not None


def _alone(
    requests: RequestTable, lane: Lane, row: Row, capacity: ReplicaCapacity, now: float
) -> FormedBatch:
    builder = BatchBuilder(requests, lane, row.edge, capacity, now)
    flow = row.tracked.flow
    start = flow.tag
    builder.take(row)
    batch = builder.formed(start)
    requests.flows.leads(flow, start, batch.work_s, builder.rivals)
    return batch
