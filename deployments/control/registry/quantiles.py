"""Bounds of a histogram's quantiles with confidence.

They are the values at the ranks that a binomial distribution leaves (normal approximation):
Conover, Practical Nonparametric Statistics, 3rd edition, 3.2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from deployments.contract.rollout.latencies import Histogram, seconds_of

_Z = 2.0  # standard deviations: about 95 %, two-sided


def at_least(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the true quantile is almost certainly above; None if there are too few
    requests."""
    total = sum(histogram.values())
    rank = math.floor(total * quantile - _spread(total, quantile))
    return None if rank < 1 else seconds_of(_at(histogram, rank) - 1)


def at_most(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the true quantile is almost certainly below; None if there are too few
    requests."""
    total = sum(histogram.values())
    rank = math.ceil(total * quantile + _spread(total, quantile)) + 1
    return None if rank > total else seconds_of(_at(histogram, rank))


def median_s(histogram: Histogram) -> float | None:
    """The median in seconds, rounded up to a step; None without requests."""
    total = sum(histogram.values())
    return seconds_of(_at(histogram, (total + 1) // 2)) if total else None


def whole(by_length: Mapping[int, Histogram]) -> Counter[int]:
    """One histogram over all lengths."""
    return sum((Counter(each) for each in by_length.values()), Counter())


def _spread(total: int, quantile: float) -> float:
    return _Z * math.sqrt(total * quantile * (1 - quantile))


def _at(histogram: Histogram, rank: int) -> int:
    """The step of the request at that rank, counted from 1."""
    passed = 0
    for step in sorted(histogram):
        passed += histogram[step]
        if passed >= rank:
            return step
    raise ValueError(f"rank {rank} of {passed}")
