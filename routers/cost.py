"""How many seconds will a batch take on the device?

T = a + b·tokens with a, b >= 0 and tokens = rows x width, one line a model, fitted online by least
squares that forgets (half of the weight lies on the last 34 batches), times a ratio a replica
(EWMA). Samples are capped at a multiple of their prediction, so that one hiccup does not bend the
line while a lasting change is followed within a few batches. Unit: seconds of device time; waiting
and transport are not its business. Source: Clockwork (OSDI'20) for predicting from recent batches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_KEEP = 0.98  # weight of the past at each sample
_RATIO_GAIN = 0.05
_TRUSTED_SAMPLES = 8.0  # before that nothing is capped
_CAP = 3.0
_RING = 256


@dataclass(frozen=True, slots=True)
class CostError:
    """Relative error |observed - predicted| / observed over the last `samples` batches."""

    median: float
    p99: float
    samples: int


@dataclass(slots=True)
class _Sums:
    """Forgetting sums of weight, x, x², y and x·y."""

    w: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        self.w = self.w * _KEEP + 1.0
        self.x = self.x * _KEEP + x
        self.xx = self.xx * _KEEP + x * x
        self.y = self.y * _KEEP + y
        self.xy = self.xy * _KEEP + x * y

    def line(self) -> tuple[float, float]:
        """(a, b) >= 0 of the best fit; a constant while all batches have had one size."""
        spread = self.w * self.xx - self.x * self.x
        if spread <= 1e-9 * self.w * self.xx:
            return self.y / self.w, 0.0
        b = (self.w * self.xy - self.x * self.y) / spread
        if b <= 0.0:
            return self.y / self.w, 0.0
        a = (self.y - b * self.x) / self.w
        return (a, b) if a >= 0.0 else (0.0, self.xy / self.xx)


class CostModel:
    """One model's cost. `initial_s` is the prediction until a batch has been measured."""

    def __init__(self, initial_s: float = 0.0) -> None:
        self._initial_s = initial_s
        self._sums = _Sums()
        self._line = (initial_s, 0.0)
        self._ratios: dict[str, float] = {}
        self._errors: deque[float] = deque(maxlen=_RING)

    @property
    def measured(self) -> bool:
        return self._sums.w > 0.0

    def predict(self, rows: int, width: int, replica_id: str = "") -> float:
        """Device seconds of a batch; `width` is its longest row (packed batches: its mean)."""
        a, b = self._line
        return (a + b * rows * width) * self._ratios.get(replica_id, 1.0)

    def observe(
        self, rows: int, width: int, service_s: float, *, predicted_s: float, replica_id: str = ""
    ) -> None:
        """A batch took `service_s`; `predicted_s` is what was said when it was sent."""
        if service_s <= 0.0:
            return
        if self.measured or self._initial_s > 0.0:
            self._errors.append(abs(service_s - predicted_s) / service_s)
        expected_s = self.predict(rows, width)
        trusted = self._sums.w >= _TRUSTED_SAMPLES and expected_s > 0.0
        if trusted:
            ratio = self._ratios.get(replica_id, 1.0)
            seen = min(_CAP, max(1.0 / _CAP, service_s / expected_s))
            self._ratios[replica_id] = ratio + _RATIO_GAIN * (seen - ratio)
            service_s = min(service_s, _CAP * expected_s)
        self._sums.add(rows * width, service_s)
        self._line = self._sums.line()

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._ratios.pop(replica_id, None)

    def error(self) -> CostError:
        ordered = sorted(self._errors)
        if not ordered:
            return CostError(0.0, 0.0, 0)
        last = len(ordered) - 1
        return CostError(ordered[last // 2], ordered[round(last * 0.99)], len(ordered))
