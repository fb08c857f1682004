"""Runs the production autoscaler (`autoscaling/`) on a simulated model, and records the outcome.

Replicas come and go where the settings give a range and a policy that is not off, or where the
model may use the shared pool; else their number is fixed, and nothing here is used. Once a second,
as in production, demand is read from the gateways' cores and replicas from the simulated fleet; the
autoscaler decides; the fleet does what Serve would do. While the autoscaler is away its last
targets hold, and its successor starts from the last state that was saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Any

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import Mode, ModelTerms, ScalingSettings
from autoscaling.types import (
    Decisions,
    GroupReading,
    ModelDecision,
    PoolReading,
    StartReading,
    State,
)
from deployments.contract.scaling.messages import GroupLoad
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.gateway.queues.pool_replicas import PoolUse, with_pool
from deployments.gateway.scaling.reporter import model_load
from deployments.settings.tree import Settings
from deployments.tools.simulate.devices import Death, maker, scaled_deaths
from deployments.tools.simulate.fleet import Fleet, SimPool, StartTime
from deployments.tools.simulate.sim_setup import SimSetup, SimSetupError, model_of
from loadtests.results.time_series import MAX_MOMENTS
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_scaling import ScalingPart
from routers.api.snapshot import Snapshot
from routers.simulation.running_set import Expect, Kill, Order

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
    """Hours, changes, and how soon there was capacity. Replica-hours count from the order of a
    replica until it has left. Time to capacity is how long fewer served than were asked for, from
    the moment that the target rose. A reversal is a change of the target against the one before it,
    within ten minutes. Only the measured time counts; times are seconds from the start of the
    warm-up, and in what is shown from its end."""

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


SAVES_EVERY_S = 10.0
_UNKNOWN = GroupReading()


@dataclass(frozen=True, slots=True)
class ScalingSetup:
    """What is set beforehand. initial: replicas by group at the start; away: from when to when
    nobody decides; cluster: what all nodes have, None: enough. pool_after_s: the predicted wait on
    the model's own replicas beyond which the pool is used."""

    model: str
    settings: ScalingSettings
    initial: dict[str, int]
    deaths: tuple[Death, ...] = ()
    away: tuple[tuple[float, float], ...] = ()
    cluster: dict[str, float] | None = None
    pool_after_s: float = 0.0


