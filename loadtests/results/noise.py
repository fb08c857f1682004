"""Is the difference between two runs more than chance?

Computes 99 % intervals of shares (Wilson), of percentiles (the values at the ranks that a binomial
count would reach), and of differences between two of them (MOVER; Newcombe's method for shares).
Requests are not independent, because neighbours share queues, so they count as fewer requests
(`inflations`). The factor is how much more parts of a run differ, in shares in time and medians,
than independent requests would. If the differences between both runs' parts vary less than that,
their variation is the factor, so that changes that the scenario causes in both runs are no noise.
Limits: tails on busy servers are more correlated still, so equal runs look different there more
often than once in a hundred. Changes between runs that do not show within a run are not covered.
Sources: Zou & Donner, "Construction of confidence limits about effect measures" (2008); Newcombe
(1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from statistics import fmean

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, Second

Z = 2.576  # two-sided, 99 %
RESOLUTION = 0.0025  # of the histograms, as a part of a value
MAX_BLOCKS = 20
MIN_BLOCKS = 5
ROUGH = 1.5  # a spread that twenty parts show may truly be so much wider


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

    @property
    def is_open(self) -> bool:
        """Too few were counted to bound it on both sides."""
        return self.low == -inf or self.high == inf


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
    """The logarithm of seconds, open above where there are too few to know; None of nothing."""
    if not histogram.total:
        return None
    reach = 100.0 * Z * sqrt(percent / 100 * (1 - percent / 100) * inflation / histogram.total)
    value, low = (
        log(_second_of(histogram, each)) for each in (percent, max(percent - reach, 1e-9))
    )
    top = percent + reach
    high = log(_second_of(histogram, top)) if top < 100.0 else inf
    return Estimate(value, low - RESOLUTION, high + RESOLUTION)


def inflations(a: Record, b: Record) -> tuple[float, float]:
    """How many requests of each run tell as much as one would among independent ones; at least 1,
    and never so many that a part of the run tells less than one."""
    seconds = min(len(a.time_series), len(b.time_series))
    size = max(1, -(-seconds // MAX_BLOCKS))
    starts = range(0, seconds - size + 1, size)
    one, other = ([_seen(each, at, size) for at in starts] for each in (a, b))
    together = _dispersion([_apart(*pair) for pair in zip(one, other, strict=True)])
    found = []
    for record, seen in ((a, one), (b, other)):
        most = record.total().latency.total / max(len(seen), 1)
        found.append(max(1.0, min(ROUGH * min(_dispersion(seen), together), most)))
    return found[0], found[1]


# ---- parts of a run --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value in one part of a run, and its variance were requests independent."""

    value: float
    variance: float


_Part = tuple[_Seen | None, ...]  # its share in time, and the logarithm of its median


def _seen(record: Record, at: int, size: int) -> _Part:
    seconds = record.time_series[at : at + size]
    return _share_in(seconds), _median_in(seconds, record.total().latency)


def _share_in(seconds: Sequence[Second]) -> _Seen | None:
    offered = sum(second.offered for second in seconds)
    in_slo = sum(second.in_slo for second in seconds)
    if not offered:
        return None
    p = (in_slo + 0.5) / (offered + 1.0)  # so that all or none are no certainty
    return _Seen(in_slo / offered, p * (1 - p) / offered)


def _median_in(seconds: Sequence[Second], whole: LatencyHistogram) -> _Seen | None:
    medians = [log(second.p50_ms) for second in seconds if second.p50_ms]
    answered = sum(second.answered for second in seconds)
    return _Seen(fmean(medians), _variance_of_median(whole, answered)) if medians else None


def _variance_of_median(histogram: LatencyHistogram, count: int) -> float:
    """Of its logarithm, among so many independent draws."""
    reach = min(49.0, 50.0 / sqrt(max(count, 1)))
    low, high = (_second_of(histogram, 50.0 + side * reach) for side in (-1, 1))
    return (log(high / low) / 2) ** 2 + RESOLUTION**2


def _apart(one: _Part, other: _Part) -> _Part:
    return tuple(
        _Seen(y.value - x.value, x.variance + y.variance) if x and y else None
        for x, y in zip(one, other, strict=True)
    )


def _dispersion(parts: Sequence[_Part]) -> float:
    """Mean square of how parts differ, in units of chance; of shares or medians, the greater."""
    found = [1.0]
    for column in zip(*parts, strict=True):
        seen = [each for each in column if each is not None]
        if len(seen) >= MIN_BLOCKS:
            weights = [1 / each.variance for each in seen]
            middle = sum(w * each.value for w, each in zip(weights, seen, strict=True)) / sum(
                weights
            )
            squares = [
                w * (each.value - middle) ** 2 for w, each in zip(weights, seen, strict=True)
            ]
            found.append(sum(squares) / (len(seen) - 1))
    return max(found)


def _second_of(histogram: LatencyHistogram, percent: float) -> float:
    return histogram.percentile_s(percent) or 1e-6
