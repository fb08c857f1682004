"""How much work a second must be planned for when a replica that starts now will serve?

Three contenders say each minute what they expect at the *horizon*, this model's own measured time
to capacity: smoothing with a season, smoothing without, and persistence (it stays as it was in the
median of the last five minutes, so that a burst does not count as what stays). Each is scored by
its own residuals there, at the horizon and not one step ahead, and plans for their `quantile`. The
loss is the pinball loss of that plan, over about the last six hours. The season counts only after
two periods and while it lowers the loss; a forecast only while its loss is no greater than
persistence's: else persistence plans, and that is said. What is planned never exceeds three times
the last hour's busiest minute. Values are reference seconds of work a second. State is bounded: a
season of 288 parts and 360 residuals a contender, whatever the horizon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import ceil, isfinite, sqrt
from statistics import median
from typing import Any

from autoscaling.settings import PolicySettings
from autoscaling.smoothing import Season, Smoothing

PERSISTENCE, PLAIN, SEASONAL = "persistence", "smoothing", "season"
_RESIDUALS = 360
_FEW_RESIDUALS = 60
_LEAST_SCORED = 30
_MEMORY_MINUTES = 360.0
_SEASON_GAIN = 0.95
_MOST_RISE = 3.0
_LONGEST_HORIZON = 120
_PERSISTENT = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """planned_s: work a second to size for; forecast_s: its middle. method: whose it is; trusted:
    it is a forecast's, and that has been better than persistence. Minutes of the horizon."""

    planned_s: float = 0.0
    forecast_s: float = 0.0
    method: str = PERSISTENCE
    trusted: bool = False
    horizon: int = 1


