"""May a tenant ask for this now, or when? And with how much of its rate may this gateway admit?

A tenant has a token bucket for requests and one for tokens. Each fills at its rate up to its burst,
and a request is admitted by both or by neither; a request larger than a whole burst by a full
bucket, which then owes the rest. The level is computed from what was taken since the bucket was
last full and never summed up, so it does not drift: over any stretch of T seconds at most burst +
rate × T is taken, plus one request that is larger than the burst. Each gateway grants the whole
burst: were it split, some gateways would by chance be empty while others are full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from routers.estimates.averages import DecayingRate

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


NEWS_S: Final = 2.0  # how old news may be: it is sent once a second, and read once a second
SILENT_S: Final = 5.0  # without news, after which nothing is known of the other gateways
_DEMAND_WINDOW_S: Final = 1.0
# Of an equal part: a gateway that no caller has asked yet must be able to begin
_MIN_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class RateUse:
    """What one gateway was lately asked for, a second, and what it has admitted (`passed`) in
    all."""

    asked_per_s: float
    passed: float


@dataclass(slots=True)
class RateShare:
    """One gateway's part of one of a tenant's rates. It starts full, with an equal part.

    It may admit all that the other gateways are not asked for; if together they are asked for more
    than the rate, a part in proportion to demand, and an equal part while nothing is heard of them.
    About once a second each tells the others its demand a second and its running total admitted.
    All totals go to a ledger of the whole rate, so what is too much while news travels is bounded
    and does not repeat; no gateway asks another for permission. Over any T seconds all gateways
    admit at most burst + rate × T; each one after the first may add a burst, and the rate while
    news travels (`NEWS_S`). Source: flow proportional share (Raghavan, SIGCOMM'07).
    """

    whole: Rate  # of all gateways together
    gateways: int
    bucket: TokenBucket  # this gateway's part
    ledger: TokenBucket  # the whole rate, charged with what all gateways have admitted
    passed: float = 0.0  # admitted here, ever
    heard_at: float = -inf
    _asked: DecayingRate = field(default_factory=lambda: DecayingRate(_DEMAND_WINDOW_S))
    _known: dict[str, float] = field(default_factory=dict)  # what each other gateway has admitted

    @classmethod
    def equal(cls, whole: Rate, gateways: int, now: float) -> RateShare:
        """A new share: an equal part for each of so many gateways."""
        bucket = TokenBucket(whole.share(gateways), now)
        return cls(whole, gateways, bucket, TokenBucket(_with_news(whole), now))

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much may be admitted; 0.0: now."""
        if self.heard_at > -inf and now - self.heard_at > SILENT_S:
            self._forget(now)
        return max(self.bucket.wait_s(amount, now), self.ledger.wait_s(amount, now))

    def asks(self, amount: float, now: float) -> None:
        """A caller asks for so much, whether or not it is admitted."""
        self._asked.add(amount, now)

    def take(self, amount: float, now: float) -> None:
        """So much was admitted."""
        self.passed += amount
        self.bucket.take(amount, now)
        self.ledger.take(amount, now)

    def use(self, now: float) -> RateUse:
        """What this gateway tells the others."""
        return RateUse(self._asked.read(now), self.passed)

    def change(self, whole: Rate, now: float) -> None:
        """Another rate from now on; this gateway has an equal part of it until there is news."""
        self.whole = whole
        self.ledger.change(_with_news(whole), now)
        self._forget(now)

    def on_report(self, others: Mapping[str, RateUse], gateways: int, now: float) -> None:
        """Take in what each other gateway says now. `gateways`: how many there are with this one;
        one that says nothing is expected to admit an equal part."""
        self.gateways = gateways
        if self.whole.per_s == inf:
            return
        self.ledger.take(self._passed_since(others), now)
        known = {name: max(use.passed, self._known.get(name, 0.0)) for name, use in others.items()}
        self._known = {name: passed for name, passed in known.items() if passed > 0.0}
        self.heard_at = now
        part = self._part(others.values(), now)
        self.bucket.change(Rate(part, self._burst(part, now)), now)

    def _forget(self, now: float) -> None:
        """Go on with an equal part: nothing is known of the other gateways."""
        self.heard_at = -inf
        self._known.clear()
        self.bucket.change(self.whole.share(self.gateways), now)

    def _passed_since(self, others: Mapping[str, RateUse]) -> float:
        """What the others have admitted since they were last heard; nothing for a gateway that is
        heard for the first time, whose total may be old."""
        news = [use.passed - self._known.get(name, use.passed) for name, use in others.items()]
        return sum(max(0.0, each) for each in news)

    def _burst(self, part: float, now: float) -> float:
        """The whole burst, or what the ledger has where that is less, but a second of this
        gateway's part at least. Buckets that fill while the ledger lets nothing pass would all be
        emptied in the moment in which it does, and the ledger owe for seconds again."""
        return max(1.0, min(self.whole.burst, max(part, self.ledger.level(now))))

    def _part(self, others: Iterable[RateUse], now: float) -> float:
        """This gateway's part of the rate, a second."""
        per_s, uses = self.whole.per_s, list(others)
        equal = per_s / self.gateways
        left = per_s - equal * max(0, self.gateways - 1 - len(uses))
        theirs, own = sum(use.asked_per_s for use in uses), self._asked.read(now)
        part = left - theirs if own + theirs <= left else left * own / (own + theirs)
        return max(_MIN_SHARE * equal, part)


def _with_news(whole: Rate) -> Rate:
    """The ledger's rate: its burst is larger by what may be admitted before it is heard of."""
    return Rate(whole.per_s, max(1.0, whole.burst + whole.per_s * NEWS_S))
