"""What is left of measured batches when the fit has explained them: slow replicas, and scatter?

A replica's slowdown has two speeds. What is ordinary noise moves it slowly (EWMA). A replica that
turns slow, or well again, is followed at its second such batch: once the median of its last three
batches is off by more than noise explains, the slowdown is that median. So one hiccup, however
long, moves it by a few percent only. The pool's slowdown is where its replicas are, an odd one
counting little; a new replica is taken to be like the pool. Logarithms, so that half and double
weigh alike. Scatter is a ring of quotients measured / predicted, and their quantiles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, log

# Of slowdowns:
_GAIN = 0.05
_FIRST_GAIN = 0.25
_POOL_GAIN = 0.3  # for a round of the pool
_ODD = 0.5  # how far from the pool a replica counts in full, log

# Of the scatter:
HICCUP = 4.0
_RING = 256
_EVERY = 16
_LEAST_NOISE = 0.3
_MOST_NOISE = 1.0


@dataclass(slots=True)
class _Slowdown:
    log: float
    factor: float
    before: tuple[float, float]  # the two batches before, log
    gain: float = _FIRST_GAIN


class Slowdowns:
    """Factors on the fit's seconds by replica, 1 while nothing is known."""

    def __init__(self) -> None:
        self._slowdowns: dict[str, _Slowdown] = {}
        self._pool_log = 0.0
        self.pool = 1.0

    def of(self, replica_id: str) -> float:
        slowdown = self._slowdowns.get(replica_id)
        return self.pool if slowdown is None else slowdown.factor

    def to_pool(self, replica_id: str) -> float:
        """To the pool; 1.0 for one that has not been measured."""
        return self.of(replica_id) / self.pool

    def follow(self, replica_id: str, off: float, noise: float) -> None:
        """A batch took e^`off` times the fit's seconds; beyond `noise` (log) it is no noise."""
        slowdown = self._slowdowns.get(replica_id)
        if slowdown is None:
            start = self._pool_log
            slowdown = self._slowdowns[replica_id] = _Slowdown(start, exp(start), (start, start))
        log, (older, old) = slowdown.log, slowdown.before
        middle = max(min(older, old), min(max(older, old), off))
        if abs(middle - log) > noise:
            log, slowdown.gain = middle, _FIRST_GAIN
        else:
            log += slowdown.gain * max(-noise, min(noise, off - log))
            slowdown.gain = max(_GAIN, slowdown.gain / (1.0 + slowdown.gain))
        slowdown.log, slowdown.factor, slowdown.before = log, exp(log), (old, off)
        step = max(-_ODD, min(_ODD, log - self._pool_log))
        self._pool_log += _POOL_GAIN / len(self._slowdowns) * step
        self.pool = exp(self._pool_log)

    def forget(self, replica_id: str) -> None:
        self._slowdowns.pop(replica_id, None)


def at_quantile(ordered: list[float], quantile: float) -> float:
    return ordered[round(quantile * (len(ordered) - 1))]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Of quotients measured / predicted: the 99th percentile over the median, and the squared
    coefficient of variation."""

    p99: float
    scv: float


class Spread:
    """The last 256 quotients measured / predicted, and their quantiles, found every 16 samples.

    A batch over `HICCUP` times its prediction says nothing of how long ordinary ones take and is
    left out: nothing can be planned for it (a hedge waits for those). Until 16 batches were
    measured every quantile is 1. `noise`: a batch this far (log) from what is expected of it may
    still be an ordinary one."""

    def __init__(self) -> None:
        self.median = 1.0
        self.p99 = 1.0
        self.noise = _LEAST_NOISE
        self._ring: deque[float] = deque(maxlen=_RING)
        self._ordered: list[float] = [1.0]
        self._seen = 0

    def quantile(self, quantile: float) -> float:
        if quantile == 0.5:
            return self.median
        return self.p99 if quantile == 0.99 else at_quantile(self._ordered, quantile)

    def observe(self, quotient: float) -> None:
        if not 1.0 / HICCUP <= quotient <= HICCUP:
            return
        self._ring.append(quotient)
        self._seen += 1
        if self._seen % _EVERY == 0:
            self._ordered = sorted(self._ring)
            self._read()

    def scatter(self) -> Scatter:
        """As many steps as there are quotients."""
        ordered = self._ordered
        mean = sum(ordered) / len(ordered)
        square = sum([each * each for each in ordered]) / len(ordered)
        return Scatter(self.p99 / self.median, square / (mean * mean) - 1.0)

    def _read(self) -> None:
        ordered = self._ordered
        self.median = at_quantile(ordered, 0.5)
        self.p99 = max(self.median, at_quantile(ordered, 0.99))
        noise = 1.2 * log(at_quantile(ordered, 0.9) / at_quantile(ordered, 0.1))
        self.noise = max(_LEAST_NOISE, min(_MOST_NOISE, noise))
