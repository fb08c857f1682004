"""How long do first tokens take, as a multiple of what was predicted for them?

By bucket, of one group's replicas, as `Hedging` keeps it of batches: the prediction knows the
prompts that are read before, so what is left is how engines scatter. A request that was given up
after its delay counts as one that took at least so long: left out, slow ones would be missing from
the quantile that calls them slow.
"""

from __future__ import annotations

from routers.estimates.ratio_histogram import RatioHistogram

_MOST_BUCKETS = 64


class FirstTokens:
    def __init__(self) -> None:
        self._ratios: dict[int, RatioHistogram] = {}

    def observe(self, edge: int, seconds: float, predicted_s: float) -> None:
        """Of a bucket, by its upper edge. Seconds from when its replica began with it."""
        if predicted_s <= 0.0:
            return
        ratios = self._ratios.get(edge)
        if ratios is None:
            if len(self._ratios) >= _MOST_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[edge] = RatioHistogram()
        ratios.observe(seconds / predicted_s)

    def ratio(self, edge: int, quantile: float, min_samples: int) -> float | None:
        """Not exceeded by this share of them; None: fewer were measured."""
        ratios = self._ratios.get(edge)
        if ratios is None or ratios.samples < min_samples:
            return None
        return ratios.quantile(quantile)
