"""When has a batch taken so long that another replica should be asked as well?

Once it has run for the 95th percentile of what its bucket's batches take on replicas of its group,
as a multiple of what was predicted for it: counted from its own predicted start, so that waiting
behind a running batch is no slowness, but waiting behind a straggler is. Far beyond its prediction
a lease is overdue, and its replica suspect, whether or not anybody is asked. A bucket that was
measured too little is not hedged. Who is asked is the question of `speculative_copies`, who pays
`Budget`'s. Work: O(log n) a lease.
Sources: Dean & Barroso, The Tail at Scale (CACM'13); retry budgets as in Finagle and gRPC A6.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram
from routers.state.lease_timers import LeaseTimers
from routers.state.replica_state import Lease

# Of hedging:
_LEAST_S = 0.001
_OVERDUE = 3.0  # times the prediction
_MOST_BUCKETS = 64


class Hedging:
    """`waiting`: leases that should be raced as soon as there is a chance, the oldest first."""

    def __init__(self, settings: HedgeParameters) -> None:
        self.settings = settings
        self.frozen = False
        self.waiting: dict[Lease, None] = {}
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}
        self._timers = LeaseTimers()

    # -- what batches take

    def observe(self, lease: Lease, now: float) -> None:
        """It took until now, or longer: one that was given up after its delay counts as slow."""
        if self.frozen or lease.predicted_s <= 0.0 or lease.replica.streams:
            return
        kind = lease.replica.group.name, lease.batch.edge
        ratios = self._ratios.get(kind)
        if ratios is None:
            if len(self._ratios) >= _MOST_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[kind] = RatioHistogram()
        ratios.observe((now - expected_start(lease)) / lease.predicted_s)

    def delay_s(self, lease: Lease) -> float | None:
        """Seconds from its start after which to race it; None: never."""
        settings = self.settings
        if settings.mode == "off":
            return None
        if settings.fixed_delay_s is not None:
            return max(_LEAST_S, settings.fixed_delay_s)
        ratio = self.ratio(lease, settings.quantile)
        return None if ratio is None else max(_LEAST_S, ratio * lease.predicted_s)

    def ratio(self, lease: Lease, quantile: float) -> float | None:
        """What its bucket's batches take, as a multiple of what was predicted, not exceeded by this
        share of them; None: too few were measured."""
        ratios = self._ratios.get((lease.replica.group.name, lease.batch.edge))
        if ratios is None or ratios.samples < self.settings.min_samples:
            return None
        return ratios.quantile(quantile)

    # -- when to look

    def watch(self, lease: Lease) -> None:
        """Look at it when its next check is due; to be called again when its start has moved."""
        if lease.predicted_s > 0.0 and not lease.replica.streams and not lease.overdue:
            at = self._next_check_at(lease)
            if at < lease.next_check_at:
                self._timers.look_at(lease, at)

    def starts_now(self, lease: Lease) -> None:
        """The batch before it has left the device: its waiting is over."""
        if lease.hedge_due and lease.copy is None and lease.copy_of is None:
            lease.hedge_due = False
            self.waiting.pop(lease, None)
        lease.overdue = False
        self.watch(lease)

    def copy_again(self, lease: Lease) -> None:
        """What it raced was never started: it may be raced as if it had been alone."""
        if lease.repeats:
            lease.hedge_due = False
            self.watch(lease)
        elif lease.hedge_due:
            self.waiting[lease] = None

    def due(self, now: float, leases: dict[int, Lease]) -> Iterator[Lease]:
        """Leases that have become overdue; those to race are in `waiting` afterwards."""
        timers = self._timers
        while (lease := timers.due(now)) is not None:
            if self._next_check_at(lease) > now:
                timers.look_at(lease, self._next_check_at(lease))
            elif not lease.hedge_due and self.delay_s(lease) is not None:
                lease.hedge_due = True
                self.waiting[lease] = None
                timers.look_at(lease, max(now, self._next_check_at(lease)))
            elif lease.replica.head() is lease:
                lease.overdue = True
                yield lease
        timers.trim(len(leases))

    def next_at(self) -> float:
        """inf: never."""
        return self._timers.next_at()

    def forget(self, lease: Lease) -> None:
        """It has closed."""
        self._timers.look_at(lease, inf)
        self.waiting.pop(lease, None)

    def _next_check_at(self, lease: Lease) -> float:
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_LEAST_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s


def expected_start(lease: Lease) -> float:
    """When its answer's time begins to count: an answer comes so much later than the start as the
    message of the start would; where there was none, the whole transport later."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)
