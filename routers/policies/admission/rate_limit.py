"""May a tenant ask for this now, or when?

A tenant has a token bucket for requests and one for tokens. Each fills at its rate up to its burst,
and a request is admitted by both buckets or by neither. A request larger than a whole burst is
admitted by a full bucket, which then owes the rest. The level is computed from what was taken since
the bucket was last full and never summed up, so it does not drift: over any stretch of T seconds at
most burst + rate × T is taken, plus one request that is larger than the burst.

The unit is one tenant at one gateway; `rate_share` says with how much of the tenant's rate a
gateway fills its bucket. Each gateway grants the whole burst: were the burst split among gateways,
some would by chance be empty while others are full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

_ROUNDING_S: Final = 1e-6  # added to the wait that is told, so that a retry exactly then succeeds


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` a second, and `burst` at once after a rest; inf: no bound."""

    per_s: float = inf
    burst: float = inf

    def share(self, gateways: int) -> Rate:
        """The rate that one of so many gateways enforces. Its burst is at least 1, else nothing
        would pass."""
        return Rate(self.per_s / gateways, max(1.0, self.burst))


@dataclass(slots=True)
class TokenBucket:
    """`taken` is what was taken since `full_at`, when the bucket was full. A new bucket is full."""

    rate: Rate
    full_at: float
    taken: float = 0.0

    def level(self, now: float) -> float:
        """What may be taken at once; negative while the bucket owes."""
        if self.rate.per_s == inf:
            return inf
        return min(self.rate.burst, self._unbounded(now))

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much may be taken; 0.0: now."""
        if amount <= 0.0 or self.rate.per_s == inf:
            return 0.0
        short = min(amount, self.rate.burst) - self.level(now)
        return short / self.rate.per_s + _ROUNDING_S if short > 0.0 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take so much, whether or not `wait_s` allows it."""
        if self.rate.per_s == inf:
            return
        if self._unbounded(now) >= self.rate.burst:
            self.full_at, self.taken = now, 0.0
        self.taken += amount

    def change(self, rate: Rate, now: float) -> None:
        """Another rate from now on; the level stays as far as it fits the new burst."""
        if rate == self.rate:
            return
        level = self.level(now)
        self.rate, self.full_at = rate, now
        self.taken = max(0.0, rate.burst - level) if level < inf and rate.burst < inf else 0.0

    def _unbounded(self, now: float) -> float:
        return self.rate.burst + self.rate.per_s * (now - self.full_at) - self.taken
