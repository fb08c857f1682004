"""All that waits for one model, and the sums that bounds, snapshots and predictions are made from.

Two lanes a priority: rows that can still meet their deadline, and late ones. A row's seconds are
what its service was predicted to take when it came; flows and lanes keep sums of them, so that a
question about waiting work never scans what waits. Bounds are `bounds`', who goes first is
`batcher`'s question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from routers.api.policies import Order
from routers.api.requests import FlowWork
from routers.state.flows import Flows
from routers.state.lanes import Lane, bucket_of
from routers.state.rows import Row
from routers.state.tenant_shares import TenantShares

_FLOWS_A_CALL = 64


class RequestQueue:
    """`edges`: of new requests' buckets; what waits under older ones stays there."""

    def __init__(self, edges: tuple[int, ...], flows: Flows) -> None:
        self.edges = edges
        self.flows = flows
        self.on_time: list[Lane] = []
        self.late: list[Lane] = []
        self.rows = 0
        self.late_rows = 0
        self.requests = 0
        self.shares = TenantShares()
        self.gone = 0  # rows that have left, so far
        self._work: tuple[FlowWork, ...] = ()
        self._work_asked = 0  # since it was looked up

    @property
    def seconds(self) -> float:
        """Predicted device seconds of all that waits, as if on one replica."""
        return self.on_time_s + self.late_s

    @property
    def on_time_s(self) -> float:
        """Of those, seconds of on-time rows."""
        return sum([lane.waiting_s for lane in self.on_time])

    @property
    def late_s(self) -> float:
        return sum([lane.waiting_s for lane in self.late])

    def urgent_s(self, priority: int) -> float:
        """Predicted seconds of on-time work of more urgent priorities."""
        return sum([lane.waiting_s for lane in self.on_time[:priority]]) if priority else 0.0

    def rows_of(self, tenant: str) -> int:
        """Rows of a tenant that wait, over all priorities; retries left out."""
        return self.shares.rows_of(tenant)

    def is_full(self, tenant: str, weight: float, rows: int, most: int) -> bool:
        """Whether so many rows more of the tenant have no place among `most`: none is free, and it
        has its share of them already, so that none is taken from another for it."""
        if self.shares.rows + rows <= most:
            return False
        return self.rows_of(tenant) + rows > most * self.shares.part(tenant, weight)

    def furthest_over(self) -> Row | None:
        """A row of the tenant that is furthest over its share: a late one if it has any, of its
        least urgent priority, due last. None where only retries wait."""
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
        """Index of the bucket for a length; `len(edges)` when it is longer than all."""
        return bisect_left(self.edges, length)

    def add(self, row: Row, now: float) -> None:
        """Queue a row by its flow, its edge and its request's standing, at its deadline's place."""
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
        while len(lanes) <= flow.priority:
            lanes.append(Lane(tracked.late, len(lanes), self.flows.order.ranking))
        lanes[flow.priority].push(row, now)
        tracked.queued += 1
        if tracked.queued == 1:
            self.requests += 1

    def remove(self, row: Row) -> None:
        bucket = bucket_of(row)
        bucket.discard(row)
        bucket.queue.lane.left(row, bucket)
        self._left(row)

    def move(self, row: Row, now: float) -> None:
        """Into the bucket that it belongs to by now; a retried one stays. To be tidied after."""
        edge = self.edges[self.bucket_of(row.length)]
        if row.retried or row.edge == edge:
            row.edge = edge
            return
        self.remove(row)
        row.edge = edge
        self.add(row, now)

    def adopt(self, order: Order, now: float) -> Order:
        """Go on under this one; where it is of another kind, all that waits is sorted anew and all
        accounts begin anew."""
        if type(order) is type(self.flows.order):
            self.flows.order = order
        else:
            self._restart(order, now)
        return order

    def _restart(self, order: Order, now: float) -> None:
        rows = [row for lane in self.lanes() for bucket in lane.buckets() for row in bucket.live()]
        for row in rows:
            self.remove(row)
        self.on_time.clear()
        self.late.clear()
        self.flows.restart(order)
        for row in sorted(rows, key=_came):
            self.add(row, now)

    def tidy(self) -> None:
        """Forget the places that rows have left, so that they may come back there."""
        for lane in self.lanes():
            for bucket in lane.buckets():
                bucket.tidy()

    def lanes(self) -> Iterator[Lane]:
        """In the order they are served."""
        yield from self.on_time
        yield from self.late

    def passed_over(self, ageing_s: float, now: float) -> Lane | None:
        """Of the on-time lanes behind the most urgent one, that which has longest not led a batch,
        if it has waited for `ageing_s`: its turn is due."""
        lanes = [lane for lane in self.on_time if lane.rows]
        lane = min(lanes[1:], key=lambda each: each.since, default=None)
        return lane if lane is not None and lane.since <= now - ageing_s else None

    def reorder(self) -> None:
        """Find the places of flows whose tags have fallen."""
        lowered = self.flows.lowered
        if lowered:
            for flow in lowered:
                for lanes in (self.on_time, self.late):
                    if flow.priority < len(lanes):
                        lanes[flow.priority].reorder(flow)
            lowered.clear()

    def work(self) -> tuple[FlowWork, ...]:
        """Predicted seconds of on-time work that waits, by flow, for other gateways to know; empty
        while there are none, and while nothing waits. Looks at each flow, but of many flows at
        no more than `_FLOWS_A_CALL` in the mean: the others hear of them a little later."""
        if self.flows.alone or not self.rows:
            return ()
        self._work_asked += 1
        if self._work_asked * _FLOWS_A_CALL >= len(self.flows.by_key):
            flows = self.flows.by_key.values()
            self._work = tuple([(f.priority, f.tenant, f.waiting_s) for f in flows if f.rows])
            self._work_asked = 0
        return self._work

    def _left(self, row: Row) -> None:
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


def _last_suspect(lane: Lane, tenant: str) -> Row | None:
    """Of the tenant's suspects that have yet to run, the one due last. Looks at all rows that run
    alone."""
    alone = (row for row in lane.solo.live() if row.tracked.flow.tenant == tenant)
    waiting = [row for row in alone if not row.is_retry]
    return max(waiting, key=lambda row: row.tracked.request.deadline, default=None)


def _came(row: Row) -> int:
    return row.order
