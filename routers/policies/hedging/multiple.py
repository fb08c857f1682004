"""After how long is a copy due? Once a batch has taken so many times what was predicted for it.

Nothing is learnt, so it hedges from the first batch on, and says the same of every bucket. Where
times scatter widely it copies much that is not slow for its kind; where they hardly scatter it
waits longer than it need. Source: speculative execution as in Spark (`spark.speculation.multiplier`
times the median) and MapReduce's backup tasks (OSDI'04), with the prediction for the median.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram


@dataclass(frozen=True, slots=True)
class MultipleDelay:
    multiple: float

    @classmethod
    def of(cls, settings: HedgeParameters) -> MultipleDelay:
        return cls(settings.multiple)

    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        return self.multiple * predicted_s if predicted_s > 0.0 else None
