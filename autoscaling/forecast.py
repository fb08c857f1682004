"""How much work a second should be planned for, for the time when a replica ordered now serves?

That time is the *horizon*: the model's measured time to capacity. Three candidates forecast each
minute: smoothing with a season, smoothing without one, and persistence (the median of the last five
minutes stays, so that a burst does not count). Each is scored by its residuals at the horizon, and
plans for the `quantile` of them. The loss is the pinball loss of that plan, over about the last six
hours. The season is used only after two periods, and while it lowers the loss. A forecast is used
only while its loss is not above persistence's; else persistence plans (`trusted` is False). The
plan never exceeds three times the busiest minute of the last hour. Values are reference seconds of
work a second. State is bounded for any horizon: a season of 288 parts, and 360 residuals a
candidate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import ceil, isfinite, sqrt
from statistics import median
from typing import Any

from autoscaling.holt_winters import HoltWinters, Season
from autoscaling.settings import PolicySettings

PERSISTENCE, PLAIN, SEASONAL = "persistence", "smoothing", "season"
_RESIDUALS = 360
_FEW_RESIDUALS = 60
_MIN_SCORED = 30
_MEMORY_MINUTES = 360.0
_SEASON_GAIN = 0.95
_MAX_RISE = 3.0
_LONGEST_HORIZON = 120
_PERSISTENT = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The work a second to plan for."""

    planned_s: float = 0.0  # to size for: the forecast and a margin for its error
    forecast_s: float = 0.0  # the forecast without the margin
    method: str = PERSISTENCE  # the candidate that made it
    trusted: bool = False  # it is a forecast that has been better than persistence
    horizon: int = 1  # minutes


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
        names = [PERSISTENCE]
        self._plain = HoltWinters() if settings.forecast else None
        self._seasonal = None
        if settings.forecast:
            names.append(PLAIN)
            if minutes >= 2:
                names.append(SEASONAL)
                self._seasonal = HoltWinters(Season(minutes))
        self._candidates = {name: _Candidate() for name in names}

    def add(self, value: float, request_work_s: float, horizon_s: float) -> Plan:
        """Take the work a second of the minute that ended; returns the new plan. `request_work_s`:
        E[c²]/E[c] of requests' work. `horizon_s`: time to capacity."""
        self.minute += 1
        self._request_work_s = request_work_s
        self._recent.append(value)
        for smoothing in self._smoothings():
            smoothing.add(self.minute, value, request_work_s)
        self._follow(horizon_s)
        for candidate in self._candidates.values():
            candidate.score(self.minute, value, self._settings.quantile)
        self.plan = self._plan()
        return self.plan

    def skip(self, minutes: int) -> None:
        """Skip minutes of which nothing is known."""
        self.minute += minutes
        for smoothing in self._smoothings():
            smoothing.skip(minutes)
        for candidate in self._candidates.values():
            candidate.pending.clear()

    def _smoothings(self) -> Iterable[HoltWinters]:
        return [each for each in (self._plain, self._seasonal) if each is not None]

    def _follow(self, horizon_s: float) -> None:
        """Set the horizon. A slightly shorter one is ignored, because residuals are valid for one
        horizon only and would have to be dropped."""
        wanted = min(_LONGEST_HORIZON, max(1, ceil(horizon_s / 60.0)))
        if wanted > self.horizon or horizon_s < 0.8 * 60.0 * (self.horizon - 1):
            self.horizon = wanted
            self._candidates = {name: _Candidate() for name in self._candidates}

    def _plan(self) -> Plan:
        most = _MAX_RISE * max(self._recent)
        plans = {name: self._said(name, most) for name in self._candidates}
        for name, plan in plans.items():
            self._candidates[name].record(self.minute + self.horizon, plan)
        best = self._best()
        return plans[best]

    def _said(self, name: str, most: float) -> Plan:
        """The candidate's plan, for the busiest minute until the horizon."""
        steps = range(1, self.horizon + 1)
        smoothing = {PLAIN: self._plain, SEASONAL: self._seasonal}.get(name)
        if smoothing is None:
            ahead = [median(islice(reversed(self._recent), _PERSISTENT))]
        else:
            ahead = [smoothing.ahead(self.minute + step, step) for step in steps]
        ahead = [min(most, each) for each in ahead]
        margin = self._margin(self._candidates[name], ahead[-1])
        trusted = name != PERSISTENCE and self._is_trusted(name)
        planned = min(most, max(0.0, max(ahead) + margin))
        return Plan(planned, ahead[-1], name, trusted, self.horizon)

    def _margin(self, candidate: _Candidate, expected: float) -> float:
        if len(candidate.residuals) >= _FEW_RESIDUALS:
            return candidate.quantile(self._settings.quantile)
        return 2.0 * sqrt(max(0.0, expected) * self._request_work_s / 60.0)

    def _best(self) -> str:
        best = PLAIN if self._plain else PERSISTENCE
        season = self._seasonal.season if self._seasonal else None
        if season and season.periods >= 2.0:
            plain, seasonal = self._candidates[PLAIN], self._candidates[SEASONAL]
            if seasonal.loss < _SEASON_GAIN * plain.loss:
                best = SEASONAL
        return best if self._is_trusted(best) else PERSISTENCE

    def _is_trusted(self, name: str) -> bool:
        if name == PERSISTENCE:
            return False
        candidate, persistence = self._candidates[name], self._candidates[PERSISTENCE]
        enough = candidate.scored >= _MIN_SCORED
        return enough and candidate.loss <= persistence.loss

    # -- state for a successor

    def save(self) -> dict[str, Any]:
        return {
            "on": self._settings.forecast,
            "season_s": self._settings.season_s,
            "minute": self.minute,
            "horizon": self.horizon,
            "request_work_s": self._request_work_s,
            "recent": list(self._recent),
            "smoothings": [each.save() for each in self._smoothings()],
            "candidates": {name: each.save() for name, each in self._candidates.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state. A state of other settings is ignored. The caller skips the
        minutes since."""
        if state["on"] != self._settings.forecast or state["season_s"] != self._settings.season_s:
            return
        self.minute, self.horizon = int(state["minute"]), int(state["horizon"])
        self._request_work_s = float(state["request_work_s"])
        self._recent = deque(state["recent"], maxlen=60)
        for smoothing, saved in zip(self._smoothings(), state["smoothings"], strict=True):
            smoothing.load(saved)
        for name, saved in state["candidates"].items():
            if name in self._candidates:
                self._candidates[name].load(saved)
        if self._recent:
            self.plan = self._plan()


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
