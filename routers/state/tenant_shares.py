"""How much of a queue does each tenant have, and who is furthest over its weighted share?

The tenants that have rows in a queue share its bound by weight. While there is room, one tenant may
take all of it. When the queue is full, a place for a tenant below its share is taken from the
tenant that has most rows for its weight. So no tenant below its share is refused because of another
tenant's rows. Fair in rows; `RequestQueue` decides which of a tenant's rows is evicted. Retries of
lost rows are not counted: they had left the queue once, and none is evicted for another row.

Work: O(1) a row until a place is taken from a tenant; from then on, until half of what waited then
is gone, O(log tenants) amortised. Source: buffer stealing, McKenney, Stochastic Fairness Queueing
(INFOCOM'90), by weight.
"""

from __future__ import annotations

import itertools
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from routers.state.rows import Row

_STALE_ENTRIES: Final = 32  # allowed before the heap is made anew


class TenantShare:
    """What waits of one tenant, over all priorities."""

    tenant: str
    weight: float
    rows: int
    late_rows: int
    seconds: float  # predicted service seconds of its rows
    key: float  # `level` as its valid heap entry has it; 0.0: none

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant, self.weight = tenant, weight
        self.rows = self.late_rows = 0
        self.seconds = self.key = 0.0

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
        share: TenantShare | None = flow.share
        if share is None or not share.rows:  # else it stands in `by_tenant`
            share = self.by_tenant.get(flow.tenant)
            if share is None:
                share = self.by_tenant[flow.tenant] = TenantShare(flow.tenant, flow.weight)
                self.weight += flow.weight
            flow.share = share
        self.rows += 1
        share.rows += 1
        share.late_rows += row.tracked.late
        share.seconds += row.cost_s
        if self._heap_kept_above is not None:
            self._place(share)

    def remove(self, row: Row) -> None:
        """Count a row out."""
        share: TenantShare = row.tracked.flow.share
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
