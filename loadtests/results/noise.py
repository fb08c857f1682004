"""Is what lies between two runs more than chance?

Intervals of 99 % for shares (Wilson) and percentiles (the values at the ranks that a binomial
count would reach), and of the distance between two of either (MOVER, which for shares is Newcombe's
method). Requests are not independent: queues make neighbours alike. So they count as fewer than
they are, by how much more the differences between parts of the two runs vary than independent
requests would make them (`inflation`, from shares in time and from medians). On busy servers tails
are more alike still, and equal runs look different there more often than once in a hundred. It
knows nothing of what differs from one run to the next but not within one. Sources: Zou & Donner,
"Construction of confidence limits about effect measures" (2008); Newcombe (1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, Second

Z = 2.576  # two-sided, 99 %
RESOLUTION = 0.0025  # of the histograms, as a part of a value
MOST_BLOCKS = 20
LEAST_BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and from where to where it may truly lie."""

    value: float
    low: float
    high: float

    def less(self, other: Estimate) -> Estimate:
        """This one without the other, each having its own error."""
        value = self.value - other.value
        low = sqrt((self.value - self.low) ** 2 + (other.high - other.value) ** 2)
        high = sqrt((self.high - self.value) ** 2 + (other.value - other.low) ** 2)
        return Estimate(value, value - low, value + high)

    @property
    def is_noise(self) -> bool:
        """Of a distance: it may as well be none."""
        return self.low <= 0.0 <= self.high


def share(count: int, total: int, inflation: float = 1.0) -> Estimate | None:
    """Wilson's interval, 0..1; None of nothing."""
    if not total:
        return None
    n, p = total / inflation, count / total
    middle, spread = p + Z * Z / (2 * n), Z * sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2)
    whole = 1 + Z * Z / n
    low, high = (middle - spread) / whole, (middle + spread) / whole
    return Estimate(p, max(0.0, min(p, low)), min(1.0, max(p, high)))


def log_percentile(
    histogram: LatencyHistogram, percent: float, inflation: float = 1.0
) -> Estimate | None:
    """The logarithm of seconds; None where there are too few to know how high it may be."""
    if not histogram.total:
        return None
    reach = 100.0 * Z * sqrt(percent / 100 * (1 - percent / 100) * inflation / histogram.total)
    if percent + reach >= 100.0:
        return None
    values = (percent, max(percent - reach, 1e-9), percent + reach)
    value, low, high = (log(_second_of(histogram, each)) for each in values)
    return Estimate(value, low - RESOLUTION, high + RESOLUTION)


def inflation(a: Record, b: Record) -> float:
    """How many requests tell as much as one would among independent ones; at least 1, and never so
    many that a part of the run tells less than one."""
    pairs = list(zip(a.course, b.course, strict=False))
    size = max(1, -(-len(pairs) // MOST_BLOCKS))
    blocks = [pairs[at : at + size] for at in range(0, len(pairs) - size + 1, size)]
    shares = _spread([found for block in blocks if (found := _shares_apart(block))])
    whole = (a.total().latency, b.total().latency)
    medians = _spread([found for block in blocks if (found := _medians_apart(block, whole))])
    most = min(each.total for each in whole) / max(len(blocks), 1)
    return max(1.0, min(max(shares, medians), most))


# ---- parts of a run --------------------------------------------------------------------------

_Apart = tuple[float, float]  # what lies between the runs, and its variance were it all chance
_Block = Sequence[tuple[Second, Second]]


def _spread(found: Sequence[_Apart]) -> float:
    """Mean square of what lies between the runs, in units of chance."""
    if len(found) < LEAST_BLOCKS:
        return 1.0
    middle = sum(d / v for d, v in found) / sum(1 / v for _, v in found)
    return sum((d - middle) ** 2 / v for d, v in found) / (len(found) - 1)


def _shares_apart(block: _Block) -> _Apart | None:
    distance = variance = 0.0
    for run, sign in ((0, -1), (1, 1)):
        offered = sum(pair[run].offered for pair in block)
        in_slo = sum(pair[run].in_slo for pair in block)
        if not offered:
            return None
        p = (in_slo + 0.5) / (offered + 1.0)  # so that all or none are no certainty
        distance += sign * in_slo / offered
        variance += p * (1 - p) / offered
    return distance, variance


def _medians_apart(block: _Block, whole: Sequence[LatencyHistogram]) -> _Apart | None:
    """Of the logarithms of each second's own."""
    distance = variance = 0.0
    for run, sign in ((0, -1), (1, 1)):
        seconds = [pair[run] for pair in block]
        medians = [log(second.p50_ms) for second in seconds if second.p50_ms]
        if not medians:
            return None
        distance += sign * fmean(medians)
        variance += _variance_of_median(whole[run], sum(second.answered for second in seconds))
    return distance, variance


def _variance_of_median(histogram: LatencyHistogram, count: int) -> float:
    """Of its logarithm, among so many independent draws."""
    reach = min(49.0, 50.0 / sqrt(max(count, 1)))
    low, high = (_second_of(histogram, 50.0 + side * reach) for side in (-1, 1))
    return (log(high / low) / 2) ** 2 + RESOLUTION**2


def _second_of(histogram: LatencyHistogram, percent: float) -> float:
    return histogram.percentile_s(percent) or 1e-6
