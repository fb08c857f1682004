"""When has a batch taken so long that another replica should be asked as well?

Once it has run for the 95th percentile of what its bucket's batches take on replicas of its group,
as a multiple of what was predicted for it: counted from its own predicted start, so that waiting
behind a running batch is no slowness, but waiting behind a straggler is. Far beyond its prediction
a lease is overdue, and its replica suspect, whether or not anybody is asked. A bucket that was
measured too little is not hedged. It only says so: who is asked is the question of
`speculative_copies`, which watches the leases too, who pays `Budget`'s.
Sources: Dean & Barroso, The Tail at Scale (CACM'13); retry budgets as in Finagle and gRPC A6.
"""

from __future__ import annotations

from enum import Enum

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram
from routers.state.replica_state import Lease

# Of hedging:
_LEAST_S = 0.001
_OVERDUE = 3.0  # times the prediction
_MOST_BUCKETS = 64


class Finding(Enum):
    """What a look at a lease has found. `RACE`: from now on another replica should be asked.
    `BEHIND`: it waits behind one that is slow, which is no fault of its own."""

    EARLY = "early"
    RACE = "race"
    OVERDUE = "overdue"
    BEHIND = "behind"


class Hedging:
    """What batches take, by group and bucket, and what follows from that for one of them."""

    def __init__(self, settings: HedgeParameters) -> None:
        self.settings = settings
        self.frozen = False
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}

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

    def check_at(self, lease: Lease) -> float:
        """When there is something to say of it: it is to be raced, or overdue."""
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_LEAST_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def judge(self, lease: Lease, now: float) -> Finding:
        """What is to be done about it, now that it is looked at."""
        if self.check_at(lease) > now:
            return Finding.EARLY
        if not lease.hedge_due and self.delay_s(lease) is not None:
            return Finding.RACE
        return Finding.OVERDUE if lease.replica.head() is lease else Finding.BEHIND


def expected_start(lease: Lease) -> float:
    """When its answer's time begins to count: an answer comes so much later than the start as the
    message of the start would; where there was none, the whole transport later."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)
