"""How far do measured batches scatter around what was predicted of them?

A ring of the last 256 quotients measured / predicted, and their quantiles, found anew every 16
samples. A batch over `HICCUP` times its prediction says nothing of how long ordinary ones take and
is left out: nothing can be planned for it (a hedge waits for those). Until 16 batches were measured
every quantile is 1.
"""

from __future__ import annotations

from collections import deque
from math import log

HICCUP = 4.0
_RING = 256
_EVERY = 16
_LEAST_NOISE = 0.3
_MOST_NOISE = 1.0


def at_quantile(ordered: list[float], quantile: float) -> float:
    return ordered[round(quantile * (len(ordered) - 1))]


class Spread:
    """`noise`: a batch this far (log) from what is expected of it may still be an ordinary one."""

    def __init__(self) -> None:
        self.median = 1.0
        self.p99 = 1.0
        self.noise = _LEAST_NOISE
        self._ring: deque[float] = deque(maxlen=_RING)
        self._ordered: list[float] = [1.0]
        self._seen = 0

    def quantile(self, quantile: float) -> float:
        if quantile == 0.5:
            return self.median
        return self.p99 if quantile == 0.99 else at_quantile(self._ordered, quantile)

    def observe(self, quotient: float) -> None:
        if not 1.0 / HICCUP <= quotient <= HICCUP:
            return
        self._ring.append(quotient)
        self._seen += 1
        if self._seen % _EVERY == 0:
            self._ordered = sorted(self._ring)
            self._read()

    def _read(self) -> None:
        ordered = self._ordered
        self.median = at_quantile(ordered, 0.5)
        self.p99 = max(self.median, at_quantile(ordered, 0.99))
        noise = 1.2 * log(at_quantile(ordered, 0.9) / at_quantile(ordered, 0.1))
        self.noise = max(_LEAST_NOISE, min(_MOST_NOISE, noise))
