"""When has a batch taken so long that another replica should be asked as well, and may that cost?

Once it has run for the 95th percentile of what its bucket's batches take on replicas of its group,
as a multiple of what was predicted for it: counted from its own predicted start, so that waiting
behind a running batch is no slowness, but waiting behind a straggler is. Far beyond its prediction
a lease is overdue, and its replica suspect, whether or not anybody is asked. A bucket that was
measured too little is not hedged. One budget of device seconds pays for all extra work. Who is
asked is the question of `speculative_copies`. Work: O(log n) a lease.
Sources: Dean & Barroso, The Tail at Scale (CACM'13); retry budgets as in Finagle and gRPC A6.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf, log

from routers.replica_state import Lease
from routers.settings import HedgeParameters

# Of the retry budget:
_CAP_BATCHES = 20.0
_START_BATCHES = 2.0
_BATCH_GAIN = 0.05

# Of the histogram of ratios:
_BIN_WIDTH = log(1.05)
_LEAST_RATIO, _MOST_RATIO = 0.25, 64.0
_BINS = int(log(_MOST_RATIO / _LEAST_RATIO) / _BIN_WIDTH) + 2
_GROWTH = 1.0015  # a sample weighs so much more than the one before it: half-life 460 samples
_TOO_HEAVY = 1e12
_REUSE = 8  # samples for which a quantile once read is used again

# Of hedging:
_LEAST_S = 0.001
_OVERDUE = 3.0  # times the prediction
_MOST_BUCKETS = 64
_SLACK = 32


class Budget:
    """May device time be spent on work that is already being done elsewhere?

    One account, in predicted device seconds, for hedges, tied copies, probes and retries: each
    primary batch earns a share of its own cost, each extra one pays its whole cost, and gets it
    back when it turns out that one of the two was never started. What may wait asks first
    (`affords`); retries and probes are never refused, since not losing work ranks above, but are
    paid for all the same, so hedging stops while they are many. Capped both ways, so that neither a
    long calm nor a bad minute is remembered for long.

    `share`: extra seconds a primary second. `level_s`: what may be spent; may be negative."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.level_s = 0.0
        self._batch_s = 0.0

    def earn(self, cost_s: float) -> None:
        """A primary batch of this predicted cost was sent."""
        if cost_s <= 0.0:
            return
        if not self._batch_s:
            self._batch_s = cost_s
            self.level_s += _START_BATCHES * cost_s if self.share > 0.0 else 0.0
        self._batch_s += _BATCH_GAIN * (cost_s - self._batch_s)
        self._add(self.share * cost_s)

    def affords(self, cost_s: float, *, spare: bool = False) -> bool:
        """`spare`: only out of the upper half, what more urgent copies will hardly need."""
        reserve = 0.5 * _CAP_BATCHES * self._batch_s if spare else 0.0
        return self.level_s >= cost_s + reserve

    def pay(self, cost_s: float) -> None:
        self._add(-cost_s)

    def refund(self, cost_s: float) -> None:
        """What was paid for has cost nothing."""
        self._add(cost_s)

    def _add(self, seconds: float) -> None:
        cap = _CAP_BATCHES * self._batch_s
        self.level_s = min(cap, max(-cap, self.level_s + seconds))


class RatioHistogram:
    """How long batches take, as a multiple of what was predicted for them.

    Bins of 5 %, whose past fades (half of the weight lies on the last few hundred batches), so that
    a quantile costs no more than a look at its bins, and few of those. A quantile is the upper edge
    of its bin: never less than what it stands for. `samples`: how many there ever were."""

    def __init__(self) -> None:
        self.samples = 0
        self._bins = [0.0] * _BINS
        self._weight = 1.0
        self._read: tuple[float, int, float] = (-1.0, 0, 0.0)

    def observe(self, ratio: float) -> None:
        self.samples += 1
        self._weight *= _GROWTH
        self._bins[_bin(ratio)] += self._weight
        if self._weight > _TOO_HEAVY:
            self._bins = [weight / self._weight for weight in self._bins]
            self._weight = 1.0

    def quantile(self, share: float) -> float:
        """Upper edge of the bin that the quantile lies in; 0 without samples."""
        last_share, last_samples, ratio = self._read
        if share != last_share or not self.samples < last_samples + _REUSE:
            ratio = self._find(share)
            self._read = share, self.samples, ratio
        return ratio

    def _find(self, share: float) -> float:
        left = (1.0 - share) * sum(self._bins)
        if not self.samples:
            return 0.0
        for index in range(_BINS - 1, -1, -1):
            left -= self._bins[index]
            if left < 0.0:
                return float(_LEAST_RATIO * 1.05**index)
        return _LEAST_RATIO


def _bin(ratio: float) -> int:
    """The bin whose upper edge is the first at or above the ratio."""
    if ratio <= _LEAST_RATIO:
        return 0
    return min(_BINS - 1, int(-(-log(ratio / _LEAST_RATIO) // _BIN_WIDTH)))


class Hedging:
    """`waiting`: leases that should be raced as soon as there is a chance, the oldest first."""

    def __init__(self, settings: HedgeParameters) -> None:
        self.settings = settings
        self.frozen = False
        self.waiting: dict[Lease, None] = {}
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}
        self._checks: list[tuple[float, int, Lease]] = []

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
                self._push(lease, at)

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
        checks = self._checks
        while checks and checks[0][0] <= now:
            at, _, lease = heappop(checks)
            if lease.next_check_at != at:
                continue
            lease.next_check_at = inf
            if self._next_check_at(lease) > now:
                self._push(lease, self._next_check_at(lease))
            elif not lease.hedge_due and self.delay_s(lease) is not None:
                lease.hedge_due = True
                self.waiting[lease] = None
                self._push(lease, max(now, self._next_check_at(lease)))
            elif lease.replica.head() is lease:
                lease.overdue = True
                yield lease
        if len(checks) > 2 * len(leases) + _SLACK:
            checks[:] = [entry for entry in checks if entry[2].next_check_at == entry[0]]
            heapify(checks)

    def next_at(self) -> float:
        """inf: never."""
        checks = self._checks
        while checks and checks[0][2].next_check_at != checks[0][0]:
            heappop(checks)
        return checks[0][0] if checks else inf

    def forget(self, lease: Lease) -> None:
        """It has closed."""
        lease.next_check_at = inf
        self.waiting.pop(lease, None)

    def _next_check_at(self, lease: Lease) -> float:
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_LEAST_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def _push(self, lease: Lease, at: float) -> None:
        lease.next_check_at = at
        heappush(self._checks, (at, lease.lease_id, lease))


def expected_start(lease: Lease) -> float:
    """When its answer's time begins to count: an answer comes so much later than the start as the
    message of the start would; where there was none, the whole transport later."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)
