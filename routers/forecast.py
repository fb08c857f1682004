"""How wrong have forecasts of queue wait lately been?

One account a flow. `scale` corrects what is wrong in proportion (batches fuller or emptier than
weighed): least squares through the origin of actual on forecast waits, with 1 as a prior that
outweighs forecasts below a quarter of the time there was. `margin_s` covers what is left: a running
98 % quantile of actual less corrected wait, moved by a step a sample that shrinks as samples come
faster, so that a burst of them does not overshoot. It is used up to half of the time there is: a
flow with nothing waiting is never called late. What left the queue as late counts as having waited
until then. Chosen by simulation, see docs/policies/admission.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

QUANTILE = 0.98
_WINDOW_S = 2.0
_PRIOR = 0.25  # of the time there was
_LEAST_SCALE, _MOST_SCALE = 0.2, 2.0
_ERROR_GAIN = 0.05
_STEP = 3.0  # mean errors that the margin may move in a second of misses, about
_MOST_STEP = 0.1  # mean errors, in one sample
_MOST_ERRORS = 5.0  # the margin is at most so many mean errors
_MOST_MARGIN = 0.5  # of the time there is


@dataclass(slots=True)
class Forecast:
    """Predicted seconds until a newcomer is started, of the `slack_s` there are until its latest
    start; `late_by_s` more than there are. 0.0: it is on time."""

    wait_s: float
    slack_s: float
    late_by_s: float = 0.0


@dataclass(slots=True)
class ForecastError:
    """Sums forget over 2 s; `error_s` is the mean absolute error after `scale`."""

    scale: float = 1.0
    margin_s: float = 0.0
    error_s: float = 0.0
    _weight: float = 0.0
    _product: float = 0.0
    _square: float = 0.0
    _at: float = 0.0

    def corrected_s(self, wait_s: float, slack_s: float, trust: float = 1.0) -> float:
        """The wait to count with: with all of the margin (`trust` 1) exceeded by about one in
        fifty, with none of it by half."""
        corrected_s = wait_s * self.scale
        if trust > 0.0 and slack_s > 0.0:
            corrected_s += trust * min(self.margin_s, _MOST_MARGIN * slack_s)
        return corrected_s

    def learn(self, forecast: Forecast, actual_s: float, now: float) -> None:
        self._learn_scale(forecast, actual_s, now)
        off = actual_s - forecast.wait_s * self.scale
        self.error_s += _ERROR_GAIN * (abs(off) - self.error_s)
        step = min(_MOST_STEP, _STEP * _WINDOW_S / self._weight) * self.error_s
        missed = off > self.margin_s
        moved = self.margin_s + step * (QUANTILE if missed else QUANTILE - 1.0)
        self.margin_s = max(0.0, min(_MOST_ERRORS * self.error_s, moved))

    def _learn_scale(self, forecast: Forecast, actual_s: float, now: float) -> None:
        kept = exp((self._at - now) / _WINDOW_S)
        self._at = now
        self._weight = self._weight * kept + 1.0
        self._product = self._product * kept + forecast.wait_s * actual_s
        self._square = self._square * kept + forecast.wait_s * forecast.wait_s
        prior = self._weight * (_PRIOR * forecast.slack_s) ** 2 + 1e-12
        scale = (self._product + prior) / (self._square + prior)
        self.scale = max(_LEAST_SCALE, min(_MOST_SCALE, scale))
