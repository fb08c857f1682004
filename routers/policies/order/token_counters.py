"""Whose turn is it among flows? Virtual token counters: fewest tokens over weight goes first.

For models that are paid by the token. What a batch or a long row really takes of the device plays
no part, nor does a later measurement. Only work at other gateways is known in seconds alone; it
counts as the number of tokens that take so long in a full batch. A flow that was idle is lifted to
the counter of the flow that is served: it gets no credit for the time it was idle, and waits behind
nobody's backlog. Tokens of a model that generates are weighted as `GenerationParameters` says, and
predicted output is corrected by the tokens really produced.

Source: Sheng et al., Fairness in Serving Large Language Models (OSDI'24).
"""

from __future__ import annotations

from routers.api.settings import DispatcherSettings
from routers.policies.order.fair_queueing import FairQueueing


class TokenCounters(FairQueueing):
    """`token_s`: seconds that a token counts as, so that counters compare with what other gateways
    report; None: rows are priced in tokens already."""

    def __init__(self, token_s: float | None) -> None:
        super().__init__(settles=token_s is None)
        self._token_s = token_s

    @classmethod
    def of(cls, settings: DispatcherSettings) -> TokenCounters:
        """A token counts the seconds that it takes in the widest of the profile's batches with most
        rows; without a profile, one second over the longest length."""
        if settings.generation is not None:
            return cls(None)
        measured = max(settings.profile, default=(1, settings.bucket_edges[-1], 1.0))
        rows, width, seconds = measured
        return cls(seconds / (rows * width) if seconds > 0.0 else 1e-6)

    def price(self, length: int, cost_s: float) -> float:
        return cost_s if self._token_s is None else length * self._token_s

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        return max(virtual, start)
