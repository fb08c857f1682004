"""How long are the rows that have been arriving lately?

Weights on a fixed lattice of lengths, in which a row's weight halves every half-life. The lattice
is what edges may be chosen from: fixed, so that compiled shapes are met again when edges change,
and small, so that a solver may look at all pairs. Every length is counted at the next point above
it. It says what share each length has, not at which rate rows come. Work a row: one bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

_MOST_POINTS = 64
_WIDEST_TILE = 8
_RESCALE = 2.0**60  # weights grow instead of decaying; divided again before they get out of hand


def lattice(longest: int, also: Iterable[int] = ()) -> tuple[int, ...]:
    """Ascending lengths, the last is `longest`: 64 at most, and those of `also` that are shorter.

    All multiples of a tile (1 to 8) where 64 of them reach so far; else multiples that grow by the
    tile first and then by a constant factor.
    """
    tile = 1
    while tile < _WIDEST_TILE and tile * _MOST_POINTS < longest:
        tile *= 2
    growth = _growth(longest, tile)
    return tuple(sorted({*_points(longest, tile, growth), *(p for p in also if p < longest)}))


def _growth(longest: int, tile: int) -> float:
    """The least factor by which 64 points reach `longest`."""
    if tile * _MOST_POINTS >= longest:
        return 1.0
    low, high = 1.0, 2.0
    while len(_points(longest, tile, high)) > _MOST_POINTS:
        high *= 2.0
    for _ in range(30):
        middle = (low + high) / 2
        if len(_points(longest, tile, middle)) > _MOST_POINTS:
            low = middle
        else:
            high = middle
    return high


def _points(longest: int, tile: int, growth: float) -> list[int]:
    points = [min(tile, longest)]
    while points[-1] < longest and len(points) <= _MOST_POINTS:
        grown = int(points[-1] * growth) // tile * tile
        points.append(min(longest, max(points[-1] + tile, grown)))
    return points


class LengthHistogram:
    """`points` ascending; a length above the last one is counted there."""

    def __init__(self, points: tuple[int, ...], half_life_s: float) -> None:
        self.points = points
        self.half_life_s = half_life_s
        self._weights = [0.0] * len(points)
        self._origin: float | None = None  # when a row weighs 1

    def observe(self, length: int, now: float) -> None:
        """A row of this length arrived."""
        index = min(bisect_left(self.points, length), len(self.points) - 1)
        weight = self._weight(now)  # may replace the list
        self._weights[index] += weight

    def weights(self, now: float) -> tuple[float, ...]:
        """Rows by point; one that has just arrived counts 1, one of a half-life ago 1/2."""
        unit = self._weight(now)
        return tuple(weight / unit for weight in self._weights)

    def _weight(self, now: float) -> float:
        """What a row of this moment weighs."""
        if self._origin is None:
            self._origin = now
        weight: float = 2.0 ** min(1000.0, (now - self._origin) / self.half_life_s)
        if weight < _RESCALE:
            return weight
        self._weights = [each / weight for each in self._weights]
        self._origin = now
        return 1.0
