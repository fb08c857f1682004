"""After how long is a copy due, of a batch or of a request that generates?

`batch.hedging` and `stream.first_tokens` ask. Whether copies are sent at all (`hedge.mode`), to
whom, and what they may cost is not the question. Sources: Dean and Barroso, The Tail at Scale
(CACM'13): a copy at the 95th percentile of the class; a fixed delay as gRPC's hedgingDelay (A6).
"""

from __future__ import annotations

from abc import abstractmethod

from routers.api.settings import HedgeParameters
from routers.estimates.ratio_histogram import RatioHistogram


class HedgeDelay:
    """After how long is a copy due?"""

    @abstractmethod
    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        """Seconds after which a copy is due, from when the batch was expected to start, or from
        when an engine got the prompt; None: never, as far as is known now. `predicted_s`: of this
        batch, or to this first token; `ratios`: measured over predicted seconds of its bucket in
        its group, None: none was measured."""


class QuantileDelay(HedgeDelay):
    """Once it is slower than most of its bucket lately were: at a quantile of measured over
    predicted seconds in its bucket and group, times its own prediction.

    Of batches that take as long as predicted one in twenty is copied (95 % unless set), whatever
    the prediction is worth. A bucket with too few measurements is not hedged. `fixed_s`: this
    delay, whatever was measured or predicted.
    """

    def __init__(self, quantile: float, min_samples: int, fixed_s: float | None) -> None:
        self.quantile, self.min_samples, self.fixed_s = quantile, min_samples, fixed_s

    @classmethod
    def of(cls, settings: HedgeParameters) -> QuantileDelay:
        return cls(settings.quantile, settings.min_samples, settings.fixed_delay_s)

    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        if self.fixed_s is not None:
            return self.fixed_s
        if ratios is None or ratios.samples < self.min_samples:
            return None
        return ratios.quantile(self.quantile) * predicted_s


class MultipleDelay(HedgeDelay):
    """Once so many times what was predicted has passed.

    Nothing is learnt, so it hedges from the first batch on, and says the same of every bucket.
    Where times scatter widely it copies much that is not slow for its kind; where they hardly
    scatter it waits longer than it need. Source: speculative execution as in Spark and MapReduce's
    backup tasks (OSDI'04), with the prediction for the median.
    """

    def __init__(self, multiple: float) -> None:
        self.multiple = multiple

    @classmethod
    def of(cls, settings: HedgeParameters) -> MultipleDelay:
        return cls(settings.multiple)

    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        return self.multiple * predicted_s if predicted_s > 0.0 else None
