"""After how long is a copy due? Once a batch is slower than most of its bucket lately were.

At a quantile of measured over predicted seconds in its bucket and group (95 % unless set), times
its own prediction: of batches that take as long as predicted one in twenty is copied, whatever the
prediction is worth. A bucket with too few measurements is not hedged. `fixed_s` is the fixed value
beside what is learnt: this delay, whatever was measured or predicted.
Sources: Dean and Barroso, The Tail at Scale (CACM'13): a copy at the 95th percentile of the class;
a fixed delay as gRPC's hedgingDelay (A6).
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram


@dataclass(frozen=True, slots=True)
class QuantileDelay:
    quantile: float
    min_samples: int
    fixed_s: float | None

    @classmethod
    def of(cls, settings: HedgeParameters) -> QuantileDelay:
        return cls(settings.quantile, settings.min_samples, settings.fixed_delay_s)

    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        if self.fixed_s is not None:
            return self.fixed_s
        if ratios is None or ratios.samples < self.min_samples:
            return None
        return ratios.quantile(self.quantile) * predicted_s
