"""All that waits for one model, and the sums from which bounds, snapshots and predictions are made.

There are two lanes a priority: rows that can still meet their deadline, and late rows. A row's
seconds are its predicted service time, as of its arrival. Flows and lanes keep sums of them, so
that no question about waiting work scans what waits.

The queue does not decide: `routers.policies.queue_bound` bounds it, and
`routers.core.batcher` says who goes first.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from routers.api.requests import FlowWork
from routers.state.flows import Flows
from routers.state.lanes import Lane, bucket_of
from routers.state.rows import Row

_STALE_ENTRIES = 32  # allowed before the heap is made anew


@dataclass(slots=True, eq=False)
class TenantShare:
    """What waits of one tenant, over all priorities."""

    tenant: str
    weight: float
    rows: int = 0
    late_rows: int = 0
    seconds: float = 0.0  # predicted service seconds of its rows
    key: float = 0.0  # `level` as its valid heap entry has it; 0.0: none

    @property
    def level(self) -> float:
        """Minus its rows over its weight: the lowest level is furthest over its share."""
        return -self.rows / self.weight


class TenantShares:
    """The tenants that have rows in one queue, retries left out."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, TenantShare] = {}
        self.weight = 0.0  # sum over those tenants
        self.rows = 0  # of all of them
        self._heap: list[tuple[float, int, TenantShare]] = []
        self._pushed = itertools.count()
        # The heap is kept while more rows than this wait; None: it is not kept at the moment.
        self._heap_kept_above: int | None = None

    def add(self, row: Row) -> None:
        """Count a row in."""
        flow = row.tracked.flow
        share = self.by_tenant.get(flow.tenant)
        if share is None:
            share = self.by_tenant[flow.tenant] = TenantShare(flow.tenant, flow.weight)
            self.weight += flow.weight
        self.rows += 1
        share.rows += 1
        share.late_rows += row.tracked.late
        share.seconds += row.cost_s
        if self._heap_kept_above is not None:
            self._place(share)

    def remove(self, row: Row) -> None:
        """Count a row out."""
        share = self.by_tenant[row.tracked.flow.tenant]
        self.rows -= 1
        share.rows -= 1
        share.late_rows -= row.tracked.late
        share.seconds -= row.cost_s
        if not share.rows:
            del self.by_tenant[share.tenant]
            self.weight = self.weight - share.weight if self.by_tenant else 0.0
        if self._heap_kept_above is not None and self.rows <= self._heap_kept_above:
            self._heap.clear()
            self._heap_kept_above = None

    def part(self, tenant: str, weight: float) -> float:
        """The tenant's share of the queue, 0..1, among the tenants that have rows here and
        itself."""
        own = self.by_tenant.get(tenant)
        return weight / (self.weight + weight) if own is None else own.weight / self.weight

    def rows_of(self, tenant: str) -> int:
        """Rows of the tenant that wait."""
        own = self.by_tenant.get(tenant)
        return 0 if own is None else own.rows

    def late_rows_of(self, tenant: str) -> int:
        """Late rows of the tenant that wait."""
        own = self.by_tenant.get(tenant)
        return 0 if own is None else own.late_rows

    def seconds_of(self, tenant: str) -> float:
        """Predicted service seconds of the tenant's rows that wait."""
        own = self.by_tenant.get(tenant)
        return 0.0 if own is None else own.seconds

    def furthest_over(self) -> TenantShare | None:
        """The tenant with most rows for its weight; None: nothing waits."""
        if self._heap_kept_above is None:
            self._heap_kept_above = self.rows // 2
            self._rebuild_heap()
        heap = self._heap
        while heap:
            key, _, share = heap[0]
            level = share.level
            if not share.rows or key != share.key:
                heappop(heap)  # the tenant has gone, or has another entry
            elif level != key:
                share.key = level
                heapreplace(heap, (level, next(self._pushed), share))
            else:
                return share
        return None

    def _place(self, share: TenantShare) -> None:
        """Give the tenant an entry when it has grown. An entry may show more rows than the tenant
        has, never fewer."""
        level = share.level
        if level < share.key:
            share.key = level
            heappush(self._heap, (level, next(self._pushed), share))
            if len(self._heap) > 2 * len(self.by_tenant) + _STALE_ENTRIES:
                self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        """Make the heap anew."""
        for share in self.by_tenant.values():
            share.key = share.level
        self._heap = [(each.key, next(self._pushed), each) for each in self.by_tenant.values()]
        heapify(self._heap)


_FLOWS_A_CALL = 64  # looked at by `work`, on average


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
        while len(lanes) <= flow.priority:
            lanes.append(Lane(tracked.late, len(lanes)))
        lanes[flow.priority].push(row, now)
        tracked.count_queued(1)
        if tracked.queued == 1:
            self.requests += 1

    def remove(self, row: Row) -> None:
        """Take the row out of the queue, in which it must wait."""
        bucket = bucket_of(row)
        bucket.discard(row)
        bucket.queue.lane.left(row, bucket)
        self._count_out(row)

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
        lanes = [lane for lane in self.on_time if lane.rows]
        lane = min(lanes[1:], key=lambda each: each.since, default=None)
        return lane if lane is not None and lane.since <= now - ageing_s else None

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

    def _count_out(self, row: Row) -> None:
        """Count the row out of all sums."""
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
        tracked.count_queued(-1)
        if not tracked.queued:
            self.requests -= 1


def _last_suspect(lane: Lane, tenant: str) -> Row | None:
    """The tenant's row that is due last of the suspects that have yet to run; None if there is
    none. Looks at all rows that travel alone."""
    alone = (row for row in lane.isolated.live() if row.tracked.flow.tenant == tenant)
    waiting = [row for row in alone if not row.is_retry]
    return max(waiting, key=lambda row: row.tracked.request.deadline, default=None)
