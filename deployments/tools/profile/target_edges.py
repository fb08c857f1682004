"""Which edges would the core choose for these lengths, at these costs?

The solver that a gateway runs on its live histogram, run once on the lengths that were given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from deployments.tools.profile.fitting import Fitted
from routers.buckets.edges import lattice, least_padding, least_seconds
from routers.buckets.prices import BatchBounds, BatchPrices, LengthShares
from routers.settings import DispatcherSettings


def edges_for(
    core: DispatcherSettings, lengths: Sequence[int], fitted: Fitted, replicas: int
) -> tuple[int, ...]:
    """Ascending, the last is the longest row; () where the core would not choose any."""
    buckets, edges = core.buckets, core.bucket_edges
    if not (buckets.adaptive and core.pads and not buckets.fixed_shapes):
        return ()
    points = lattice(edges[-1], edges)
    weights = [0.0] * len(points)
    for length in lengths:
        weights[min(bisect_left(points, length), len(points) - 1)] += 1.0
    known = LengthShares.of(points, weights)
    if buckets.minimise == "padding":
        return least_padding(known, edges, buckets.max_edges).edges
    cost = fitted.model.predict
    if cost(1.0, points[0]) >= cost(1.0, points[-1]):
        return ()
    prices = BatchPrices(known, cost, BatchBounds.of(core))
    return least_seconds(prices, edges, buckets.max_edges, float(replicas)).edges
