"""A histogram of latencies, in memory that does not grow with how many there were.

Counts in buckets each half a per cent wider than the last, so a percentile is off by at most a
quarter of a per cent. Histograms of equal make add up; percentiles are never averaged. Source: the
idea of HdrHistogram (Tene).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, exp, log

_MIN_S = 1e-6
_WIDTH = log(1.005)


@dataclass(slots=True)
class LatencyHistogram:
    """Seconds; what is shorter than a microsecond counts as one."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    max_s: float = 0.0

    def add(self, seconds: float) -> None:
        place = int(log(max(seconds, _MIN_S) / _MIN_S) / _WIDTH)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.total += 1
        if seconds > self.max_s:
            self.max_s = seconds

    def merge(self, other: LatencyHistogram) -> None:
        for place, count in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + count
        self.total += other.total
        self.max_s = max(self.max_s, other.max_s)

    def percentile_s(self, percent: float) -> float | None:
        """The least bucket's middle that so many per cent lie in or below; None of nothing."""
        left = ceil(self.total * percent / 100.0)
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 0:
                return min(_middle_s(place), self.max_s)
        return None

    def cumulative(self) -> Iterator[tuple[float, float]]:
        """(seconds, share at most that long), ascending: the distribution's curve."""
        seen = 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            yield _middle_s(place), seen / self.total


def _middle_s(place: int) -> float:
    return _MIN_S * exp((place + 0.5) * _WIDTH)
