"""What a hedging policy is asked, and what it answers.

It says after how long a copy is due, of a batch (`batches` asks) and of a request that generates
(`stream_hedging` asks). It reads no clock and changes nothing. Whether copies are sent at all
(`hedge.mode`), to whom, and what they may cost is not its question.
"""

from __future__ import annotations

from typing import Protocol

from routers.estimates.ratio_histogram import RatioHistogram


class HedgeDelay(Protocol):
    def delay_s(self, predicted_s: float, ratios: RatioHistogram | None) -> float | None:
        """Seconds after which a copy is due, from when the batch was expected to start, or from
        when an engine got the prompt; None: never, as far as is known now. `predicted_s`: of this
        batch, or to this first token; `ratios`: measured over predicted seconds of its bucket in
        its group, None: none was measured."""
        ...
