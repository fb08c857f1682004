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
        wait_s, kept = forecast.wait_s, exp((self._at - now) / _WINDOW_S)
        self._at = now
        self._weight = weight = self._weight * kept + 1.0
        self._product = product = self._product * kept + wait_s * actual_s
        self._square = square = self._square * kept + wait_s * wait_s
        prior = weight * (_PRIOR * forecast.slack_s) ** 2 + 1e-12
        scale = (product + prior) / (square + prior)
        if not _LEAST_SCALE <= scale <= _MOST_SCALE:
            scale = _LEAST_SCALE if scale < _LEAST_SCALE else _MOST_SCALE
        self.scale = scale
        self._learn_margin(actual_s - wait_s * scale, _STEP * _WINDOW_S / weight)

    def _learn_margin(self, off_s: float, step: float) -> None:
        """The corrected wait was too short by `off_s`; `step`: mean errors to move by, at most."""
        margin_s = self.margin_s
        self.error_s = error_s = self.error_s + _ERROR_GAIN * (abs(off_s) - self.error_s)
        moved_s = error_s * (step if step < _MOST_STEP else _MOST_STEP)
        margin_s += moved_s * (QUANTILE if off_s > margin_s else QUANTILE - 1.0)
        if margin_s > _MOST_ERRORS * error_s:
            margin_s = _MOST_ERRORS * error_s
        self.margin_s = margin_s if margin_s > 0.0 else 0.0
