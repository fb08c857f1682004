"""Misses against replica-hours: which points are on the frontier, and how many misses it has at a
given number of hours.

Between two points of a frontier misses are interpolated geometrically: a rival is given what lies
between its settings, and below its cheapest point nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log

LEAST = 1e-7  # of misses, so that none has a logarithm


@dataclass(frozen=True, slots=True)
class Point:
    """Of one setting of one side, over all seeds: replica-hours and the share that was missed."""

    name: str
    hours: float
    misses: float


def frontier(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats on both axes, by hours."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.hours, p.misses)):
        if not kept or point.misses < kept[-1].misses:
            kept.append(point)
    return kept


def misses_at(points: Sequence[Point], hours: float) -> float:
    """Of a frontier at so many hours; inf below its cheapest point."""
    best = frontier(points)
    if not best or hours < best[0].hours:
        return inf
    for left, right in pairwise(best):
        if hours < right.hours:
            share = (hours - left.hours) / (right.hours - left.hours)
            low, high = log(max(LEAST, left.misses)), log(max(LEAST, right.misses))
            return exp(low + share * (high - low))
    return best[-1].misses


def better_on_both(rivals: Iterable[Point], ours: Sequence[Point]) -> list[Point]:
    """Rivals' points with no more hours and fewer misses than our frontier has there, within what
    our settings span."""
    cheapest = min((point.hours for point in ours), default=inf)
    return [
        point
        for point in rivals
        if point.hours >= cheapest and point.misses < misses_at(ours, point.hours)
    ]


def gains(ours: Sequence[Point], rivals: Sequence[Point]) -> list[tuple[float, float]]:
    """(hours, how many times fewer misses ours has), at each point of our frontier that the rivals'
    reaches."""
    return [
        (point.hours, misses_at(rivals, point.hours) / max(LEAST, point.misses))
        for point in frontier(ours)
        if misses_at(rivals, point.hours) < inf
    ]
