"""For how much work a second is a model sized, in the minute that begins?

Each minute's demand goes into the forecast, whose plan holds for the next minute. A minute of which
too little is known (a gateway was silent, or counting had just begun) is skipped, because unknown
demand is not zero. Before the first minute has ended, the plan is the current demand plus a margin
for chance.
"""

from __future__ import annotations

from typing import Any

from autoscaling.demand import LONGEST_WINDOW_S, Demand, DemandView
from autoscaling.forecast import Forecast, Plan
from autoscaling.settings import PolicySettings

_MINUTE_S = 60.0
_MIN_SPAN_S = 30.0


class Planning:
    """The plan of one model. dispersion_s: see `Demand.dispersion_s`; set only in the step that
    ends a minute, else 0.0."""

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
