"""How long do first tokens take, as a multiple of the prediction for them?

By bucket, over one group's replicas, as `Hedging` keeps it for batches. The prediction already
counts the prompts that are read before, so the ratios show how engines vary. A request that was
given up after its delay counts as having taken at least so long: if it were left out, the quantile
that tells slow requests would lack the slow ones.
"""

from __future__ import annotations

from typing import Final

from routers.estimates.ratio_histogram import RatioHistogram

_MAX_BUCKETS: Final = 64


class FirstTokens:
    """Histograms of measured over predicted seconds, by bucket."""

    def __init__(self) -> None:
        self._ratios: dict[int, RatioHistogram] = {}

    def observe(self, edge: int, seconds: float, predicted_s: float) -> None:
        """A first token of the bucket `edge` came `seconds` after its replica had begun with the
        request."""
        if predicted_s <= 0.0:
            return
        ratios = self._ratios.get(edge)
        if ratios is None:
            if len(self._ratios) >= _MAX_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[edge] = RatioHistogram()
        ratios.observe(seconds / predicted_s)

    def ratios(self, edge: int) -> RatioHistogram | None:
        """Those of a bucket; None: none was measured."""
        return self._ratios.get(edge)
