"""From how many rows on does a larger batch only make everybody wait?

The knee of one length is the smallest batch that serves within `GAIN` of the most rows a second
that any size serves: beyond it throughput gains less than that while latency grows with the rows.
The target is the largest knee of all lengths, as the core has one bound for all; where throughput
still rises at the largest batch that may be, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """A batch of `rows` takes `seconds`."""

    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Knee:
    """Of rows of one width: the knee, the point with the most rows a second, and the largest batch
    within the share of the SLO that a batch may take (1 where none is)."""

    width: int
    at: Point
    best: Point
    in_slo: int
    largest: int

    @property
    def rises(self) -> bool:
        """No size was measured beyond it."""
        return self.at.rows == self.largest


def knees(points: Iterable[tuple[int, int, float]], most_s: float) -> tuple[Knee, ...]:
    """`points`: (rows, width, seconds); `most_s`: what a batch may take. By width, ascending."""
    curves: dict[int, list[Point]] = {}
    for rows, width, seconds in sorted(points):
        curves.setdefault(width, []).append(Point(rows, seconds))
    return tuple(_knee(width, curves[width], most_s) for width in sorted(curves))


def _knee(width: int, curve: list[Point], most_s: float) -> Knee:
    best = max(curve, key=lambda point: point.rows_per_s)
    enough = (1.0 - GAIN) * best.rows_per_s
    at = next(point for point in curve if point.rows_per_s >= enough)
    in_slo = max((point.rows for point in curve if point.seconds <= most_s), default=1)
    return Knee(width, at, best, in_slo, curve[-1].rows)


def target(found: Iterable[Knee], max_size: int) -> int | None:
    """Rows that a batch need not exceed; None where `max_size` rows still gain."""
    rows = max((knee.at.rows for knee in found), default=max_size)
    return rows if rows < max_size else None
