"""How much of a tenant's rate is this gateway's, when others enforce the same one?

All of it that the others are not asked for, or its part by demand where together they are asked for
more than the rate; an equal part while nothing is heard of them. What others are asked for a
second, and what they have passed as a running total, is told about once a second. The totals, and
this gateway's own, go to a ledger of the whole rate: shares that do not add up while news travels
are thus bounded and not repeated for ever. Unit: requests or tokens of one tenant. Over any stretch
of T seconds all gateways together pass at most burst + rate x T; where there are several, a burst
for each after the first, and the rate for as long as news takes (`NEWS_S`) for each of them, more.
Nobody is asked for a permission: there is no call on a request's way.

Source: distributed rate limiting by demand (Raghavan et al., SIGCOMM'07: flow proportional share).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from routers.estimates.averages import DecayingRate
from routers.policies.admission.rate_limit import Rate, TokenBucket

NEWS_S = 2.0  # told once a second, and asked for once a second
SILENT_S = 5.0  # without news, after which nothing is known of the others
_DEMAND_WINDOW_S = 1.0
_LEAST_SHARE = 0.1  # of an equal part: a gateway nobody has asked yet must be able to begin


@dataclass(frozen=True, slots=True)
class RateUse:
    """What one gateway was asked for, a second, lately, and what it has passed in all."""

    asked_per_s: float
    passed: float


@dataclass(slots=True)
class RateShare:
    """One gateway's `bucket` of one of a tenant's rates, `whole` being the rate of all `gateways`
    together, and its `ledger` of what all of them have passed. It starts full, with an equal part.
    """

    whole: Rate
    gateways: int
    bucket: TokenBucket
    ledger: TokenBucket
    passed: float = 0.0
    heard_at: float = -inf
    _asked: DecayingRate = field(default_factory=lambda: DecayingRate(_DEMAND_WINDOW_S))
    _known: dict[str, float] = field(default_factory=dict)  # what each other one has passed

    @classmethod
    def equal(cls, whole: Rate, gateways: int, now: float) -> RateShare:
        bucket = TokenBucket(whole.share(gateways), now)
        return cls(whole, gateways, bucket, TokenBucket(_with_news(whole), now))

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much may pass; 0.0: now."""
        if self.heard_at > -inf and now - self.heard_at > SILENT_S:
            self._forget(now)
        return max(self.bucket.wait_s(amount, now), self.ledger.wait_s(amount, now))

    def asks(self, amount: float, now: float) -> None:
        """Somebody asks for so much, whatever becomes of it."""
        self._asked.add(amount, now)

    def take(self, amount: float, now: float) -> None:
        self.passed += amount
        self.bucket.take(amount, now)
        self.ledger.take(amount, now)

    def use(self, now: float) -> RateUse:
        """For the others to hear."""
        return RateUse(self._asked.read(now), self.passed)

    def change(self, whole: Rate, now: float) -> None:
        """Another rate from now on; an equal part of it until there is news."""
        self.whole = whole
        self.ledger.change(_with_news(whole), now)
        self._forget(now)

    def hear(self, others: Mapping[str, RateUse], now: float) -> None:
        """What each other gateway says now; one that is missing is expected to pass an equal
        part."""
        self.gateways = max(self.gateways, 1 + len(others))
        if self.whole.per_s == inf or self.gateways <= 1:
            return
        self.ledger.take(self._passed_since(others), now)
        known = {name: max(use.passed, self._known.get(name, 0.0)) for name, use in others.items()}
        self._known = {name: passed for name, passed in known.items() if passed > 0.0}
        self.heard_at = now
        self.bucket.change(Rate(self._part(others.values(), now), max(1.0, self.whole.burst)), now)

    def _forget(self, now: float) -> None:
        """Nothing is known of the others."""
        self.heard_at = -inf
        self._known.clear()
        self.bucket.change(self.whole.share(self.gateways), now)

    def _passed_since(self, others: Mapping[str, RateUse]) -> float:
        """Of one that is heard of for the first time, nothing: that may be long ago."""
        news = [use.passed - self._known.get(name, use.passed) for name, use in others.items()]
        return sum(max(0.0, each) for each in news)

    def _part(self, others: Iterable[RateUse], now: float) -> float:
        """Its own, a second."""
        per_s, uses = self.whole.per_s, list(others)
        equal = per_s / self.gateways
        left = per_s - equal * max(0, self.gateways - 1 - len(uses))
        theirs, own = sum(use.asked_per_s for use in uses), self._asked.read(now)
        part = left - theirs if own + theirs <= left else left * own / (own + theirs)
        return max(_LEAST_SHARE * equal, part)


def _with_news(whole: Rate) -> Rate:
    """What may have been passed before it was heard of does no harm once."""
    return Rate(whole.per_s, max(1.0, whole.burst + whole.per_s * NEWS_S))
