"""Who has how much of a queue, and who is furthest over its weighted share of the places?

A queue's bound is shared by the tenants that have rows in it, by weight: while there is room one
alone may have all of it, and when it is full a place for who has less than its share is taken from
who has most for its weight. So nobody under its share is refused because of another's rows. Fair in
rows; who is evicted first within a tenant is the queue's question. Retries of
lost rows are not counted: they had left the queue once, and none is evicted for another.

Work: O(1) a row while no place is taken from anybody; from the first one on, until half of what
waited then is gone, O(log tenants) amortised.
Source: buffer stealing, McKenney, Stochastic Fairness Queueing (INFOCOM'90), by weight.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from routers.state.rows import Row

_STALE_ENTRIES = 32


@dataclass(slots=True, eq=False)
class TenantShare:
    """What of a tenant waits, over all priorities. `key`: of its entry in the order, 0: none."""

    tenant: str
    weight: float
    rows: int = 0
    late_rows: int = 0
    seconds: float = 0.0
    key: float = 0.0

    @property
    def level(self) -> float:
        """Rows for its weight, negative: the lowest is furthest over its share."""
        return -self.rows / self.weight


class TenantShares:
    """`weight`: of all tenants that have rows here; `rows`: all of these."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, TenantShare] = {}
        self.weight = 0.0
        self.rows = 0
        self._heap: list[tuple[float, int, TenantShare]] = []
        self._pushed = itertools.count()
        self._kept_above: int | None = None  # rows; None: no order is kept

    def add(self, row: Row) -> None:
        flow = row.tracked.flow
        share = self.by_tenant.get(flow.tenant)
        if share is None:
            share = self.by_tenant[flow.tenant] = TenantShare(flow.tenant, flow.weight)
            self.weight += flow.weight
        self.rows += 1
        share.rows += 1
        share.late_rows += row.tracked.late
        share.seconds += row.cost_s
        if self._kept_above is not None:
            self._place(share)

    def remove(self, row: Row) -> None:
        share = self.by_tenant[row.tracked.flow.tenant]
        self.rows -= 1
        share.rows -= 1
        share.late_rows -= row.tracked.late
        share.seconds -= row.cost_s
        if not share.rows:
            del self.by_tenant[share.tenant]
            self.weight = self.weight - share.weight if self.by_tenant else 0.0
        if self._kept_above is not None and self.rows <= self._kept_above:
            self._heap.clear()
            self._kept_above = None

    def part(self, tenant: str, weight: float) -> float:
        """The share of it all that is the tenant's, 0..1, with whoever has rows here."""
        own = self.by_tenant.get(tenant)
        return weight / (self.weight + weight) if own is None else own.weight / self.weight

    def rows_of(self, tenant: str) -> int:
        own = self.by_tenant.get(tenant)
        return 0 if own is None else own.rows

    def late_rows_of(self, tenant: str) -> int:
        own = self.by_tenant.get(tenant)
        return 0 if own is None else own.late_rows

    def seconds_of(self, tenant: str) -> float:
        own = self.by_tenant.get(tenant)
        return 0.0 if own is None else own.seconds

    def furthest_over(self) -> TenantShare | None:
        """Of whom most rows wait for its weight; None: nothing waits."""
        if self._kept_above is None:
            self._kept_above = self.rows // 2
            self._order()
        heap = self._heap
        while heap:
            key, _, share = heap[0]
            level = share.level
            if not share.rows or key != share.key:
                heappop(heap)  # it has gone, or stands elsewhere by now
            elif level != key:
                share.key = level
                heapreplace(heap, (level, next(self._pushed), share))
            else:
                return share
        return None

    def _place(self, share: TenantShare) -> None:
        """Entries may say that a tenant has more than it has, never less."""
        level = share.level
        if level < share.key:
            share.key = level
            heappush(self._heap, (level, next(self._pushed), share))
            if len(self._heap) > 2 * len(self.by_tenant) + _STALE_ENTRIES:
                self._order()

    def _order(self) -> None:
        for share in self.by_tenant.values():
            share.key = share.level
        self._heap = [(each.key, next(self._pushed), each) for each in self.by_tenant.values()]
        heapify(self._heap)
