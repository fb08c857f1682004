"""When has a batch taken so long that another replica should be asked as well?

Once it has run for the 95th percentile of what its bucket's batches take, as a multiple of what was
predicted for it: counted from its own predicted start, so that waiting behind a running batch is no
slowness, but waiting behind a straggler is. Far beyond its prediction a lease is overdue, and its
replica suspect, whether or not anybody is asked. A bucket that was measured too little is not
hedged. Who is asked, and whether that may cost anything, is `racing`'s question. Work: O(log n) a
lease. Source: Dean & Barroso, The Tail at Scale (CACM'13).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from routers.leases import Lease
from routers.placement.pace_histogram import PaceHistogram
from routers.settings import HedgeSettings

_LEAST_S = 0.001
_OVERDUE = 3.0  # times the prediction
_MOST_BUCKETS = 64
_SLACK = 32


class Hedging:
    """`waiting`: leases that should be raced as soon as there is a chance, the oldest first."""

    def __init__(self, settings: HedgeSettings) -> None:
        self.settings = settings
        self.frozen = False
        self.waiting: dict[Lease, None] = {}
        self._paces: dict[int, PaceHistogram] = {}
        self._moments: list[tuple[float, int, Lease]] = []

    # -- what batches take

    def observe(self, lease: Lease, now: float) -> None:
        """It took until now, or longer: one that was given up after its moment counts as slow."""
        if self.frozen or lease.predicted_s <= 0.0 or lease.holder.streams:
            return
        edge = lease.goods.edge
        paces = self._paces.get(edge)
        if paces is None:
            if len(self._paces) >= _MOST_BUCKETS:
                del self._paces[next(iter(self._paces))]
            paces = self._paces[edge] = PaceHistogram()
        paces.observe((now - expected_start(lease)) / lease.predicted_s)

    def delay_s(self, lease: Lease) -> float | None:
        """Seconds from its start after which to race it; None: never."""
        settings = self.settings
        if settings.mode == "off":
            return None
        if settings.fixed_delay_s is not None:
            return max(_LEAST_S, settings.fixed_delay_s)
        paces = self._paces.get(lease.goods.edge)
        if paces is None or paces.samples < settings.min_samples:
            return None
        return max(_LEAST_S, paces.quantile(settings.quantile) * lease.predicted_s)

    # -- moments

    def watch(self, lease: Lease) -> None:
        """Look at it when its next moment comes; to be called again when its start has moved."""
        if lease.predicted_s > 0.0 and not lease.holder.streams and not lease.overdue:
            at = self._moment(lease)
            if at < lease.moment:
                self._push(lease, at)

    def starts_now(self, lease: Lease) -> None:
        """The batch before it has left the device: its waiting is over."""
        if lease.ripe and lease.copy is None and lease.copy_of is None:
            lease.ripe = False
            self.waiting.pop(lease, None)
        lease.overdue = False
        self.watch(lease)

    def race_again(self, lease: Lease) -> None:
        """What it raced was never started: it may be raced as if it had been alone."""
        if lease.repeats:
            lease.ripe = False
            self.watch(lease)
        elif lease.ripe:
            self.waiting[lease] = None

    def due(self, now: float, leases: dict[int, Lease]) -> Iterator[Lease]:
        """Leases that have become overdue; those to race are in `waiting` afterwards."""
        moments = self._moments
        while moments and moments[0][0] <= now:
            at, _, lease = heappop(moments)
            if lease.moment != at:
                continue
            lease.moment = inf
            if self._moment(lease) > now:
                self._push(lease, self._moment(lease))
            elif not lease.ripe and self.delay_s(lease) is not None:
                lease.ripe = True
                self.waiting[lease] = None
                self._push(lease, max(now, self._moment(lease)))
            elif lease.holder.head() is lease:
                lease.overdue = True
                yield lease
        if len(moments) > 2 * len(leases) + _SLACK:
            moments[:] = [entry for entry in moments if entry[2].moment == entry[0]]
            heapify(moments)

    def next_at(self) -> float:
        """inf: never."""
        moments = self._moments
        while moments and moments[0][2].moment != moments[0][0]:
            heappop(moments)
        return moments[0][0] if moments else inf

    def forget(self, lease: Lease) -> None:
        """It has closed."""
        lease.moment = inf
        self.waiting.pop(lease, None)

    def _moment(self, lease: Lease) -> float:
        delay_s = None if lease.ripe else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_LEAST_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def _push(self, lease: Lease, at: float) -> None:
        lease.moment = at
        heappush(self._moments, (at, lease.lease_id, lease))


def expected_start(lease: Lease) -> float:
    """When its answer's time begins to count: an answer comes so much later than the start as the
    message of the start would; where there was none, the whole transport later."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.holder.transport_s or 0.0)
