"""What does a bucket cost, given where it begins and ends, and which edges cost least in total?

Prices are a row, so that only the shares of lengths enter. They are either tokens, every row being
padded to its bucket's edge, or device seconds of a server that serves its buckets in turn
(`BatchPrices`). A callable tells what a batch costs. Which rows a batch really gets is decided by
the batching policy, and where buckets end by an `EdgePolicy`, of which two search with `cheapest`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from operator import add
from typing import Final

from routers.api.settings import DispatcherSettings

Cost = Callable[[float, float], float]
"""Predicted device seconds of a batch: (rows, width in tokens)."""

Price = Callable[[int, int], float]
"""What one bucket costs that holds the points with indices from i up to, but not including, j;
i < j."""

_BISECTIONS: Final = 16  # for the capacity: precise to 2^-16 of its upper bound


@dataclass(frozen=True, slots=True)
class LengthShares:
    """Cumulated shares of the lengths that arrive. The share `rows[j]` of all rows is no longer
    than `points[j - 1]`; those rows bring `tokens[j]` tokens, divided by the number of all rows.
    Both are 0 at index 0."""

    points: tuple[int, ...]
    rows: tuple[float, ...]
    tokens: tuple[float, ...]

    @classmethod
    def of(cls, points: Sequence[int], weights: Sequence[float]) -> LengthShares:
        """From the weights of the points, at least one of which is positive."""
        total = sum(weights)
        shares = [weight / total for weight in weights]
        tokens = [share * point for share, point in zip(shares, points, strict=True)]
        running = (tuple(accumulate(each, initial=0.0)) for each in (shares, tokens))
        return cls(tuple(points), *running)

    def ends(self, edges: Sequence[int]) -> list[int]:
        """The edges as indices for `Price`: each is the number of points up to it; 0 comes
        first."""
        return [0, *(bisect_right(self.points, edge) for edge in edges)]


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """The bounds of a batch."""

    max_size: int  # rows
    max_tokens: int  # padded tokens
    longest_s: float  # predicted seconds, from two rows on
    cycle_s: float  # the longest time from one batch of a bucket to its next

    @classmethod
    def of(cls, settings: DispatcherSettings) -> BatchBounds:
        """The cycle is such that a row that has waited for all of it can still be answered in time
        by the longest batch; and it is no shorter than that batch."""
        longest_s = settings.max_slo_share * settings.slo_s
        cycle_s = max(longest_s, settings.slo_s - longest_s)
        size = settings.fixed_size or settings.max_size
        return cls(size, settings.max_tokens, longest_s, cycle_s)

    def fit(self, cost: Cost, edge: int) -> int:
        """Rows of a full batch in the bucket that ends at `edge`, at least 1."""
        most = max(1, min(self.max_size, self.max_tokens // edge))
        sizes = range(2, most + 1)
        return 1 + bisect_right(sizes, self.longest_s, key=lambda rows: cost(rows, edge))


def padding_price(lengths: LengthShares) -> Price:
    """Tokens a row when every row is padded to its bucket's edge."""
    points, rows = lengths.points, lengths.rows
    return lambda i, j: points[j - 1] * (rows[j] - rows[i])


class BatchPrices:
    """Device seconds a row, of a server that is never idle and serves its buckets in turn.

    Between two batches of a bucket lies one cycle, so a bucket with the share p of the rate R gives
    batches of p × R × cycle rows: at least 1, at most a full batch. A batch is as wide as its
    longest row, which lies between the bucket's mean (for one row) and its edge (for many), as if
    lengths within a bucket were uniform. Splitting a bucket costs the fixed part of a further
    batch; not splitting it costs padding.
    """

    def __init__(self, lengths: LengthShares, cost: Cost, bounds: BatchBounds) -> None:
        self.lengths = lengths
        self._cost = cost
        self._cycle_s = bounds.cycle_s
        self._fits = [float(bounds.fit(cost, point)) for point in lengths.points]

    def at(self, rate: float) -> Price:
        """Prices while `rate` rows a second arrive."""
        points, fits, cost = self.lengths.points, self._fits, self._cost
        rows, tokens, in_cycle = self.lengths.rows, self.lengths.tokens, rate * self._cycle_s

        def price(i: int, j: int) -> float:
            share = rows[j] - rows[i]
            if share <= 0.0:
                return 0.0
            size, fit = share * in_cycle, fits[j - 1]
            size = fit if size > fit else size if size > 1.0 else 1.0
            mean = (tokens[j] - tokens[i]) / share
            width = mean + (points[j - 1] - mean) * (size - 1.0) / (size + 1.0)
            return share * cost(size, width) / size

        return price

    def capacity(self, edges: Sequence[int], servers: float) -> float:
        """The highest rate, in rows a second, that `servers` servers keep up with, cycle after
        cycle."""
        ends = self.lengths.ends(edges)
        low, high = 0.0, servers / max(1e-12, total(self.at(inf), ends))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if middle * total(self.at(middle), ends) > servers:
                high = middle
            else:
                low = middle
        return low

    def floor(self) -> float:
        """Seconds a row if every batch were full and of one length only."""
        return total(self.at(inf), range(len(self.lengths.points) + 1))


def total(price: Price, ends: Sequence[int]) -> float:
    """The summed price of the buckets between these ends."""
    return sum(price(i, j) for i, j in pairwise(ends) if i < j)


def cheapest(
    price: Price, points: Sequence[int], most: int, worth: float = 1e-9
) -> tuple[int, ...]:
    """At most `most` edges with the least total price, the last one at the last point; fewer where
    more edges do not save the share `worth`. Exact except for `worth`; O(most × points²)."""
    count = len(points)
    prices = [[price(i, j) for i in range(j)] for j in range(1, count + 1)]
    least = [0.0] + [inf] * count  # price up to each index, with as many buckets as passes so far
    begins: list[list[int]] = []
    best, buckets = inf, 0
    for _ in range(most):
        sums = [list(map(add, least, row)) for row in prices]
        least = [inf, *map(min, sums)]
        begins.append(
            [0, *(each.index(value) for each, value in zip(sums, least[1:], strict=True))]
        )
        if least[count] < best * (1.0 - worth):
            best, buckets = least[count], len(begins)
    edges, end = [], count
    for begin in reversed(begins[:buckets]):
        edges.append(points[end - 1])
        end = begin[end]
    return tuple(reversed(edges))
