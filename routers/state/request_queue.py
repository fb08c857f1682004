"""All that waits for one model, and the sums from which bounds, snapshots and predictions are made.

There are two lanes a priority: rows that can still meet their deadline, and late rows. A row's
seconds are its predicted service time, as of its arrival. Flows and lanes keep sums of them, so
that no question about waiting work scans what waits.

The queue does not decide: `routers.shared.bounds` bounds it, and the schedulers say who goes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from routers.api.policies import Order
from routers.api.requests import FlowWork
from routers.estimates.groups import LengthRange, ReplicaGroup
from routers.state.flows import Flows
from routers.state.lanes import Lane, bucket_of
from routers.state.rows import Row
from routers.state.tenant_shares import TenantShares

_FLOWS_A_CALL: Final = 64  # looked at by `work`, on average


class RequestQueue:
    """The queue of one model. `edges` are the buckets of new requests; what waits under older edges
    stays there."""

    def __init__(self, edges: tuple[int, ...], flows: Flows) -> None:
        self.edges = edges
        self.flows = flows
        self.on_time: list[Lane] = []
        self.late: list[Lane] = []
        self.rows = 0
        self.late_rows = 0
        self.requests = 0
        self.shares = TenantShares()
        self.gone = 0  # rows that have left, ever
        self._last_work: tuple[FlowWork, ...] = ()  # the last answer of `work`
        self._work_calls = 0  # calls of `work` since that answer was made

    @property
    def seconds(self) -> float:
        """Predicted device seconds of all that waits, as if on one replica."""
        return self.on_time_s + self.late_s

    @property
    def on_time_s(self) -> float:
        """Predicted device seconds of the on-time rows."""
        return sum([lane.waiting_s for lane in self.on_time])

    @property
    def late_s(self) -> float:
        """Predicted device seconds of the late rows."""
        return sum([lane.waiting_s for lane in self.late])

    def seconds_above(self, length: int) -> float:
        """Predicted device seconds of what waits of rows longer than `length`, which is 0 or an
        edge."""
        if not length:
            return self.seconds
        longer, lanes = LengthRange(length), list(self.lanes())
        alone = [row.cost_s for lane in lanes for row in lane.isolated.live() if row.edge in longer]
        return sum([lane.seconds_in(longer) for lane in lanes], 0.0) + sum(alone, 0.0)

    def urgent_s(self, priority: int) -> float:
        """Predicted seconds of on-time work of priorities more urgent than this one."""
        return sum([lane.waiting_s for lane in self.on_time[:priority]]) if priority else 0.0

    def rows_of(self, tenant: str) -> int:
        """Rows of a tenant that wait, over all priorities, without retries."""
        return self.shares.rows_of(tenant)

    def is_full(self, tenant: str, weight: float, rows: int, most: int) -> bool:
        """Whether the queue, bounded to `most` rows, has no place for so many more of the tenant:
        no place is free, and the tenant has its share of the places already, so that no other
        tenant's row is evicted for it."""
        if self.shares.rows + rows <= most:
            return False
        return self.rows_of(tenant) + rows > most * self.shares.part(tenant, weight)

    def furthest_over(self) -> Row | None:
        """One of the rows that are due last of the tenant that is furthest over its share: a late
        one if the tenant has any, of its least urgent priority. None where only retries wait."""
        share = self.shares.furthest_over()
        if share is None:
            return None
        for lanes in (self.late, self.on_time):
            for lane in reversed(lanes):
                flow = self.flows.by_key.get((lane.priority, share.tenant))
                queue = None if flow is None else lane.queues.get(flow)
                if queue is not None and queue.rows:
                    return queue.last()
                if (suspect := _last_suspect(lane, share.tenant)) is not None:
                    return suspect
        return None

    def bucket_of(self, length: int) -> int:
        """Index of the bucket for a length; `len(edges)` when the length exceeds all edges."""
        return bisect_left(self.edges, length)

    def add(self, row: Row, now: float) -> None:
        """Queue the row in the bucket of its flow, its edge and its request's standing (on time or
        late)."""
        tracked = row.tracked
        flow = tracked.flow
        self.rows += 1
        if not row.is_retry:
            self.shares.add(row)
        if tracked.late:
            self.late_rows += 1
            flow.late_rows += 1
            lanes = self.late
        else:
            flow.rows += 1
            if flow.rows == 1:
                self.flows.count(flow)
            flow.waiting_s += row.cost_s
            lanes = self.on_time
        while len(self.on_time) <= flow.priority:
            self.on_time.append(Lane(False, len(self.on_time), self.flows.order.ranking))
            self.late.append(Lane(True, len(self.late), self.flows.order.ranking))
        lanes[flow.priority].push(row, now)
        tracked.queued += 1
        if tracked.queued == 1:
            self.requests += 1

    def remove(self, row: Row) -> None:
        """Take the row out of the queue, in which it must wait."""
        bucket = bucket_of(row)
        bucket.discard(row)
        bucket.queue.lane.left(row, bucket)
        tracked = row.tracked
        flow = tracked.flow
        self.rows -= 1
        if not row.is_retry:
            self.shares.remove(row)
        self.gone += 1
        if tracked.late:
            self.late_rows -= 1
            flow.late_rows -= 1
        else:
            flow.rows -= 1
            flow.waiting_s = flow.waiting_s - row.cost_s if flow.rows else 0.0
            if not flow.rows:
                self.flows.count(flow)
        tracked.queued -= 1
        if not tracked.queued:
            self.requests -= 1

    def place(self, row: Row) -> None:
        """Give a row that comes back the bucket that it belongs to under the edges of now: groups
        of replicas end at those, not at the edges that it was queued under."""
        row.edge = self.edges[self.bucket_of(row.length)]

    def move(self, row: Row, now: float) -> None:
        """Move the row into the bucket that it belongs to under the edges of now; a row that
        travels alone stays. `tidy` must be called afterwards."""
        edge = self.edges[self.bucket_of(row.length)]
        if row.isolated or row.edge == edge:
            row.edge = edge
            return
        self.remove(row)
        row.edge = edge
        self.add(row, now)

    def adopt(self, order: Order, now: float) -> None:
        """Go on under this order. Where that is of another kind, all that waits is sorted anew and
        all accounts begin anew."""
        if type(order) is type(self.flows.order):
            self.flows.order = order
        else:
            self._sort_anew(order, now)

    def _sort_anew(self, order: Order, now: float) -> None:
        rows = [row for lane in self.lanes() for bucket in lane.buckets() for row in bucket.live()]
        for row in rows:
            self.remove(row)
        self.on_time.clear()
        self.late.clear()
        self.flows.restart(order)
        for row in sorted(rows, key=_arrival_order):
            self.add(row, now)

    def tidy(self) -> None:
        """Drop the places that rows have left, so that the rows may come back there."""
        for lane in self.lanes():
            for bucket in lane.buckets():
                bucket.tidy()

    def lanes(self) -> Iterator[Lane]:
        """All lanes in the order in which they are served."""
        yield from self.on_time
        yield from self.late

    def passed_over(self, ageing_s: float, now: float) -> Lane | None:
        """The on-time lane, of those behind the most urgent one with rows, that has led no batch
        for longest, if that is at least `ageing_s`: its turn is due. Otherwise None."""
        found: Lane | None = None
        is_first = True
        for lane in self.on_time:
            if lane.rows:
                if not is_first and (found is None or lane.since < found.since):
                    found = lane
                is_first = False
        return found if found is not None and found.since <= now - ageing_s else None

    def lanes_in_turn(self, ageing_s: float, now: float) -> list[Lane]:
        """Lanes in the order in which they are asked for rows: aged, on time by priority, late.
        All late lanes, since on-time rows may turn late while their lane is asked."""
        due = self.passed_over(ageing_s, now)
        lanes = [] if due is None else [due]
        lanes += [lane for lane in self.on_time if lane.rows and lane is not due]
        lanes += self.late
        return lanes

    def lane_in_turn(self, lane: Lane, group: ReplicaGroup, lengths: LengthRange | None) -> Lane:
        """The lane itself, or the late lane of its priority, where a flow that has only late rows
        is behind the lane's first flow by more than one batch of service. Lateness may cost a flow
        its place among its own rows, but not its share of the device. Smaller differences do not
        count: of 1,200 rows/s offered by 100 equal tenants, 490 rows/s were in time when any
        difference counted, and 1,055 rows/s with this rule."""
        if lane.late:
            return lane
        late_lane = self.late[lane.priority]
        if not (late_lane.rows or late_lane.order.heap):
            return lane
        late, first = late_lane.first(lengths), lane.first(lengths)
        if late is None or first is None or late.flow.rows:
            return lane
        batch_s = group.max_work_s / late.flow.weight
        is_far_below = self.flows.order.is_far_ahead(first.flow.start, late.flow.start, batch_s)
        return late.lane if is_far_below else lane

    def reorder(self) -> None:
        """Find the places of flows whose start tags have fallen."""
        lowered = self.flows.lowered
        if lowered:
            for flow in lowered:
                for lanes in (self.on_time, self.late):
                    if flow.priority < len(lanes):
                        lanes[flow.priority].reorder(flow)
            lowered.clear()

    def work(self) -> tuple[FlowWork, ...]:
        """Predicted seconds of on-time work that waits, by flow, to be told to other gateways.

        Empty while there are no other gateways, and while nothing waits. A call looks at every
        flow; with more than `_FLOWS_A_CALL` flows not every call does, so that it is no more than
        so many a call on average, and the other gateways hear of changes a little later.
        """
        if self.flows.alone or not self.rows:
            return ()
        self._work_calls += 1
        if self._work_calls * _FLOWS_A_CALL >= len(self.flows.by_key):
            flows = self.flows.by_key.values()
            self._last_work = tuple([(f.priority, f.tenant, f.waiting_s) for f in flows if f.rows])
            self._work_calls = 0
        return self._last_work


def _last_suspect(lane: Lane, tenant: str) -> Row | None:
    """The tenant's row that is due last of the suspects that have yet to run; None if there is
    none. Looks at all rows that travel alone."""
    alone = (row for row in lane.isolated.live() if row.tracked.flow.tenant == tenant)
    waiting = [row for row in alone if not row.is_retry]
    return max(waiting, key=lambda row: row.tracked.request.deadline, default=None)


def _arrival_order(row: Row) -> int:
    return row.order
