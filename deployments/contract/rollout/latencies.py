"""A histogram of latencies in steps of a tenth, and what it says of a quantile with confidence.

Bounds of a quantile are the values at the ranks that a binomial leaves (normal approximation):
Conover, Practical Nonparametric Statistics, 3rd edition, 3.2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

_STEP = 1.1
_LEAST_S = 1e-4
_Z = 2.0  # two sides of 95 %

Histogram = Mapping[int, int]
"""Requests by step: step n holds latencies up to `_LEAST_S * _STEP**n` seconds."""


def step_of(latency_s: float) -> int:
    return max(0, math.ceil(math.log(max(latency_s, _LEAST_S) / _LEAST_S, _STEP)))


def seconds_of(step: int) -> float:
    """The most that a step holds."""
    return _LEAST_S * float(_STEP**step)


def at_least(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the quantile is above, nearly certainly; None of too few."""
    total = sum(histogram.values())
    rank = math.floor(total * quantile - _spread(total, quantile))
    return None if rank < 1 else seconds_of(_at(histogram, rank) - 1)


def at_most(histogram: Histogram, quantile: float) -> float | None:
    """Seconds that the quantile is below, nearly certainly; None of too few."""
    total = sum(histogram.values())
    rank = math.ceil(total * quantile + _spread(total, quantile)) + 1
    return None if rank > total else seconds_of(_at(histogram, rank))


def median_s(histogram: Histogram) -> float | None:
    """Up to a step; None of nothing."""
    total = sum(histogram.values())
    return seconds_of(_at(histogram, (total + 1) // 2)) if total else None


def whole(by_length: Mapping[int, Histogram]) -> Counter[int]:
    """Of all lengths."""
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
