"""What came of scaling in a simulated run: hours, changes, and how soon there was capacity.

Replica-hours count from the order of a replica until it has left. Time to capacity is how long
fewer served than were asked for, from the moment that the target rose. A reversal is a change of
the target against the one before it, within ten minutes. Only the measured time counts; times are
seconds from the start of the warm-up, and in what is shown from its end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from autoscaling.types import ModelDecision
from deployments.tools.simulate.fleet import Fleet
from deployments.tools.simulate.sim_pool import SimPool
from loadtests.results.time_series import MAX_MOMENTS

REVERSAL_S = 600.0
_MAX_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class ScalingMoment:
    """Numbers of replicas, the pool's apart; offered and planned: work a second, None while nobody
    decides."""

    target: int
    hot: int
    starting: int
    draining: int
    pool: int
    pool_hot: int
    offered: float | None
    planned: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """text: why, in the autoscaler's words."""

    at_s: float
    target: int
    before: int
    reason: str
    text: str


class ScalingRecord:
    def __init__(self, begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s = begin_s, end_s
        self.every_s = max(1.0, (end_s - begin_s) / MAX_MOMENTS)
        self.moments: list[ScalingMoment] = []
        self.changes: list[Change] = []
        self.reversals = 0
        self.reasons: Counter[str] = Counter()
        self.to_capacity_s: list[float] = []
        self.replica_s = self.pool_s = self.serving_s = 0.0
        self._at: float | None = None
        self._target: int | None = None
        self._short_since: float | None = None

    def tick(
        self, now: float, decision: ModelDecision | None, fleet: Fleet, pool: SimPool | None
    ) -> None:
        """All that was ordered for this moment."""
        moment = _moment(now, decision, fleet, pool)
        span_s = 0.0 if self._at is None else now - self._at
        self._at = now
        counts = self.begin_s <= now < self.end_s
        self._follow_target(moment, decision, now, counts)
        if not counts:
            return
        everybody = moment.hot + moment.starting + moment.draining
        self.replica_s += span_s * everybody
        self.pool_s += span_s * moment.pool
        self.serving_s += span_s * (moment.hot + moment.draining + moment.pool_hot)
        self.reasons[decision.reason.value if decision else "nobody decides"] += 1
        if now - self.begin_s >= len(self.moments) * self.every_s:
            self.moments.append(moment)

    def _follow_target(
        self, moment: ScalingMoment, decision: ModelDecision | None, now: float, counts: bool
    ) -> None:
        before, self._target = self._target, moment.target
        if before is not None and before != moment.target and counts:
            reason, text = (decision.reason.value, decision.text) if decision else ("", "")
            self._changed(Change(now - self.begin_s, moment.target, before, reason, text))
        if moment.hot >= moment.target:
            if self._short_since is not None and counts:
                self.to_capacity_s.append(now - self._short_since)
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now

    def _changed(self, change: Change) -> None:
        if self.changes:
            last = self.changes[-1]
            turned = (change.target > change.before) != (last.target > last.before)
            self.reversals += turned and change.at_s - last.at_s < REVERSAL_S
        self.changes.append(change)

    @property
    def replica_hours(self) -> float:
        """The pool's apart."""
        return self.replica_s / 3600.0

    @property
    def pool_hours(self) -> float:
        return self.pool_s / 3600.0

    def as_json(self) -> dict[str, Any]:
        """See docs/simulator.md."""
        waits = self.to_capacity_s
        return {
            "replica_hours": self.replica_hours,
            "pool_hours": self.pool_hours,
            "changes": len(self.changes),
            "reversals": self.reversals,
            "to_capacity_median_s": median(waits) if waits else None,
            "to_capacity_longest_s": max(waits, default=None),
            "reasons": dict(sorted(self.reasons.items())),
            "decisions": [
                {"at_s": each.at_s, "target": each.target, "reason": each.reason, "text": each.text}
                for each in self.changes[:_MAX_SHOWN]
            ],
            "time_series": self._series(),
        }

    def _series(self) -> dict[str, Any]:
        names = ScalingMoment.__slots__
        every = {name: [getattr(each, name) for each in self.moments] for name in names}
        return {"every_s": self.every_s, **every}


def _moment(
    now: float, decision: ModelDecision | None, fleet: Fleet, pool: SimPool | None
) -> ScalingMoment:
    counts = [fleet.counts(group, now) for group in fleet.targets]
    return ScalingMoment(
        target=sum(each.target for each in counts),
        hot=sum(each.hot for each in counts),
        starting=sum(each.starting for each in counts),
        draining=sum(each.draining for each in counts),
        pool=pool.size if pool is not None else 0,
        pool_hot=pool.hot(now) if pool is not None else 0,
        offered=decision.offered_s if decision else None,
        planned=decision.planned_s if decision else None,
    )
