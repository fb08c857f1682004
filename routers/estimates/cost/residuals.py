"""What is left of measured batches that the fit does not explain: slow replicas, and scatter.

A replica's slowdown moves at two speeds. Ordinary noise moves it slowly (EWMA). When a replica
turns slow, or well again, its slowdown follows at the second such batch: once the median of its
last three batches is off by more than noise explains, the slowdown becomes that median. So one
hiccup, however long, moves it by a few percent only. The pool's slowdown follows its replicas, and
an exceptional replica counts little. A new replica is taken to be like the pool. Slowdowns are kept
as logarithms, so that half and double weigh alike. Scatter is a ring of quotients measured /
predicted, and their quantiles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from math import exp, log
from typing import Final

# Of slowdowns:
_GAIN: Final = 0.05  # of a slowdown's moving average, in the end
_FIRST_GAIN: Final = 0.25  # for its first batch, and after a jump
_POOL_GAIN: Final = 0.3  # of the pool's, for one batch of each replica
_ODD: Final = 0.5  # log: a replica further from the pool counts as if it were so far

# Of the scatter:
HICCUP: Final = 4.0  # times the prediction
_RING: Final = 256  # quotients
_EVERY: Final = 16  # samples, after which quantiles are read anew
_MIN_NOISE: Final = 0.3  # log
_MAX_NOISE: Final = 1.0  # log


class _Slowdown:
    """One replica's slowdown, as a logarithm and as a factor. `older` and `old`: of the last two
    batches, logarithms, with which the next is compared."""

    def __init__(self, start: float) -> None:
        self.log, self.factor = start, exp(start)
        self.older, self.old, self.gain = start, start, _FIRST_GAIN


class Slowdowns:
    """By replica, the factor on the fit's seconds; 1.0 while nothing is known."""

    def __init__(self) -> None:
        self._slowdowns: dict[str, _Slowdown] = {}
        self._pool_log = 0.0
        self.pool = 1.0

    def of(self, replica_id: str) -> float:
        """The replica's factor; the pool's until it was measured."""
        slowdown = self._slowdowns.get(replica_id) if replica_id else None
        return self.pool if slowdown is None else slowdown.factor

    def to_pool(self, replica_id: str) -> float:
        """The replica's factor over the pool's; 1.0 until it was measured."""
        return self.of(replica_id) / self.pool

    def follow(self, replica_id: str, off: float, noise: float) -> None:
        """A batch of the replica took e^`off` times the fit's seconds. `noise`: the deviation (log)
        up to which it may be noise."""
        slowdown = self._slowdowns.get(replica_id)
        if slowdown is None:
            slowdown = self._slowdowns[replica_id] = _Slowdown(self._pool_log)
        level, older, old = slowdown.log, slowdown.older, slowdown.old
        middle = max(min(older, old), min(max(older, old), off))
        if abs(middle - level) > noise:
            level, slowdown.gain = middle, _FIRST_GAIN
        else:
            level += slowdown.gain * max(-noise, min(noise, off - level))
            slowdown.gain = max(_GAIN, slowdown.gain / (1.0 + slowdown.gain))
        slowdown.log, slowdown.factor = level, exp(level)
        slowdown.older, slowdown.old = old, off
        step = max(-_ODD, min(_ODD, level - self._pool_log))
        self._pool_log += _POOL_GAIN / len(self._slowdowns) * step
        self.pool = exp(self._pool_log)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._slowdowns.pop(replica_id, None)


def at_quantile(ordered: list[float], quantile: float) -> float:
    """The quantile of ascending values, of which there is at least one."""
    return ordered[round(quantile * (len(ordered) - 1))]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Of quotients measured / predicted: the 99th percentile over the median, and the squared
    coefficient of variation."""

    p99: float
    scv: float


class Spread:
    """The last 256 quotients measured / predicted, and their quantiles, found anew every 16
    samples.

    A batch over `HICCUP` times its prediction is left out: it says nothing of how long ordinary
    batches take, and cannot be planned for (hedging deals with it). So is one under 1 / `HICCUP` of
    its prediction. Until 16 batches were measured, every quantile is 1. `noise`: a batch this far
    (log) from what is expected of it may still be an ordinary one.
    """

    def __init__(self) -> None:
        self.median = 1.0
        self.p99 = 1.0
        self.noise = _MIN_NOISE
        self._new: list[float] = []  # quotients since quantiles were last found
        self._ring: deque[float] = deque()  # those before, in the order in which they came
        self._ordered: list[float] = [1.0]  # the same, ascending

    def quantile(self, quantile: float) -> float:
        """The quantile of the quotients, as last found."""
        if quantile == 0.5:
            return self.median
        return self.p99 if quantile == 0.99 else at_quantile(self._ordered, quantile)

    def observe(self, quotient: float) -> None:
        """A batch took `quotient` times its prediction."""
        if not 1.0 / HICCUP <= quotient <= HICCUP:
            return
        self._new.append(quotient)
        if len(self._new) == _EVERY:
            self._take_new()
            self._read()

    def _take_new(self) -> None:
        ring, new = self._ring, self._new
        ordered = self._ordered if ring else []
        ring.extend(new)
        while len(ring) > _RING:
            del ordered[bisect_left(ordered, ring.popleft())]
        new.sort()
        ordered.extend(new)
        ordered.sort()  # in two runs that are in order already
        self._ordered = ordered
        new.clear()

    def scatter(self) -> Scatter:
        """The scatter, as last found. Work: a look at each quotient."""
        ordered = self._ordered
        mean = sum(ordered) / len(ordered)
        square = sum([each * each for each in ordered]) / len(ordered)
        return Scatter(self.p99 / self.median, square / (mean * mean) - 1.0)

    def _read(self) -> None:
        ordered = self._ordered
        self.median = at_quantile(ordered, 0.5)
        self.p99 = max(self.median, at_quantile(ordered, 0.99))
        noise = 1.2 * log(at_quantile(ordered, 0.9) / at_quantile(ordered, 0.1))
        self.noise = max(_MIN_NOISE, min(_MAX_NOISE, noise))
