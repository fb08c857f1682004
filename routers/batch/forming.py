"""Which rows form the next batch, now that a replica can take one?

A lane holds the rows of one priority that are on time, or those that are late. Lanes come strictly
in order: on time before late, urgent before less urgent. Exception: a priority that was passed over
for `ageing_s` leads one batch. A retried row travels alone, to a replica that holds nothing else.

The batching policy is shown the replica and the flow with the lowest start tag in numbers, and says
which bucket leads. Rows are then taken in the order of tags, and charged to their flows one by one
with their own predicted cost, so that the order among flows follows. Once the batch is whole, its
predicted seconds are divided among flows in the same proportions, and replace those charges. On the
way, requests are called late or shed; if nothing was left to send, the policy is asked again.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from routers.api.actions import Action
from routers.api.policies import SHARES
from routers.api.requests import FlowWork
from routers.api.settings import DispatcherSettings
from routers.batch.lease import BatchReplica, BatchReplicas, FormedBatch
from routers.estimates.groups import ANY_LENGTH, LengthRange, ReplicaGroup
from routers.policies.batching.types import (
    Batching,
    BatchView,
    BucketView,
    Choice,
    LengthView,
    PartialBatch,
)
from routers.policies.registry import BATCHINGS
from routers.shared.requests import RequestTable
from routers.state.flows import Charge, Flow
from routers.state.lanes import Bucket, FlowQueue, Lane
from routers.state.rows import Row
from routers.state.tag_order import TagOrder

# Tokens: mean lengths are rounded up to it, so that few target sizes are computed
_GRAIN: Final = 16
_FLOWS: Final = 4  # looked at behind rows that only a faster group can answer in time


class _BucketView(BucketView):
    def __init__(self, bucket: Bucket, rows: int) -> None:
        super().__init__(bucket.edge, rows, bucket.turn)
        self._bucket = bucket

    def since(self) -> float:
        return self._bucket.head_since()

    def deadline(self) -> float:
        head = self._bucket.head()
        return inf if head is None else head.tracked.request.deadline

    def rank(self) -> float:
        return self._bucket.rank()


class _LaneView(BatchView):
    """What policies are shown, made of one lane."""

    lane: Lane
    takes: LengthRange | None  # lengths that the replica may take; None: all
    shown: LengthRange | None  # of those, the ones that the question is about
    _asked: int  # the edge of which `max_rows` was asked last; 0: of none
    _max_rows: int

    def turn_to(self, lane: Lane) -> None:
        self.lane, self.late, self._asked = lane, lane.late, 0

    def show(self, lane: Lane, queue: FlowQueue, lengths: LengthRange | None) -> None:
        """The question is about this lane's rows of these lengths, whose next flow is that of
        `queue`."""
        self.turn_to(lane)
        self.shown, classes = lengths, lane.length_classes
        self.buckets = [
            _BucketView(bucket, classes[bucket.edge].rows) for bucket in queue.waiting(lengths)
        ]

    def max_rows(self, edge: int) -> int:
        """A row counts as long as the edge or, where batches are packed, as the bucket's mean."""
        if not self.trusted:
            return 1
        if edge == self._asked:
            return self._max_rows
        group, width = self.group, edge
        if not group.sizes.pads:
            found = self.lane.length_classes.get(edge)
            mean = found.tokens // found.rows if found is not None and found.rows else edge
            width = min(edge, (mean // _GRAIN + 1) * _GRAIN)
        self._asked, self._max_rows = edge, group.sizes.max_rows(width)
        return self._max_rows

    def lengths(self) -> list[LengthView]:
        found, shown = [], self.shown
        for edge, each in self.lane.length_classes.items():
            if shown is None or edge in shown:
                bucket = each.order.first()
                if bucket is not None:
                    tag = each.order.tag(bucket)
                    found.append(LengthView(edge, each.rows, tag, bucket.turn))
        return found

    def slack_used_at(self, edge: int, share: float) -> float:
        found, at = self.lane.length_classes[edge], inf
        for bucket in found.order.firsts(found.rows):
            head = bucket.head()
            if head is not None:
                tracked = head.tracked
                slack_s = tracked.latest_start - tracked.queued_at
                at = min(at, tracked.queued_at + share * slack_s)
        return at


class _Batch(PartialBatch):
    """The batch, and what its flows owe for it."""

    lane: Lane
    leader: Flow
    bucket: Bucket | None  # of the leader, whose turn it is; None: the row travels alone
    rows: list[Row]
    shares: dict[Flow, float]  # predicted seconds of each flow's rows
    prices: dict[Flow, float]  # what flows were charged; empty where the order settles charges
    # Of the leader, before it was charged: its tag, and its start tag.
    tag: float
    start: float
    max_start: float  # flows with higher start tags were kept out; inf: none was
    # Summed, of the flows of its priority that had on-time rows waiting before.
    competing_weight: float
    passes_over: bool  # rows whose turn has come are left to another group

    def __init__(self, view: _LaneView, leader: Flow, edge: int, room: int) -> None:
        super().__init__(view.group, view.replica_id, edge, room)
        self.lane, self.leader, self.start = view.lane, leader, leader.start
        self.rows, self.shares, self.prices = [], {}, {}
        self.bucket, self.max_start, self.passes_over = None, inf, False
        self.tag = self.competing_weight = 0.0


class Forming:
    """Forms batches, and takes their rows out of the queue."""

    def __init__(
        self, settings: DispatcherSettings, requests: RequestTable, replicas: BatchReplicas
    ) -> None:
        self._requests, self._replicas = requests, replicas
        self._flows = requests.flows
        # In this step: until when a replica lets a batch grow, and when the first retried row that
        # was held back may risk the last replica; inf: none does.
        self.held_until = self.next_retry_at = inf
        self._holds = False  # the lane that was asked last waits for more rows
        self._view = _LaneView()
        self._view.gaps = requests.arrivals.gaps
        self.adopt(settings)

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under these settings, which `requests` has adopted."""
        self._batching: Batching = BATCHINGS[settings.policies.batching]()
        self._view.by_share = self._flows.order.ranking is SHARES

    def begin_pass(self) -> None:
        """No replica waits yet, and no retried row was held back."""
        self.held_until = self.next_retry_at = inf

    def form(
        self,
        replica: BatchReplica,
        now: float,
        actions: list[Action],
        *,
        trusted: bool,
        starts_in_s: float,
    ) -> FormedBatch | None:
        """The batch for this replica: its rows have left the queue, and their flows are charged.
        None: the replica may take no row, or waits for a larger batch. `trusted`: its costs are
        known; `starts_in_s`: predicted, until its device is free."""
        requests, replicas, view = self._requests, self._replicas, self._view
        view.group, view.replica_id = replica.group, replica.spec.replica_id
        view.groups = replicas.groups if len(replicas.groups.by_name) > 1 else None
        view.idle, view.others_idle = not replica.leases, replicas.ready.others_idle(replica)
        view.trusted, view.starts_in_s = trusted, starts_in_s
        view.last_edge = replica.last_edge
        view.takes = lengths = replicas.lengths_of(replica)
        held: Lane | None = None  # waits for more rows; one that was passed over is asked first
        requests.waiting.reorder()
        for lane in requests.waiting.lanes_in_turn(requests.ageing_s, now):
            if held is not None and (lane.late or lane.priority > held.priority):
                return None  # less urgent rows wait with those that are held back
            retried = lane.isolated.head() if lengths is None else lane.first_alone(lengths)
            if retried is not None and self._may_retry_on(retried, replica, now):
                if replica.leases:
                    return None  # it empties for this row, so that a loss has one possible cause
                lane.since = now
                return self._alone(lane, retried, now)
            if lane.rows == lane.isolated.rows:
                continue  # nothing waits here but retried rows
            chosen = requests.waiting.lane_in_turn(lane, view.group, lengths)
            self._holds = False
            batch = self._led(chosen, now, actions)
            if batch is None and chosen is not lane and not self._holds:
                batch = self._led(lane, now, actions)  # the late rows are left to another group
            if batch is not None:
                lane.since = now
                return batch
            if self._holds:
                held = lane
        return None

    def _may_retry_on(self, row: Row, replica: BatchReplica, now: float) -> bool:
        """Whether the retried row may run on this replica now: on the one that it avoids only where
        no other replica runs that takes rows of its length. If the row is held back until later,
        `next_retry_at` becomes that time, unless it is earlier."""
        replica_id = replica.spec.replica_id
        if row.avoid == replica_id and row.edge <= self._replicas.longest_beside(replica):
            return False
        at = self._requests.suspects.may_go_at(row, replica_id, now)
        if now < at < self.next_retry_at:
            self.next_retry_at = at
        return at <= now

    def _alone(self, lane: Lane, row: Row, now: float) -> FormedBatch:
        """A batch of this row alone."""
        self._view.turn_to(lane)
        batch = self._begun(row.tracked.flow, row.edge, self._view.max_rows(row.edge))
        self._take(batch, row, now)
        return self._sealed(batch)

    def _led(self, lane: Lane, now: float, actions: list[Action]) -> FormedBatch | None:
        """A batch led by the flow whose turn it is, of rows that were not left to another group.
        None: there are none for this replica, or it waits for more rows."""
        view, waiting, bounds = self._view, self._requests.waiting, self._replicas.groups.bounds
        group, lengths = view.group, view.takes
        while (queue := lane.first(lengths)) is not None:
            view.show(lane, queue, lengths)
            if view.groups is not None:
                before_s = waiting.on_time_s if lane.late else waiting.urgent_s(lane.priority)
                view.ahead_s = before_s + lane.waiting_s
            choice = self._batching.choose(view, now)
            if choice.hold_until is not None:
                self.held_until, self._holds = min(self.held_until, choice.hold_until), True
                return None
            if not choice.leaves:
                batch = self._filled(queue, choice, now, actions)
                if batch.passes_over:
                    group.holds_back = True
                if batch.rows:
                    self._add_riders(batch, now)
                    return self._sealed(batch)
                if not batch.passes_over:
                    lengths = view.takes  # all that had its turn has left: ask anew
                    continue
            group.holds_back = True
            # Shorter rows are left to another group, which may not take those above the bound.
            edge, longest = choice.edge, group.longest
            left = 0 if lengths is None else lengths.above
            bound = next((each for each in bounds if left < each < longest and edge <= each), 0)
            if not bound:
                return None
            lengths = LengthRange(bound, longest)
        return None

    def _begun(self, leader: Flow, edge: int, room: int) -> _Batch:
        """An empty batch, before its leader was charged."""
        flows, batch = self._flows, _Batch(self._view, leader, edge, room)
        batch.tag = flows.tag(leader)
        batch.competing_weight = flows.weights[leader.priority]
        return batch

    def _filled(
        self, queue: FlowQueue, choice: Choice, now: float, actions: list[Action]
    ) -> _Batch:
        """The batch that was chosen, without riders; it is empty where all rows whose turn came
        have left or were passed over."""
        view, lane, edge = self._view, queue.lane, choice.edge
        lengths: LengthRange | None = None  # of the rows that are taken; None: all of the order's
        order: TagOrder[Any]
        bucket: Bucket | None
        if edge == ANY_LENGTH:
            edge, lengths = min(self._requests.waiting.edges[-1], view.group.longest), view.shown
            order, bucket = lane.order, queue.first_bucket(lengths)
        else:
            order, bucket = lane.length_classes[edge].order, queue.buckets.get(edge)
            if bucket is None or not bucket.rows:
                bucket = order.first()
        assert bucket is not None
        # One at least: a policy that is asked again would answer the same.
        room = max(1, min(choice.max_rows, view.max_rows(edge)))
        batch = self._begun(bucket.flow, edge, room)
        batch.bucket = bucket
        order.begin_walk()
        self._walk(batch, order, lengths, choice, now, actions)
        order.end_walk()
        return batch

    def _walk(
        self,
        batch: _Batch,
        order: TagOrder[Any],
        lengths: LengthRange | None,
        choice: Choice,
        now: float,
        actions: list[Action],
    ) -> None:
        """Take rows in the order of turns, until the batch is full or the next row may not join
        it. Flows far above their share fill only a part, so that the others' cycle through their
        buckets stays short."""
        requests, is_late, max_guests = self._requests, batch.lane.late, choice.max_guests
        late_before = -inf if is_late else choice.late_before
        while batch.room > 0 and (row := order.next_row(lengths)) is not None:
            tracked = row.tracked
            deadline = tracked.request.deadline
            if deadline < late_before:
                if deadline >= choice.elsewhere_from:
                    batch.passes_over = True
                    self._take_in_time(batch, order, late_before, now)
                    return
                requests.demote_or_evict(tracked, now, actions)
            elif (
                tracked.forecast_s is not None
                and not is_late
                and requests.sheds(tracked, now, actions)
            ):
                pass  # it has left
            elif batch.size >= max_guests and self._is_kept_out(batch, tracked.flow):
                return
            elif batch.holds(row.length):
                self._take(batch, row, now)
            else:
                return

    def _take_in_time(self, batch: _Batch, order: TagOrder[Any], from_s: float, now: float) -> None:
        """Take rows due from then on, from behind the rows that only a faster group can answer in
        time: of the flows furthest below their share, earliest deadline first."""
        for bucket in order.next_items(_FLOWS):
            for row in bucket.due_from(from_s, batch.room):
                if not batch.holds(row.length):
                    return
                if row.bucket is bucket:  # a row that came back stands there twice
                    self._take(batch, row, now)

    def _is_kept_out(self, batch: _Batch, flow: Flow) -> bool:
        """Whether the flow is too far above its share to take more than its part of the batch."""
        far_s, order = batch.group.max_work_s, self._flows.order
        if flow is batch.leader or not order.is_far_ahead(flow.start, batch.start, far_s):
            return False
        batch.max_start, batch.guests_left = batch.start + far_s, True
        return True

    def _take(self, batch: _Batch, row: Row, now: float) -> None:
        """Take the row out of the queue, and charge its flow what it is predicted to cost."""
        length, cost_s, flow, flows = row.length, row.cost_s, row.tracked.flow, self._flows
        self._requests.take_out(row, now)
        batch.rows.append(row)
        batch.add(length)
        shares, price = batch.shares, cost_s
        shares[flow] = shares.get(flow, 0.0) + cost_s
        if not flows.order.settles:
            price = flows.order.price(length, cost_s)
            batch.prices[flow] = batch.prices.get(flow, 0.0) + price
        flows.charge(flow, price)

    def _add_riders(self, batch: _Batch, now: float) -> None:
        """Fill the room that is left with rows that the policy lets ride with the batch: of shorter
        lengths, the longest first, and late ones."""
        view, lane, waiting = self._view, batch.lane, self._requests.waiting
        classes, takes = lane.length_classes, view.takes
        if batch.room > 0 and lane.rows > lane.isolated.rows:
            shorter = [
                edge
                for edge, each in classes.items()
                if each.rows and edge < batch.edge and (takes is None or edge in takes)
            ]
            shorter.sort()
            while shorter:
                edge = shorter.pop()
                found = classes[edge]
                riders = self._batching.riders(view, batch, edge, found.rows, found.tokens)
                if riders > 0:
                    self._ride(batch, found.order, riders, now)
        if batch.room <= 0 or lane.late or not waiting.late_rows:
            return
        late = waiting.late[lane.priority].length_classes.get(batch.edge)
        if late is None or not late.rows:
            return
        load_s = waiting.on_time_s / (self._replicas.groups.capacity or 1.0)
        if self._batching.backfills(view, batch, load_s):
            due_s = min([row.tracked.request.deadline for row in batch.rows]) - now
            self._backfill(batch, late.order, due_s - view.starts_in_s, now)

    def _ride(self, batch: _Batch, order: TagOrder[Bucket], riders: int, now: float) -> None:
        order.begin_walk()
        while riders > 0 and batch.room > 0 and (row := order.next_row()) is not None:
            if not batch.holds(row.length):
                break
            self._take(batch, row, now)
            riders -= 1
        order.end_walk()

    def _backfill(self, batch: _Batch, order: TagOrder[Bucket], due_s: float, now: float) -> None:
        """Take late rows, while the batch is predicted to end within `due_s`."""
        order.begin_walk()
        while batch.room > 0 and (row := order.next_row()) is not None:
            if not batch.holds(row.length) or row.tracked.flow.start > batch.max_start:
                break
            if batch.predicted_s(1, row.length, quantile=0.99) > due_s:
                break
            self._take(batch, row, now)
        order.end_walk()

    def _sealed(self, batch: _Batch) -> FormedBatch:
        """The batch as it stands, for which flows now owe the predicted seconds of the whole."""
        flows, group, lane, leader = self._flows, batch.group, batch.lane, batch.leader
        settles, shares, view = flows.order.settles, batch.shares, self._view
        width = batch.width(batch.size, batch.tokens)
        predicted_s = group.cost.predict(batch.size, width, batch.replica_id)
        if view.last_edge not in (0, batch.edge):
            predicted_s += group.sizes.switch_s
        work_s, whole, even = predicted_s * group.speed, 0.0, 1.0 / len(shares)
        for share in shares.values():
            whole += share
        owing: list[Flow] = []
        owed: list[FlowWork] = []
        for flow, share in shares.items():
            seconds = work_s * (share / whole if whole > 0.0 else even)
            if settles:
                flows.charge(flow, seconds - share)
            owing.append(flow)
            owed.append((flow.priority, flow.tenant, seconds))
        charges = tuple(owed)
        paid = charges
        if not settles:
            prices = batch.prices.items()
            paid = tuple([(flow.priority, flow.tenant, price) for flow, price in prices])
        flows.leads(leader, batch.tag, work_s, batch.competing_weight)
        bucket = batch.bucket
        if bucket is not None:
            bucket.queue.took_turn(bucket, max(work_s, _min_turn_s(group, bucket.queue)))
        rank = int(lane.late), lane.priority, batch.tag if view.by_share else 0.0
        charge = Charge(rank, predicted_s, charges, paid, flows.epoch, group.speed)
        charge.of(owing)
        return FormedBatch(batch.rows, width, batch.edge, charge)


def _min_turn_s(group: ReplicaGroup, queue: FlowQueue) -> float:
    """Seconds of work that a bucket's turn costs at least: the cheapest full batch of the flow's
    buckets. Without it a bucket with few rows would pay little for each turn, and be served in many
    small batches."""
    least = inf
    for edge, bucket in queue.buckets.items():
        if bucket.rows:
            least = min(least, group.sizes.full_s(edge))
    return group.speed * least if least < inf else 0.0