class Forecast:
    """Of one model's offered work, a value a minute."""

    def __init__(self, settings: PolicySettings) -> None:
        self.minute = 0
        self.plan: Plan | None = None
        self.horizon = 1
        self._recent: deque[float] = deque(maxlen=60)
        self._request_work_s = 0.0
        self._adopt(settings)

    def adopt(self, settings: PolicySettings) -> None:
        """Go on under new settings; another season begins to be learnt anew."""
        if settings != self._settings:
            season_is_same = settings.season_s == self._settings.season_s
            kept, plan = self.save(), self.plan
            self._adopt(settings)
            if season_is_same and kept["on"] == settings.forecast:
                self.load(kept, 0.0)
                self.plan = plan

    def _adopt(self, settings: PolicySettings) -> None:
        self._settings = settings
        minutes = round(settings.season_s / 60.0)
        names = [PERSISTENCE]
        self._plain = Smoothing() if settings.forecast else None
        self._seasonal = None
        if settings.forecast:
            names.append(PLAIN)
            if minutes >= 2:
                names.append(SEASONAL)
                self._seasonal = Smoothing(Season(minutes))
        self._contenders = {name: _Contender() for name in names}

    def add(self, value: float, request_work_s: float, horizon_s: float) -> Plan:
        """The work a second of the minute that ended. request_work_s: E[c²]/E[c] of requests.
        horizon_s: from an order to capacity."""
        self.minute += 1
        self._request_work_s = request_work_s
        self._recent.append(value)
        for smoothing in self._smoothings():
            smoothing.add(self.minute, value, request_work_s)
        self._follow(horizon_s)
        for contender in self._contenders.values():
            contender.score(self.minute, value, self._settings.quantile)
        self.plan = self._plan()
        return self.plan

    def skip(self, minutes: int) -> None:
        """Of so many minutes nothing is known."""
        self.minute += minutes
        for smoothing in self._smoothings():
            smoothing.skip(minutes)
        for contender in self._contenders.values():
            contender.pending.clear()

    def _smoothings(self) -> Iterable[Smoothing]:
        return [each for each in (self._plain, self._seasonal) if each is not None]

    def _follow(self, horizon_s: float) -> None:
        """A horizon that shrinks by little is kept: residuals belong to one horizon."""
        wanted = min(_LONGEST_HORIZON, max(1, ceil(horizon_s / 60.0)))
        if wanted > self.horizon or horizon_s < 0.8 * 60.0 * (self.horizon - 1):
            self.horizon = wanted
            for contender in self._contenders.values():
                contender.begin_again()

    def _plan(self) -> Plan:
        most = _MOST_RISE * max(self._recent)
        plans = {name: self._said(name, most) for name in self._contenders}
        for name, plan in plans.items():
            self._contenders[name].promise(self.minute + self.horizon, plan)
        best = self._best()
        return plans[best]

    def _said(self, name: str, most: float) -> Plan:
        """What the contender says; planned for the busiest minute until the horizon."""
        steps = range(1, self.horizon + 1)
        smoothing = {PLAIN: self._plain, SEASONAL: self._seasonal}.get(name)
        if smoothing is None:
            ahead = [median(islice(reversed(self._recent), _PERSISTENT))]
        else:
            ahead = [smoothing.ahead(self.minute + step, step) for step in steps]
        ahead = [min(most, each) for each in ahead]
        margin = self._margin(self._contenders[name], ahead[-1])
        trusted = name != PERSISTENCE and self._is_trusted(name)
        planned = min(most, max(0.0, max(ahead) + margin))
        return Plan(planned, ahead[-1], name, trusted, self.horizon)

    def _margin(self, contender: _Contender, expected: float) -> float:
        if len(contender.residuals) >= _FEW_RESIDUALS:
            return contender.quantile(self._settings.quantile)
        return 2.0 * sqrt(max(0.0, expected) * self._request_work_s / 60.0)

    def _best(self) -> str:
        candidate = PLAIN if self._plain else PERSISTENCE
        season = self._seasonal.season if self._seasonal else None
        if season and season.periods >= 2.0:
            plain, seasonal = self._contenders[PLAIN], self._contenders[SEASONAL]
            if seasonal.loss < _SEASON_GAIN * plain.loss:
                candidate = SEASONAL
        return candidate if self._is_trusted(candidate) else PERSISTENCE

    def _is_trusted(self, name: str) -> bool:
        if name == PERSISTENCE:
            return False
        contender, persistence = self._contenders[name], self._contenders[PERSISTENCE]
        enough = contender.scored >= _LEAST_SCORED
        return enough and contender.loss <= persistence.loss

    # -- kept over the decider's death

    def save(self) -> dict[str, Any]:
        return {
            "on": self._settings.forecast,
            "season_s": self._settings.season_s,
            "minute": self.minute,
            "horizon": self.horizon,
            "request_work_s": self._request_work_s,
            "recent": list(self._recent),
            "smoothings": [each.save() for each in self._smoothings()],
            "contenders": {name: each.save() for name, each in self._contenders.items()},
        }

    def load(self, state: dict[str, Any], minutes: int | float) -> None:
        """So many minutes ago it was saved. The season goes on where it would be now."""
        if state["on"] != self._settings.forecast or state["season_s"] != self._settings.season_s:
            return
        self.minute, self.horizon = int(state["minute"]), int(state["horizon"])
        self._request_work_s = float(state["request_work_s"])
        self._recent = deque(state["recent"], maxlen=60)
        for smoothing, saved in zip(self._smoothings(), state["smoothings"], strict=True):
            smoothing.load(saved)
        for name, saved in state["contenders"].items():
            if name in self._contenders:
                self._contenders[name].load(saved)
        if minutes >= 1:
            self.skip(int(minutes))
        if self._recent:
            self.plan = self._plan()


class _Contender:
    """One way to expect. pending: what it said, by the minute it was said of. loss: pinball loss of
    its plans, the latest six hours most."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, float, float]] = deque(maxlen=_LONGEST_HORIZON + 1)
        self.residuals: deque[float] = deque(maxlen=_RESIDUALS)
        self.scored = 0
        self.loss = 0.0
        self._quantile: tuple[float, float] | None = None

    def promise(self, minute: int, plan: Plan) -> None:
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

    def begin_again(self) -> None:
        self.__init__()  # type: ignore[misc]

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
