"""May a tenant ask for this now, or when?

A token bucket for requests and one for tokens: each fills at its rate up to its burst, and a demand
is met by both or by neither. What is larger than a whole burst is met by a full bucket, which then
owes the rest. A level is computed from what was taken since the bucket was last full, never added
up, so there is no drift: over any stretch of T seconds at most burst + rate x T is taken, and one
demand more where that is larger than the burst. The unit is one tenant at one gateway; how much of
the tenant's rate that one fills its bucket with is the question of `rate_share`. Each grants the
whole burst: split among them, chance alone would empty some while others are full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

_ROUNDING_S = 1e-6  # added to what is told, so that coming back exactly then succeeds


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second, and so many at once after a rest; inf: no bound."""

    per_s: float = inf
    burst: float = inf

    def share(self, gateways: int) -> Rate:
        """What one of so many gateways enforces. At least one at once, else nothing would pass."""
        return Rate(self.per_s / gateways, max(1.0, self.burst))


@dataclass(slots=True)
class TokenBucket:
    """`taken` since `full_at`, when the bucket was full: a new one is."""

    rate: Rate
    full_at: float
    taken: float = 0.0

    def level(self, now: float) -> float:
        """What may be taken at once; below 0 while it owes."""
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
        """Whether it may be is `wait_s`' question."""
        if self.rate.per_s == inf:
            return
        if self._unbounded(now) >= self.rate.burst:
            self.full_at, self.taken = now, 0.0
        self.taken += amount

    def change(self, rate: Rate, now: float) -> None:
        """Another rate from now on; the level stays as far as it fits the new burst."""
        level = self.level(now)
        self.rate, self.full_at = rate, now
        self.taken = max(0.0, rate.burst - level) if level < inf and rate.burst < inf else 0.0

    def _unbounded(self, now: float) -> float:
        return self.rate.burst + self.rate.per_s * (now - self.full_at) - self.taken
