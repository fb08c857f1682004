"""Which edges give every bucket the same number of rows?

Edges at the quantiles 1/K, 2/K … of the lengths that arrive, each at the point of the lattice that
comes nearest. Neither padding nor costs play a part: short lengths, of which there are many, get
narrow buckets, and rare long ones share a wide one. Waste is the share of the rows that are in a
bucket beyond an equal part. Source: equal-frequency binning (Dougherty, Kohavi and Sahami,
ICML'95).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from routers.policies.edges.prices import LengthShares
from routers.policies.edges.types import BestEdges, EdgeView


class Quantiles:
    """Equal numbers of rows; fewer edges where one length has more than its part of the rows."""

    def best(self, view: EdgeView) -> BestEdges | None:
        lengths, most = view.lengths, view.most
        points = lengths.points
        inner = {points[_nearest(lengths.rows, n / most) - 1] for n in range(1, most)}
        best = tuple(sorted({*inner, points[-1]}))
        now, then = (_beyond_equal_parts(lengths, each, most) for each in (view.edges, best))
        return BestEdges(best, now, then)


def _nearest(rows: Sequence[float], share: float) -> int:
    """The index, at least 1, whose cumulated share of rows comes nearest, the lower of two."""
    above = min(max(1, bisect_left(rows, share)), len(rows) - 1)
    below = max(1, above - 1)
    return below if share - rows[below] <= rows[above] - share else above


def _beyond_equal_parts(lengths: LengthShares, edges: Sequence[int], most: int) -> float:
    """The share of the rows that stand in a bucket beyond 1/`most` of all."""
    rows = lengths.rows
    shares = [rows[j] - rows[i] for i, j in pairwise(lengths.ends(edges))]
    return sum(max(0.0, share - 1.0 / most) for share in shares)
