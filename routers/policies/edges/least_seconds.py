"""Which edges take the fewest device seconds a row at the highest rate that the SLO permits?

By dynamic programming over the prices of single buckets, at the highest rate at which each bucket
is still served often enough for the SLO. Not at today's rate: edges hardly matter while a server
has time, and edges chosen in idle hours ruin the next rush. Waste is device seconds a row above
those of full batches of one length each. Decision: docs/decisions/0006-edges-minimise-seconds.md.
"""

from __future__ import annotations

from typing import Final

from routers.policies.edges.prices import BatchPrices, cheapest, total
from routers.policies.edges.types import BestEdges, EdgeView

# Of all seconds: what a further edge must save; less is within prices' rounding
_WORTH: Final = 0.003
_STEPS: Final = 3  # how often at most capacity and edges are improved in turn


class LeastSeconds:
    """The edges with the highest capacity."""

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
