"""Where should the buckets end, given the lengths that arrive?

At most K edges out of a lattice. `EdgeSolver` counts the lengths that arrive in a histogram whose
weights halve every half-life, and asks a policy (`EdgePolicy`, chosen by name) for the best edges
from time to time. Edges change when that removes a good part of the waste, and only for rows that
arrive later. It does nothing where shapes are fixed or nothing is padded.

Compare BucketServe (arXiv 2507.17120), which bisects buckets by what waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from routers.api.settings import DispatcherSettings, length_bounds
from routers.estimates.edge_prices import BatchBounds, Cost, LengthShares
from routers.policies.edges import BestEdges, EdgePolicy, EdgeView

# Of the lattice and the histogram:
_MAX_POINTS: Final = 64  # lengths of the lattice
_WIDEST_TILE: Final = 8  # tokens: lengths of the lattice are multiples of at most this
# New rows weigh more, old ones do not decay; all are divided at this weight.
_RESCALE: Final = 2.0**60
_MIN_ROWS: Final = 500.0  # in the histogram, before edges are chosen by it


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
    waste: float = 0.0  # of the edges in force, as the policy counts it
    min_waste: float = 0.0  # the same of the best edges
    capacity: float = 0.0  # rows a second that the best edges serve; 0: the policy does not ask
    switches: int = 0  # changes of edges, ever


class EdgeSolver:
    """Chooses one model's edges as its traffic changes. `watches`: whether it counts and solves at
    all."""

    def __init__(self, settings: DispatcherSettings, policy: EdgePolicy) -> None:
        self.state = EdgeState()
        self._histogram = LengthHistogram((), 1.0)
        self._next_at: float | None = None
        self.adopt(settings, policy)

    def adopt(self, settings: DispatcherSettings, policy: EdgePolicy) -> None:
        """Go on under new settings and the policy that they name. The histogram is kept while the
        lattice and the half-life stay the same."""
        buckets, edges = settings.buckets, settings.bucket_edges
        self._buckets, self._policy = buckets, policy
        self._kept = length_bounds(settings)  # lengths that are edges whatever arrives
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
        most = max(1, self._buckets.max_edges - len(self._kept))
        view = EdgeView(lengths, edges, most, cost, self._bounds, servers)
        found = self._policy.best(view)
        return None if found is None else self._judge(found, edges, rows)

    def _judge(
        self, found: BestEdges, edges: tuple[int, ...], rows: float
    ) -> tuple[int, ...] | None:
        """Record what was found. Returns the best edges if they are enough of a gain, or if there
        are too many edges now."""
        buckets, best = self._buckets, tuple(sorted({*found.edges, *self._kept}))
        too_many = len(edges) > max(buckets.max_edges, len(self._kept) + 1)
        better = too_many or found.min_waste < (1.0 - buckets.min_gain) * found.waste
        switches = self.state.switches + better
        self.state = EdgeState(rows, found.waste, found.min_waste, found.capacity, switches)
        return best if better else None
