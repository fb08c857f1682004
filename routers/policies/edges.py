"""Where should the buckets end, so that the lengths that arrive take the fewest device seconds?

At most K edges out of a lattice. `EdgeSolver` counts the lengths that arrive in a histogram whose
weights halve every half-life, and solves for the best edges from time to time: by dynamic
programming over the prices of single buckets, at the highest rate at which each bucket is still
served often enough for the SLO. Not at today's rate: edges hardly matter while a server has time,
and edges chosen in idle hours ruin the next rush. Edges change when that removes a good part of the
waste, and only for rows that arrive later. It does nothing where shapes are fixed or nothing is
padded. Decision: docs/decisions/0006-edges-minimise-seconds.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from operator import add

from routers.api.settings import DispatcherSettings

# Of the lattice and the histogram:
_MAX_POINTS = 64  # lengths of the lattice
_WIDEST_TILE = 8  # tokens: lengths of the lattice are multiples of at most this
_RESCALE = 2.0**60  # new rows weigh more, old ones do not decay; all are divided at this weight
_MIN_ROWS = 500.0  # in the histogram, before edges are chosen by it

# Of the solution:
_WORTH = 0.003  # of all seconds: what a further edge must save; less is within prices' rounding
_STEPS = 3  # how often at most capacity and edges are improved in turn
_BISECTIONS = 16  # for the capacity: precise to 2^-16 of its upper bound

Cost = Callable[[float, float], float]
"""Predicted device seconds of a batch: (rows, width in tokens)."""

Price = Callable[[int, int], float]
"""What one bucket costs that holds the points with indices from i up to, but not including, j;
i < j."""


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
    (`min_waste`): device seconds a row above those of full batches of one length each. `capacity`:
    rows a second that the best ones serve."""

    edges: tuple[int, ...]
    waste: float
    min_waste: float
    capacity: float


def best_edges(view: EdgeView) -> BestEdges | None:
    """The edges with the highest capacity; None while no cost by length has been learnt. The
    cheapest edges at the capacity of others have a higher capacity than those, so edges and
    capacity are computed in turn until nothing changes. Asked about its own answer it finds nothing
    better."""
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


def lattice(longest: int, also: Iterable[int] = ()) -> tuple[int, ...]:
    """The lengths that edges may be chosen from, ascending, the last one `longest`: 64 at most, and
    those of `also` that are shorter than `longest`.

    If 64 multiples of a tile (1 to 8 tokens) reach `longest`, all of those; else multiples of the
    tile that grow by a tile first and then by a constant factor.
    """
    tile = 1
    while tile < _WIDEST_TILE and tile * _MAX_POINTS < longest:
        tile *= 2
    growth = _growth(longest, tile)
    return tuple(sorted({*_points(longest, tile, growth), *(p for p in also if p < longest)}))


def _growth(longest: int, tile: int) -> float:
    """The least factor by which 64 points reach `longest`."""
    if tile * _MAX_POINTS >= longest:
        return 1.0
    low, high = 1.0, 2.0
    while len(_points(longest, tile, high)) > _MAX_POINTS:
        high *= 2.0
    for _ in range(30):
        middle = (low + high) / 2
        if len(_points(longest, tile, middle)) > _MAX_POINTS:
            low = middle
        else:
            high = middle
    return high


def _points(longest: int, tile: int, growth: float) -> list[int]:
    points = [min(tile, longest)]
    while points[-1] < longest and len(points) <= _MAX_POINTS:
        grown = int(points[-1] * growth) // tile * tile
        points.append(min(longest, max(points[-1] + tile, grown)))
    return points


