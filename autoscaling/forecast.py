"""How much work a second should be planned for, for the time when a replica ordered now serves?

That time is the *horizon*: the model's measured time to capacity. Each minute two candidates say
what they expect: persistence (the median of the last five minutes, so that a burst does not count)
and Holt-Winters smoothing with a season. Each is scored by its residuals at the horizon, and plans
for the `quantile` of them. The loss is the pinball loss of that plan, over about the last six
hours. The season is used only after two periods, and while its loss is 5 % below persistence's
(`trusted`). The plan never exceeds three times the busiest minute of the last hour. Values are
reference seconds of work a second. Source: Gardner and McKenzie (1985); Hyndman and Athanasopoulos,
*Forecasting*, chapter 8.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, isfinite, sqrt
from statistics import fmean, median
from typing import Any

from autoscaling.demand import LONGEST_WINDOW_S, Demand, DemandView
from autoscaling.settings import PolicySettings

# Of the smoothing:
SEASON_BINS = 288
_LEVEL, _TREND, _SEASON, _DAMPING = 0.2, 0.05, 0.1, 0.95
_CLIP_DEVIATIONS = 5.0
_ERRORS = 60
_BURST = 10

# Of the candidates:
_RESIDUALS = 360
_FEW_RESIDUALS = 60
_MIN_SCORED = 30
_MEMORY_MINUTES = 360.0
_SEASON_GAIN = 0.95
_MAX_RISE = 3.0
_LONGEST_HORIZON = 120
_PERSISTENT = 5

_MINUTE_S = 60.0
_MIN_SPAN_S = 30.0


class Season:
    """What each part of a period adds to the level. `minutes`: the length of the period, of which
    at most `SEASON_BINS` parts are stored and interpolated; known once a whole period was seen."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self._width = max(1, -(-minutes // SEASON_BINS))
        self.parts = [0.0] * max(1, minutes // self._width)
        self._seen = [0.0] * len(self.parts)
        self.periods = 0.0

    @property
    def known(self) -> bool:
        return self.periods >= 1.0

    def at(self, minute: int) -> float:
        """Interpolated between the middles of parts; 0.0 before a whole period was seen."""
        if not self.known:
            return 0.0
        place = (minute % self.minutes) / self._width - 0.5
        first = int(place // 1)
        part = place - first
        count = len(self.parts)
        return (1.0 - part) * self.parts[first % count] + part * self.parts[(first + 1) % count]

    def learn(self, minute: int, value: float, level: float) -> None:
        """In the first period the means of its parts, which at its end become what they add to
        the mean of all; later a slow correction."""
        index = min((minute % self.minutes) // self._width, len(self.parts) - 1)
        known = self.known
        self.periods += 1.0 / self.minutes
        if known:
            gain = _SEASON / self._width
            self.parts[index] += gain * (value - level - self.parts[index])
            return
        self._seen[index] += 1.0
        self.parts[index] += (value - self.parts[index]) / self._seen[index]
        if self.periods > 1.0 - 0.5 / self.minutes:
            self.periods = 1.0
            mean = fmean(self.parts)
            self.parts = [each - mean for each in self.parts]

    def save(self) -> dict[str, Any]:
        return {
            "minutes": self.minutes,
            "periods": self.periods,
            "parts": [float(f"{each:.5g}") for each in self.parts],
            "seen": [] if self.known else self._seen,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state; ignored if its period is another one."""
        if state["minutes"] == self.minutes:
            self.periods, self.parts = float(state["periods"]), list(state["parts"])
            self._seen = list(state["seen"]) or [1.0] * len(self.parts)


class HoltWinters:
    """Additive exponential smoothing with a damped trend and a season, one value a minute.

    A value far from its expectation is clipped to the nearest plausible one, so that a burst enters
    neither level nor season, and yesterday's burst is not expected today. After `_BURST` such
    minutes in a row on one side it is no burst, and counts more with each minute.
    """

    def __init__(self, season: Season) -> None:
        self.season = season
        self.level: float | None = None
        self.trend = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._clipped_for = 0

    def add(self, minute: int, value: float, request_work_s: float) -> None:
        """Take the work a second of that minute."""
        if self.level is None:
            self.level = value
        expected = self.ahead(minute, 1)
        self._errors.append(abs(value - expected))
        value = self._clipped(value, expected, request_work_s)
        damped = _DAMPING * self.trend
        added = self.season.at(minute)
        before = self.level
        self.level += damped + _LEVEL * (value - added - before - damped)
        self.trend = _TREND * (self.level - before) + (1.0 - _TREND) * damped
        was_known = self.season.known
        self.season.learn(minute, value, self.level)
        if self.season.known and not was_known:
            self.level -= self.season.at(minute)

    def skip(self, minutes: int) -> None:
        """Skip minutes of which nothing is known: the level stays, the trend decays."""
        self.trend *= _DAMPING ** min(minutes, 1000)

    def ahead(self, minute: int, steps: int) -> float:
        """The forecast for that minute, `steps` after the last one added; never below 0."""
        if self.level is None:
            return 0.0
        grown = _DAMPING * (1.0 - _DAMPING**steps) / (1.0 - _DAMPING)
        added = self.season.at(minute)
        return max(0.0, self.level + grown * self.trend + added)

    def _clipped(self, value: float, expected: float, request_work_s: float) -> float:
        """The value, clipped to its plausible range, which is at least what chance explains.
        `_clipped_for`: clipped minutes in a row, negative if the values were too low."""
        usual = median(self._errors) if len(self._errors) > 10 else expected
        chance = sqrt(max(value, expected) * request_work_s / 60.0)
        room = _CLIP_DEVIATIONS * max(usual, chance, 0.01 * expected)
        side = (value > expected + room) - (value < expected - room)
        self._clipped_for = self._clipped_for + side if side * self._clipped_for >= 0 else side
        if not side:
            self._clipped_for = 0
        room *= max(1, abs(self._clipped_for) - _BURST)
        return min(max(value, expected - room), expected + room)

    def save(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "trend": self.trend,
            "errors": [float(f"{each:.4g}") for each in self._errors],
            "season": self.season.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.level, self.trend = state["level"], float(state["trend"])
        self._errors = deque(state["errors"], maxlen=_ERRORS)
        self.season.load(state["season"])


@dataclass(frozen=True, slots=True)
class Plan:
    """The work a second to plan for."""

    planned_s: float = 0.0  # to size for: the forecast and a margin for its error
    forecast_s: float = 0.0  # the forecast without the margin
    trusted: bool = False  # it is a forecast that has been better than persistence
    horizon: int = 1  # minutes


class _Candidate:
    """One forecasting method and its score. pending: its plans for minutes to come. loss: pinball
    loss of its plans, weighted to the last six hours."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, float, float]] = deque(maxlen=_LONGEST_HORIZON + 1)
        self.residuals: deque[float] = deque(maxlen=_RESIDUALS)
        self.scored = 0
        self.loss = 0.0
        self._quantile: tuple[float, float] | None = None

    def record(self, minute: int, plan: Plan) -> None:
        while self.pending and self.pending[-1][0] >= minute:
            self.pending.pop()
        self.pending.append((minute, plan.forecast_s, plan.planned_s))

    def score(self, minute: int, value: float, quantile: float) -> None:
        while self.pending and self.pending[0][0] <= minute:
            due, expected, planned = self.pending.popleft()
            if due == minute:
                self.residuals.append(value - expected)
                self._quantile = None
                short = value - planned
                loss = quantile * short if short > 0.0 else (quantile - 1.0) * short
                self.scored += 1
                gain = max(1.0 / self.scored, 1.0 / _MEMORY_MINUTES)
                self.loss += gain * (loss - self.loss)

    def quantile(self, q: float) -> float:
        if self._quantile is None or self._quantile[0] != q:
            ordered = sorted(self.residuals)
            self._quantile = (q, ordered[min(len(ordered) - 1, int(q * len(ordered)))])
        return self._quantile[1]

    def save(self) -> dict[str, Any]:
        return {
            "scored": self.scored,
            "loss": self.loss,
            "residuals": [float(f"{each:.4g}") for each in self.residuals],
            "pending": [list(each) for each in self.pending],
        }

    def load(self, state: dict[str, Any]) -> None:
        if isfinite(state["loss"]):
            self.scored, self.loss = int(state["scored"]), float(state["loss"])
            self.residuals = deque(state["residuals"], maxlen=_RESIDUALS)
            said = [(int(due), float(f), float(p)) for due, f, p in state["pending"]]
            self.pending = deque(said, maxlen=_LONGEST_HORIZON + 1)
            self._quantile = None


class Forecast:
    """The forecast of one model's offered work, one value a minute."""

    def __init__(self, settings: PolicySettings) -> None:
        self.minute = 0
        self.plan: Plan | None = None
        self.horizon = 1
        self._recent: deque[float] = deque(maxlen=60)
        self._request_work_s = 0.0
        self._adopt(settings)

    def adopt(self, settings: PolicySettings) -> None:
        """Go on under new settings. If the season's period changes, learning starts again."""
        if settings != self._settings:
            season_is_same = settings.season_s == self._settings.season_s
            kept, plan = self.save(), self.plan
            self._adopt(settings)
            if season_is_same and kept["on"] == settings.forecast:
                self.load(kept)
                self.plan = plan

    def _adopt(self, settings: PolicySettings) -> None:
        self._settings = settings
        minutes = round(settings.season_s / 60.0)
        seasonal = settings.forecast and minutes >= 2
        self._smoothing = HoltWinters(Season(minutes)) if seasonal else None
        self._start_scores()

    def _start_scores(self) -> None:
        self._persistence, self._seasonal = _Candidate(), _Candidate()

    def add(self, value: float, request_work_s: float, horizon_s: float) -> Plan:
        """Take the work a second of the minute that ended; returns the new plan. `request_work_s`:
        E[c²]/E[c] of requests' work. `horizon_s`: time to capacity."""
        self.minute += 1
        self._request_work_s = request_work_s
        self._recent.append(value)
        if self._smoothing is not None:
            self._smoothing.add(self.minute, value, request_work_s)
        self._follow(horizon_s)
        for candidate in (self._persistence, self._seasonal):
            candidate.score(self.minute, value, self._settings.quantile)
        self.plan = self._plan()
        return self.plan

    def skip(self, minutes: int) -> None:
        """Skip minutes of which nothing is known."""
        self.minute += minutes
        if self._smoothing is not None:
            self._smoothing.skip(minutes)
        self._persistence.pending.clear()
        self._seasonal.pending.clear()

    def _follow(self, horizon_s: float) -> None:
        """Set the horizon. A slightly shorter one is ignored, because residuals are valid for one
        horizon only and would have to be dropped."""
        wanted = min(_LONGEST_HORIZON, max(1, ceil(horizon_s / 60.0)))
        if wanted > self.horizon or horizon_s < 0.8 * 60.0 * (self.horizon - 1):
            self.horizon = wanted
            self._start_scores()

    def _plan(self) -> Plan:
        """The plan of the better candidate, for the busiest minute until the horizon."""
        persistent = median(islice(reversed(self._recent), _PERSISTENT))
        plan = self._said(self._persistence, [persistent])
        if self._smoothing is None:
            return plan
        steps = range(1, self.horizon + 1)
        ahead = [self._smoothing.ahead(self.minute + step, step) for step in steps]
        seasonal = self._said(self._seasonal, ahead)
        return replace(seasonal, trusted=True) if self._is_trusted(self._smoothing) else plan

    def _said(self, candidate: _Candidate, ahead: list[float]) -> Plan:
        most = _MAX_RISE * max(self._recent)
        ahead = [min(most, each) for each in ahead]
        planned = min(most, max(0.0, max(ahead) + self._margin(candidate, ahead[-1])))
        plan = Plan(planned, ahead[-1], horizon=self.horizon)
        candidate.record(self.minute + self.horizon, plan)
        return plan

    def _margin(self, candidate: _Candidate, expected: float) -> float:
        if len(candidate.residuals) >= _FEW_RESIDUALS:
            return candidate.quantile(self._settings.quantile)
        return 2.0 * sqrt(max(0.0, expected) * self._request_work_s / 60.0)

    def _is_trusted(self, smoothing: HoltWinters) -> bool:
        if smoothing.season.periods < 2.0 or self._seasonal.scored < _MIN_SCORED:
            return False
        return self._seasonal.loss < _SEASON_GAIN * self._persistence.loss

    # -- state for a successor

    def save(self) -> dict[str, Any]:
        return {
            "on": self._settings.forecast,
            "season_s": self._settings.season_s,
            "minute": self.minute,
            "horizon": self.horizon,
            "request_work_s": self._request_work_s,
            "recent": list(self._recent),
            "smoothing": self._smoothing.save() if self._smoothing is not None else None,
            "persistence": self._persistence.save(),
            "seasonal": self._seasonal.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state. A state of other settings is ignored. The caller skips the
        minutes since."""
        if state["on"] != self._settings.forecast or state["season_s"] != self._settings.season_s:
            return
        self.minute, self.horizon = int(state["minute"]), int(state["horizon"])
        self._request_work_s = float(state["request_work_s"])
        self._recent = deque(state["recent"], maxlen=60)
        if self._smoothing is not None:
            self._smoothing.load(state["smoothing"])
        self._persistence.load(state["persistence"])
        self._seasonal.load(state["seasonal"])
        if self._recent:
            self.plan = self._plan()


class Planning:
    """The plan of one model, for the minute that begins. A minute of which too little is known (a
    gateway was silent, or counting had just begun) is skipped, because unknown demand is not zero.
    Before the first minute has ended, the plan is the current demand plus a margin for chance.
    dispersion_s: see `Demand.dispersion_s`; set only in the step that ends a minute, else 0.0."""

    def __init__(self, settings: PolicySettings, now: float) -> None:
        self.forecast = Forecast(settings)
        self.dispersion_s = 0.0
        self._minute_ends = now + _MINUTE_S

    def adopt(self, settings: PolicySettings) -> None:
        self.forecast.adopt(settings)

    def step(self, view: DemandView, demand: Demand, horizon_s: float, now: float) -> Plan:
        """The plan that holds now."""
        self.dispersion_s = 0.0
        if now >= self._minute_ends:
            self._end_minutes(view, demand, horizon_s, now)
        return self.forecast.plan or _first_plan(view)

    def _end_minutes(self, view: DemandView, demand: Demand, horizon_s: float, now: float) -> None:
        passed = int((now - self._minute_ends) // _MINUTE_S)
        self._minute_ends += _MINUTE_S * (passed + 1)
        unknown = view.partial or view.span_s < _MIN_SPAN_S
        if passed + unknown:
            self.forecast.skip(passed + unknown)
        if not unknown:
            self.dispersion_s = demand.dispersion_s(now)
            self.forecast.add(view.rate(LONGEST_WINDOW_S), view.request_work_s, horizon_s)

    def save(self, now: float) -> dict[str, Any]:
        return {"forecast": self.forecast.save(), "minute_ends_s": self._minute_ends - now}

    def load(self, state: dict[str, Any], now: float) -> None:
        """As of an age: what the caller adds to it is time that has passed since."""
        self.forecast.load(state["forecast"])
        self._minute_ends = now + state["minute_ends_s"]


def _first_plan(view: DemandView) -> Plan:
    rate = view.rate(LONGEST_WINDOW_S)
    span_s = min(LONGEST_WINDOW_S, max(view.span_s, 1.0))
    return Plan(rate + 2.0 * (rate * view.request_work_s / span_s) ** 0.5, rate)
