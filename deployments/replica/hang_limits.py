"""How long may a batch run, or an engine's step take, before it counts as hung?

A multiple of what was predicted and some seconds on top, but never more than a fixed limit; that
limit alone where nothing was predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.settings.model import ModelSettings

_FLOOR_S = 10.0  # besides a multiple of the prediction


@dataclass(frozen=True, slots=True)
class HangLimits:
    """`max_s`: seconds that anything may take. `factor`: it may take this many times its
    prediction, plus `_FLOOR_S`; 0: predictions are ignored."""

    max_s: float
    factor: float = 0.0

    def of(self, predicted_s: float) -> float:
        """Seconds that it may take. `predicted_s` 0: no prediction."""
        if self.factor <= 0.0 or predicted_s <= 0.0:
            return self.max_s
        return min(self.max_s, _FLOOR_S + self.factor * predicted_s)


def hang_limits(model: ModelSettings) -> HangLimits:
    return HangLimits(model.replicas.hang_limit_s, model.replicas.hang_factor)
