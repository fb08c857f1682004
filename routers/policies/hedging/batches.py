"""When has a batch taken so long that another replica should be asked as well?

After the delay that a policy (`HedgeDelay`, chosen by name) derives from its prediction and from
what batches of its bucket take on replicas of its group. Time counts from the batch's own predicted
start, so waiting behind a running batch is not slowness, but waiting behind a straggler is. A lease
far beyond its prediction is overdue, and so is its replica, whether or not a copy is sent.

This module only finds that a copy is due: `copy_schedule` keeps when each lease is checked,
`hedger` chooses the other replica, and `Budget` pays. Sources: Dean & Barroso, The Tail
at Scale (CACM'13); retry budgets as in Finagle and gRPC A6.
"""

from __future__ import annotations

from enum import Enum

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram
from routers.policies.hedging.types import HedgeDelay
from routers.state.replica_state import Lease

_MIN_S = 0.001  # the shortest delay
_OVERDUE = 3.0  # times the prediction
_MAX_BUCKETS = 64  # whose ratios are kept


class Finding(Enum):
    """What a look at a lease has found."""

    EARLY = "early"  # nothing yet
    RACE = "race"  # from now on another replica should be asked
    OVERDUE = "overdue"
    BEHIND = "behind"  # it waits behind a slow lease, and is not slow itself


class Hedging:
    """Measured over predicted seconds of batches, by group and bucket, and what they say of a
    lease. `policy`: after how long a copy is due."""

    def __init__(self, settings: HedgeParameters, policy: HedgeDelay) -> None:
        self.settings = settings
        self.policy = policy
        self.frozen = False
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}

    def observe(self, lease: Lease, now: float) -> None:
        """The lease took until now, or longer: one that was given up after its delay counts as
        slow. At a replica that other gateways use too, only a lease whose start was reported is a
        sample: others would count the wait for other gateways' batches as slowness."""
        if self.frozen or lease.predicted_s <= 0.0 or lease.replica.streams:
            return
        reports_starts = self.settings.mode != "off"
        if reports_starts and lease.replica.shared_until > now and not lease.opened:
            return
        kind = lease.replica.group.name, lease.batch.edge
        ratios = self._ratios.get(kind)
        if ratios is None:
            if len(self._ratios) >= _MAX_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[kind] = RatioHistogram()
        ratios.observe((now - expected_start(lease)) / lease.predicted_s)

    def delay_s(self, lease: Lease) -> float | None:
        """Seconds from its start after which to race it; None: never."""
        if self.settings.mode == "off":
            return None
        delay_s = self.policy.delay_s(lease.predicted_s, self._ratios_of(lease))
        return None if delay_s is None else max(_MIN_S, delay_s)

    def ratio(self, lease: Lease, quantile: float) -> float | None:
        """The quantile of measured over predicted seconds of batches in the lease's group and
        bucket; None: too few were measured."""
        ratios = self._ratios_of(lease)
        if ratios is None or ratios.samples < self.settings.min_samples:
            return None
        return ratios.quantile(quantile)

    def _ratios_of(self, lease: Lease) -> RatioHistogram | None:
        return self._ratios.get((lease.replica.group.name, lease.batch.edge))

    def check_at(self, lease: Lease) -> float:
        """When to look at the lease: it will be due for a copy then, or overdue."""
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_MIN_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def judge(self, lease: Lease, now: float) -> Finding:
        """What is to be done about the lease, now that it is looked at."""
        if self.check_at(lease) > now:
            return Finding.EARLY
        if not lease.hedge_due and self.delay_s(lease) is not None:
            return Finding.RACE
        return Finding.OVERDUE if lease.replica.head() is lease else Finding.BEHIND


def expected_start(lease: Lease) -> float:
    """When the time of its answer begins to count. If the replica reported the start, that report
    was under way as long as the answer will be; otherwise the whole transport is added."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)
