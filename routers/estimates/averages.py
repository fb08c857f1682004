"""Averages over continuous time that need no timer, how busy the replicas are, and how long batches
take over their predictions.

`DecayingRate` averages amounts that come in lumps (seconds of service at the end of a batch),
`TimeAverage` a value that holds from one call to the next, `Utilisation` the share of replicas that
hold work; `RatioHistogram` keeps measured over predicted seconds. All forget exponentially and cost
O(1) a sample. In averages it counts when samples come, not how many. A window should span several
lumps: with five or more in a window, the ripple is at most a tenth of the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

_WINDOW_S = 1.0


@dataclass(slots=True)
class DecayingRate:
    """Amounts a second. It decays towards 0 while nothing is added."""

    window_s: float
    value: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        """So much came at `now`."""
        if now > self.at:
            self.value *= exp((self.at - now) / self.window_s)
            self.at = now
        self.value += amount / self.window_s

    def read(self, now: float) -> float:
        """The rate at `now`."""
        return self.value * exp((self.at - now) / self.window_s) if now > self.at else self.value


@dataclass(slots=True)
class TimeAverage:
    """Time average of the values told; the first value is taken over at once."""

    window_s: float
    value: float = 0.0
    held: float = 0.0  # the value told last
    at: float | None = None

    def report(self, held: float, now: float) -> float:
        """The average up to `now`; from here on the value is `held`."""
        if self.at is None:
            self.value = held
        elif now > self.at:
            self.value += (self.held - self.value) * (1.0 - exp((self.at - now) / self.window_s))
        self.held, self.at = held, now
        return self.value


class Utilisation:
    """How busy the replicas are, averaged over about a second: the share of them that hold work of
    this gateway (a stream replica counts by how full it is), plus the seconds that they are
    reported to have served for other gateways. Work of this gateway that waits at a replica behind
    another gateway's counts twice, so with several gateways the figure errs on the busy side.

    `advance` moves time on, and must be called before the share changes.
    """

    def __init__(self) -> None:
        self._own = 0.0
        self._foreign = 0.0
        self._at: float | None = None

    @property
    def share(self) -> float:
        """0..1."""
        return min(1.0, self._own + self._foreign)

    def advance(self, busy: float, now: float) -> None:
        """`busy` has been the share of replicas that hold work since the last call."""
        if self._at is not None and now > self._at:
            kept = exp((self._at - now) / _WINDOW_S)
            self._own = busy + kept * (self._own - busy)
            self._foreign *= kept
        self._at = now

    def served_elsewhere(self, served_s: float, replicas: int) -> None:
        """One of so many replicas has served other gateways for so long."""
        self._foreign += served_s / (_WINDOW_S * max(1, replicas))


# Of the histogram of ratios:
_BIN_WIDTH = log(1.05)
_MIN_RATIO, _MAX_RATIO = 0.25, 64.0
_BINS = int(log(_MAX_RATIO / _MIN_RATIO) / _BIN_WIDTH) + 2
_GROWTH = 1.0015  # each sample weighs so much more than the one before: half-life 460 samples
_TOO_HEAVY = 1e12  # weight at which all weights are divided
_REUSE = 8  # samples for which a quantile is used again


class RatioHistogram:
    """Measured over predicted seconds, in bins of 5 %.

    The past fades: half of the weight lies on the last few hundred batches. A quantile costs one
    look at the bins at most, and is the upper edge of its bin, so never less than the true one.
    `samples`: how many there ever were.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._bins = [0.0] * _BINS
        self._weight = 1.0
        self._read: tuple[float, int, float] = (-1.0, 0, 0.0)

    def observe(self, ratio: float) -> None:
        """A batch took `ratio` times its prediction."""
        self.samples += 1
        self._weight *= _GROWTH
        self._bins[_bin(ratio)] += self._weight
        if self._weight > _TOO_HEAVY:
            self._bins = [weight / self._weight for weight in self._bins]
            self._weight = 1.0

    def quantile(self, share: float) -> float:
        """Upper edge of the bin in which the quantile lies; 0.0 without samples."""
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
                return float(_MIN_RATIO * 1.05**index)
        return _MIN_RATIO


def _bin(ratio: float) -> int:
    """The first bin whose upper edge is at or above the ratio."""
    if ratio <= _MIN_RATIO:
        return 0
    return min(_BINS - 1, int(-(-log(ratio / _MIN_RATIO) // _BIN_WIDTH)))
