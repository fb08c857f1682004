"""How long do batches and first tokens take, as a multiple of the prediction for them?"""

from __future__ import annotations

from math import log
from typing import Final

# Of the histogram of ratios:
_BIN_WIDTH: Final = log(1.05)
_MIN_RATIO: Final = 0.25
_MAX_RATIO: Final = 64.0
_BINS: Final = int(log(_MAX_RATIO / _MIN_RATIO) / _BIN_WIDTH) + 2
# Each sample weighs so much more than the one before: half-life 460 samples
_GROWTH: Final = 1.0015
_TOO_HEAVY: Final = 1e12  # weight at which all weights are divided
_REUSE: Final = 8  # samples for which a quantile is used again


class RatioHistogram:
    """Measured over predicted seconds, in bins of 5 %.

    The past fades: half of the weight lies on the last few hundred batches. A quantile costs one
    look at the bins at most, and is the upper edge of its bin, so never less than the true one.
    `samples`: how many there ever were.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._bins = [0.0] * _BINS
        self._weight = 1.0
        self._read: tuple[float, int, float] = (-1.0, 0, 0.0)

    def observe(self, ratio: float) -> None:
        """A batch took `ratio` times its prediction."""
        self.samples += 1
        self._weight *= _GROWTH
        self._bins[_bin(ratio)] += self._weight
        if self._weight > _TOO_HEAVY:
            self._bins = [weight / self._weight for weight in self._bins]
            self._weight = 1.0

    def quantile(self, share: float) -> float:
        """Upper edge of the bin in which the quantile lies; 0.0 without samples."""
        last_share, last_samples, ratio = self._read
        if share != last_share or not self.samples < last_samples + _REUSE:
            ratio = self._find(share)
            self._read = share, self.samples, ratio
        return ratio

    def _find(self, share: float) -> float:
        left = (1.0 - share) * sum(self._bins)
        if not self.samples:
            return 0.0
        for index in range(_BINS - 1, -1, -1):
            left -= self._bins[index]
            if left < 0.0:
                return float(_MIN_RATIO * 1.05**index)
        return _MIN_RATIO


def _bin(ratio: float) -> int:
    """The first bin whose upper edge is at or above the ratio."""
    if ratio <= _MIN_RATIO:
        return 0
    return min(_BINS - 1, int(-(-log(ratio / _MIN_RATIO) // _BIN_WIDTH)))


_MAX_BUCKETS: Final = 64


class FirstTokens:
    """Histograms of first tokens' measured over predicted seconds, by bucket.

    Over one group's replicas, as `policies.hedging` keeps it for batches. The prediction already
    counts the prompts that are read before, so the ratios show how engines vary. A request that was
    given up after its delay counts as having taken at least so long: if it were left out, the
    quantile that tells slow requests would lack the slow ones.
    """

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