class ScalingController:
    """A `running_set.Controller`."""

    def __init__(
        self, setup: ScalingSetup, fleet: Fleet, pool: SimPool | None, record: ScalingRecord
    ) -> None:
        self._setup = setup
        self._fleet, self._pool, self._record = fleet, pool, record
        self._terms = setup.settings.models[setup.model]
        self._autoscaler: Autoscaler | None = None
        self._saved: tuple[dict[str, Any], float] | None = None
        self._deaths = sorted(setup.deaths, key=lambda each: each.at_s)
        self._in_pool: set[str] = set()
        self._begun = False

    def reconcile(self, now: float, cores: tuple[Snapshot, ...]) -> Iterator[Order]:
        if not self._begun:
            yield from self._begin()
        yield from self._kills(now)
        self._decider(now)
        decisions = None
        if self._autoscaler is not None:
            self._hear(self._autoscaler, cores, now)
            decisions = self._autoscaler.decide(now)
            self._save(self._autoscaler, now)
        yield from self._follow(decisions, now)
        decision = decisions.models[self._setup.model] if decisions else None
        self._record.tick(now, decision, self._fleet, self._pool)

    def left(self, replica_id: str, now: float) -> None:
        self._fleet.left(replica_id)
        if self._pool is not None:
            self._pool.left(replica_id)

    def _begin(self) -> Iterator[Order]:
        self._begun = True
        for group, count in self._setup.initial.items():
            yield from self._fleet.begin(group, count)
        pool = self._setup.settings.pool
        if self._pool is not None and pool is not None:
            self._pool.begin(pool.min)

    def _kills(self, now: float) -> Iterator[Order]:
        while self._deaths and self._deaths[0].at_s <= now:
            serving, place = self._fleet.serving(now), self._deaths.pop(0).place
            if place < len(serving):
                yield Kill(serving[place].name)

    # -- who decides

    def _decider(self, now: float) -> None:
        if any(begins <= now < ends for begins, ends in self._setup.away):
            self._autoscaler = None
        elif self._autoscaler is None:
            self._autoscaler = Autoscaler(self._setup.settings, now)
            self._autoscaler.cluster(self._setup.cluster)
            self._autoscaler.set_described(self._setup.model, True)
            if self._saved is not None:
                state, at = self._saved
                self._autoscaler.load(state, now, now - at)

    def _save(self, autoscaler: Autoscaler, now: float) -> None:
        if self._saved is None or now - self._saved[1] >= SAVES_EVERY_S:
            self._saved = autoscaler.save(now), now

    # -- what it hears

    def _hear(self, autoscaler: Autoscaler, cores: tuple[Snapshot, ...], now: float) -> None:
        model, loads = self._setup.model, dict[str, GroupLoad]()
        unserved = self._unserved(cores, now)
        for number, core in enumerate(cores):
            load = model_load(core, unserved=unserved and core.waiting_rows > 0)
            autoscaler.record_demand(f"g{number}", model, load.demand, now)
            loads = {**load.groups, **loads}
        readings = [self._reading(group.name, loads, now) for group in self._terms.groups]
        autoscaler.record_replicas(model, tuple(readings), now)
        for replica in self._fleet.newly_hot(now):
            seconds = replica.serves_s - replica.ordered_s
            autoscaler.record_start(StartReading(model, replica.group, State.COLD, seconds))
        if self._pool is not None:
            busy = {r.replica_id for core in cores for r in core.replicas if r.leases}
            self._hear_pool(autoscaler, self._pool.readings(busy, now), now)

    def _hear_pool(self, autoscaler: Autoscaler, readings: list[PoolReading], now: float) -> None:
        heard, self._in_pool = self._in_pool, {each.replica for each in readings}
        for replica in heard - self._in_pool:
            autoscaler.pool_gone(replica)
        for reading in readings:
            autoscaler.pool(reading, now)

    def _unserved(self, cores: tuple[Snapshot, ...], now: float) -> bool:
        pooled = self._pool.hot(now) if self._pool is not None else 0
        return not (self._fleet.serving(now) or pooled)

    def _reading(self, name: str, loads: dict[str, GroupLoad], now: float) -> GroupReading:
        counts, load = self._fleet.counts(name, now), loads.get(name)
        known = load if load is not None and load.batch_s > 0.0 else _UNKNOWN
        return GroupReading(
            name=name,
            target=counts.target,
            hot=counts.hot,
            starting=counts.starting,
            draining=counts.draining,
            speed=known.speed,
            batch_s=known.batch_s,
            batch_p99_s=known.batch_p99_s,
            batch_scv=known.batch_scv,
        )

    # -- what comes of it

    def _follow(self, decisions: Decisions | None, now: float) -> Iterator[Order]:
        """Without a decision Serve keeps its numbers, and makes good what was lost."""
        targets = dict(self._fleet.targets)
        expected_s = 0.0
        if decisions is not None:
            decision = decisions.models[self._setup.model]
            if not decision.observed:
                targets |= {each.name: each.target for each in decision.groups}
            expected_s = decision.time_to_capacity_s
            if self._pool is not None:
                yield from self._pool.follow(decisions.pool, now)
        for group, target in targets.items():
            yield from self._fleet.follow(group, target, now)
        if not self._fleet.serving(now) and self._fleet.all():
            expected_s = min(expected_s, max(0.0, self._fleet.next_serves_s() - now))
        yield Expect(expected_s)


def scaling_setup_of(
    scenario: Scenario, settings: Settings, setup: SimSetup
) -> ScalingSetup | None:
    """None: the number of replicas is fixed. Raises SimSetupError."""
    name, _ = model_of(scenario, settings)
    whole = scaling_document(settings).settings
    terms = whole.models[name]
    pool = whole.pool if terms.in_pool else None
    if not (_moves(terms) or pool is not None):
        return None
    if scenario.joins:
        raise SimSetupError("joins: must be left out; the autoscaler decides who joins")
    part, warmup_s = scenario.scaling or ScalingPart(), scenario.warmup_s
    return ScalingSetup(
        name,
        ScalingSettings({name: terms}, whole.budget, pool),
        {group.name: group.replicas for group in setup.groups},
        scaled_deaths(scenario, max(1, setup.replicas)),
        tuple((warmup_s + each.from_s, warmup_s + each.to_s) for each in part.decider_away),
        dict(part.cluster) or None,
        settings.scaling.pool.after_ms / 1e3 if settings.scaling.pool is not None else 0.0,
    )


def _moves(terms: ModelTerms) -> bool:
    ranges = any(group.min < group.max for group in terms.groups)
    return ranges and terms.policy.mode is not Mode.OFF


def with_reserve(setup: SimSetup, scaling: ScalingSetup) -> SimSetup:
    """The core with the pool as one more group, a reserve, where there is one."""
    if scaling.settings.pool is None:
        return setup
    use = PoolUse("", setup.groups[0].slots, scaling.pool_after_s)
    return replace(setup, core=with_pool(setup.core, setup.description, use))


def controller_of(
    scenario: Scenario, setup: SimSetup, scaling: ScalingSetup, record: ScalingRecord
) -> ScalingController:
    part, make = scenario.scaling or ScalingPart(), maker(scenario, setup)
    start_s = StartTime(part.start, Random(f"{scenario.seed} starts"))
    pool = None
    if scaling.settings.pool is not None:
        load_s = StartTime(part.pool_start, Random(f"{scenario.seed} loads"))
        memory = scaling.settings.pool.memory_bytes
        pool = SimPool(scaling.model, make, start_s, load_s, memory)
    return ScalingController(scaling, Fleet(make, start_s), pool, record)
