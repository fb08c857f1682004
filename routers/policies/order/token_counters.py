"""Virtual token counters: the flow that has had the fewest tokens over its weight goes first.

For models that are paid by the token: what a batch or a long row really takes of the device plays
no part, nor does what a measurement says afterwards; only other gateways' work is known in seconds
alone, and counts as so many tokens as take that long in a full batch. A flow that was idle is
lifted to the counter of the one that is served, so it gets no credit for having slept and waits
behind nobody's backlog. Of a model that generates, tokens are weighted as `GenerationParameters`
says, and put right by those that were really produced. Source: Sheng et al., Fairness in Serving
Large Language Models (OSDI'24).
"""

from __future__ import annotations

from routers.api.settings import DispatcherSettings
from routers.policies.order.fair_queueing import FairQueueing


class TokenCounters(FairQueueing):
    """`token_s`: what a token counts, seconds, so that counters compare with what other gateways
    report; None: rows are priced in tokens already."""

    def __init__(self, token_s: float | None) -> None:
        self._token_s = token_s
        self.settles = token_s is None

    @classmethod
    def of(cls, settings: DispatcherSettings) -> TokenCounters:
        if settings.generation is not None:
            return cls(None)
        measured = max(settings.profile, default=(1, settings.bucket_edges[-1], 1.0))
        rows, width, seconds = measured
        return cls(seconds / (rows * width) if seconds > 0.0 else 1e-6)

    def price(self, length: int, cost_s: float) -> float:
        return cost_s if self._token_s is None else length * self._token_s

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        return max(virtual, start)
