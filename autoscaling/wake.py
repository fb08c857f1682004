"""May this model sleep, and when does it wake, with how many?

Only for a model all of whose minima are 0. Requests wake it and nothing else: a reading without a
new request, a new gateway, a decider that begins anew change nothing. It sleeps after `idle_s`
without a request, counted from when demand was first heard of. It wakes with enough replicas for
the rate since the first request of its waking and for what waits, within the slack of the SLO; that
rate, not how many requests are held, so that a hundred callers who wait do not start a hundred
replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoscaling.demand import DemandView

_LEAST_SLACK_S = 2.0
_SHORTEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Waking:
    """work: a second, to size for at once. waiting_s: reference seconds of work that wait."""

    work: float
    waiting_s: float


class Wake:
    """Of one model. woken_at: when the first request of this waking was seen; None: it sleeps or
    has slept until nothing woke it."""

    def __init__(self) -> None:
        self.woken_at: float | None = None
        self._heard_since: float | None = None

    def is_idle(self, demand: DemandView, idle_s: float, now: float) -> bool:
        """Whether the last replica may go. What waits, or is not known, keeps it."""
        if not demand.fresh:
            return False
        if self._heard_since is None:
            self._heard_since = now
        latest = demand.requested_at
        since = self._heard_since if latest is None else max(latest, self._heard_since)
        return not demand.waits and not demand.partial and now - since >= idle_s

    def wakes(self, demand: DemandView, asleep_since: float, now: float) -> bool:
        """Asked while nothing is ordered: whether a request came since then, or waits."""
        latest = demand.requested_at
        called = demand.fresh and (demand.waits or (latest is not None and latest > asleep_since))
        if called and self.woken_at is None:
            self.woken_at = now
        return called

    def asleep(self) -> None:
        self.woken_at = None

    def waking(self, demand: DemandView, offered_s: float, slack_s: float, now: float) -> Waking:
        """offered_s: work that came since it was woken, that which woke it included."""
        since = self.woken_at if self.woken_at is not None else now
        rate = offered_s / max(_SHORTEST_S, now - since)
        catch_up = demand.backlog_s / max(_LEAST_SLACK_S, slack_s)
        return Waking(max(rate, 0.0) + catch_up, demand.backlog_s)

    def save(self, now: float) -> dict[str, Any]:
        return {
            "woken": None if self.woken_at is None else now - self.woken_at,
            "heard": None if self._heard_since is None else now - self._heard_since,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        """The time that the decider was away counts as idle only if demand says so: hearing begins
        anew."""
        self.woken_at = None if state["woken"] is None else now - state["woken"]
