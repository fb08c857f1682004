"""Which edges pad the fewest tokens, each row being padded to its bucket's edge?

Exactly, by dynamic programming. What a further batch costs does not count, so all the edges that
are allowed are used; costs and SLO play no part. Waste is padded tokens a row. Source: partition of
an ordered line at the least cost (Fisher, JASA 1958); as boundaries for TensorFlow's
`bucket_by_sequence_length`.
"""

from __future__ import annotations

from routers.policies.edges.prices import cheapest, padding_price, total
from routers.policies.edges.types import BestEdges, EdgeView


class LeastPadding:
    """The edges with the fewest padded tokens a row."""

    def best(self, view: EdgeView) -> BestEdges | None:
        price, points = padding_price(view.lengths), view.lengths.points
        best = cheapest(price, points, view.most)
        floor = total(price, range(len(points) + 1))
        now, then = (total(price, view.lengths.ends(each)) - floor for each in (view.edges, best))
        return BestEdges(best, now, then)
