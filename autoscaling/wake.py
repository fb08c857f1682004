"""May this model sleep, when does it wake, and with how many replicas?

Only for a model whose groups all have the minimum 0. Only requests wake it; a reading without a new
request, a new gateway, or a restarted autoscaler do not. It sleeps after `idle_s` in which no
request came or ran, counted at the earliest from the first reading of demand. It wakes with enough
replicas for the rate since the first request of this waking, and for the waiting work, within the
SLO's slack. The number of waiting requests does not count, so that a hundred waiting callers do not
start a hundred replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoscaling.demand import DemandView

_MIN_SLACK_S = 2.0
_SHORTEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Waking:
    """The work with which a model wakes."""

    work: float  # a second, to size for at once
    waiting_s: float  # reference seconds of work that wait


class Wake:
    """Whether one model sleeps or wakes. woken_at: when the first request of this waking was seen;
    None: it is not waking."""

    def __init__(self) -> None:
        self.woken_at: float | None = None
        self._heard_since: float | None = None
        self._ran_at: float | None = None  # when something was last known to run

    def is_idle(self, demand: DemandView, idle_s: float, now: float) -> bool:
        """Whether the last replica may be removed; not while work waits or runs, as an answer that
        streams may for minutes, or demand is unknown."""
        if not demand.fresh:
            return False
        if demand.runs:
            self._ran_at = now
        if self._heard_since is None:
            self._heard_since = now
        known = (self._heard_since, demand.requested_at, self._ran_at)
        since = max(at for at in known if at is not None)
        still = not demand.waits and not demand.runs and not demand.partial
        return still and now - since >= idle_s

    def wakes(self, demand: DemandView, asleep_since: float, now: float) -> bool:
        """Asked while nothing is ordered: whether a request came since then, or waits. Remembers
        when this waking began."""
        latest = demand.requested_at
        called = demand.fresh and (demand.waits or (latest is not None and latest > asleep_since))
        if called and self.woken_at is None:
            self.woken_at = now
        return called

    def asleep(self) -> None:
        """This waking is over: something serves, or nothing is wanted again."""
        self.woken_at = None

    def waking(self, demand: DemandView, offered_s: float, slack_s: float, now: float) -> Waking:
        """offered_s: work that came since it was woken, that which woke it included."""
        since = self.woken_at if self.woken_at is not None else now
        rate = offered_s / max(_SHORTEST_S, now - since)
        catch_up = demand.backlog_s / max(_MIN_SLACK_S, slack_s)
        return Waking(max(rate, 0.0) + catch_up, demand.backlog_s)

    def save(self, now: float) -> dict[str, Any]:
        return {"woken": None if self.woken_at is None else now - self.woken_at}

    def load(self, state: dict[str, Any], now: float) -> None:
        """The time that the decider was away counts as idle only if demand says so: hearing begins
        anew."""
        self.woken_at = None if state["woken"] is None else now - state["woken"]
