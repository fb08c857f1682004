"""Which bucket edges are best for the lengths that arrive?

A policy is asked once in a while, with the shares of the lengths that lately arrived. It changes
nothing: whether its answer comes into force is decided by `shared.edges.EdgeSolver`, from the waste
of the edges in force and of the best ones. A policy counts that waste in a unit of its own, but
both in the same. Policies have no state, and are named in a model's settings (`policies.edges`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from routers.estimates.edge_prices import (
    BatchBounds,
    BatchPrices,
    Cost,
    LengthShares,
    cheapest,
    padding_price,
    total,
)


@dataclass(frozen=True, slots=True)
class EdgeView:
    """What edges are chosen by."""

    lengths: LengthShares  # edges are chosen from its points; the last is the longest row allowed
    edges: tuple[int, ...]  # in force; the last is the longest row allowed
    most: int  # edges at most, at least 1
    cost: Cost
    bounds: BatchBounds
    servers: float  # replicas that work for this gateway


@dataclass(frozen=True, slots=True)
class BestEdges:
    """The best edges, with the waste of the edges in force (`waste`) and of the best ones
    (`min_waste`). `capacity`: rows a second that the best ones serve; 0: the policy does not
    ask."""

    edges: tuple[int, ...]
    waste: float
    min_waste: float
    capacity: float = 0.0


class EdgePolicy(Protocol):
    def best(self, view: EdgeView) -> BestEdges | None:
        """At most `view.most` edges, ascending, the last one the longest row allowed; None: nothing
        can be said yet. Asked about its own answer it finds nothing better."""
        ...


# Of all seconds: what a further edge must save; less is within prices' rounding
_WORTH: Final = 0.003
_STEPS: Final = 3  # how often at most capacity and edges are improved in turn


class LeastSeconds:
    """The edges with the fewest device seconds a row at the highest rate that the SLO permits.

    By dynamic programming over the prices of single buckets, at the highest rate at which each
    bucket is still served often enough for the SLO. Not at today's rate: edges hardly matter while
    a server has time, and edges chosen in idle hours ruin the next rush. Waste is device seconds a
    row above those of full batches of one length each.
    Decision: docs/decisions/0006-edges-minimise-seconds.md.
    """

    def best(self, view: EdgeView) -> BestEdges | None:
        """None while no cost by length has been learnt. The cheapest edges at the capacity of
        others have a higher capacity than those, so edges and capacity are computed in turn until
        nothing changes."""
        lengths, cost = view.lengths, view.cost
        if not cost(1.0, lengths.points[0]) < cost(1.0, lengths.points[-1]):
            return None
        prices = BatchPrices(lengths, cost, view.bounds)
        best, rate = view.edges, prices.capacity(view.edges, view.servers)
        for _ in range(_STEPS):
            better = cheapest(prices.at(rate), lengths.points, view.most, _WORTH)
            if better == best:
                break
            best, rate = better, prices.capacity(better, view.servers)
        price, floor = prices.at(rate), prices.floor()
        now, then = (total(price, lengths.ends(each)) - floor for each in (view.edges, best))
        return BestEdges(best, now, then, rate)


class LeastPadding:
    """The edges with the fewest padded tokens, each row being padded to its bucket's edge.

    Exactly, by dynamic programming. What a further batch costs does not count, so all the edges
    that are allowed are used; costs and SLO play no part. Waste is padded tokens a row. Source:
    partition of an ordered line at the least cost (Fisher, JASA 1958); as boundaries for
    TensorFlow's `bucket_by_sequence_length`.
    """

    def best(self, view: EdgeView) -> BestEdges | None:
        price, points = padding_price(view.lengths), view.lengths.points
        best = cheapest(price, points, view.most)
        floor = total(price, range(len(points) + 1))
        now, then = (total(price, view.lengths.ends(each)) - floor for each in (view.edges, best))
        return BestEdges(best, now, then)


class Quantiles:
    """Edges that give every bucket the same number of rows, fewer where one length has more than
    its part.

    Edges at the quantiles 1/K, 2/K … of the lengths that arrive, each at the point of the lattice
    that comes nearest. Neither padding nor costs play a part: short lengths, of which there are
    many, get narrow buckets, and rare long ones share a wide one. Waste is the share of the rows
    that are in a bucket beyond an equal part. Source: equal-frequency binning (Dougherty, Kohavi
    and Sahami, ICML'95).
    """

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