class LengthHistogram:
    """Weights on a fixed lattice of lengths, in which a row's weight halves every half-life.

    The lattice is fixed, so that shapes that were compiled are met again when edges change, and
    small, so that the solver may look at all pairs. A length is counted at the next of the
    ascending `points`; one above the last point, at the last. The histogram knows the share of each
    length, not the rate at which rows come. Work a row: one bisection.
    """

    def __init__(self, points: tuple[int, ...], half_life_s: float) -> None:
        self.points = points
        self.half_life_s = half_life_s
        self._weights = [0.0] * len(points)
        self._origin: float | None = None  # when a new row weighs 1

    def observe(self, length: int, now: float) -> None:
        """A row of this length arrived."""
        index = min(bisect_left(self.points, length), len(self.points) - 1)
        weight = self._weight(now)  # may replace the list
        self._weights[index] += weight

    def weights(self, now: float) -> tuple[float, ...]:
        """Rows by point: a row that has just arrived counts 1, one of a half-life ago 1/2."""
        unit = self._weight(now)
        return tuple(weight / unit for weight in self._weights)

    def _weight(self, now: float) -> float:
        """The weight of a row that arrives now. May replace the list of weights."""
        if self._origin is None:
            self._origin = now
        weight: float = 2.0 ** min(1000.0, (now - self._origin) / self.half_life_s)
        if weight < _RESCALE:
            return weight
        self._weights = [each / weight for each in self._weights]
        self._origin = now
        return 1.0


@dataclass(frozen=True, slots=True)
class EdgeState:
    """What the solver last found."""

    rows: float = 0.0  # in the histogram, after decay
    waste: float = 0.0  # of the edges in force, device seconds a row
    min_waste: float = 0.0  # the same of the best edges
    capacity: float = 0.0  # rows a second that the best edges serve
    switches: int = 0  # changes of edges, ever


class EdgeSolver:
    """Chooses one model's edges as its traffic changes. `watches`: whether it counts and solves at
    all."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.state = EdgeState()
        self._histogram = LengthHistogram((), 1.0)
        self._next_at: float | None = None
        self.adopt(settings)

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under new settings. The histogram is kept while the lattice and the half-life stay
        the same."""
        buckets, edges = settings.buckets, settings.bucket_edges
        self._buckets = buckets
        self._bounds = BatchBounds.of(settings)
        acts = buckets.adaptive and settings.pads and not buckets.fixed_shapes
        self.watches = acts and not settings.frozen
        points = lattice(edges[-1], edges)
        if (points, buckets.half_life_s) != (self._histogram.points, self._histogram.half_life_s):
            self._histogram = LengthHistogram(points, buckets.half_life_s)

    def observe(self, length: int, now: float) -> None:
        """A row of this length arrived; O(1)."""
        if not self.watches:
            return
        if self._next_at is None:
            self._next_at = now + self._buckets.solve_every_s
        self._histogram.observe(length, now)

    def due(self, now: float) -> bool:
        """Whether it is time to solve again."""
        at = self._next_at
        return at is not None and now >= at and self.watches

    def solve(
        self, edges: tuple[int, ...], cost: Cost, now: float, servers: float = 1.0
    ) -> tuple[int, ...] | None:
        """Better edges than these, or None; the longest length stays. `servers`: how many replicas
        work for this gateway. Takes some milliseconds."""
        self._next_at = now + self._buckets.solve_every_s
        weights = self._histogram.weights(now)
        rows = sum(weights)
        if rows < _MIN_ROWS or servers <= 0.0:
            return None
        lengths = LengthShares.of(self._histogram.points, weights)
        view = EdgeView(lengths, edges, self._buckets.max_edges, cost, self._bounds, servers)
        found = best_edges(view)
        return None if found is None else self._judge(found, edges, rows)

    def _judge(
        self, found: BestEdges, edges: tuple[int, ...], rows: float
    ) -> tuple[int, ...] | None:
        """Record what was found. Returns the best edges if they are enough of a gain, or if there
        are too many edges now."""
        buckets = self._buckets
        too_many = len(edges) > buckets.max_edges
        better = too_many or found.min_waste < (1.0 - buckets.min_gain) * found.waste
        switches = self.state.switches + better
        self.state = EdgeState(rows, found.waste, found.min_waste, found.capacity, switches)
        return found.edges if better else None
