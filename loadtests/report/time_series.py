"""A run over time as a picture holds it: seconds joined until they can be told apart.

Rates of joined seconds are means; of what is under way and of percentiles the worst second stands
for all, since percentiles cannot be averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.results.record import Second

MOST_SPANS = 120


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """`seconds` of them from `at_s` on, rates a second; None where nothing was answered."""

    at_s: int
    seconds: int
    offered: float
    answered: float
    in_slo: float
    rejected: float
    failed: float
    under_way: int
    p50_ms: float | None
    p99_ms: float | None


def spans(seconds: Sequence[Second]) -> list[TimeSpan]:
    width = max(1, -(-len(seconds) // MOST_SPANS))
    return [_span(at, width, seconds[at : at + width]) for at in range(0, len(seconds), width)]


def _span(at_s: int, width: int, part: Sequence[Second]) -> TimeSpan:
    return TimeSpan(
        at_s,
        width,
        offered=mean(second.offered for second in part),
        answered=mean(second.answered for second in part),
        in_slo=mean(second.in_slo for second in part),
        rejected=mean(second.rejected for second in part),
        failed=mean(second.failed for second in part),
        under_way=max(second.under_way for second in part),
        p50_ms=_worst(second.p50_ms for second in part),
        p99_ms=_worst(second.p99_ms for second in part),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
