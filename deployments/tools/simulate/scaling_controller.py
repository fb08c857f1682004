"""Runs the production autoscaler (`autoscaling/`) on a simulated model.

Once a second, as in production: demand is read from the gateways' cores (by
`gateway.scaling.demand`, as gateways do) and replicas from the simulated fleet; the autoscaler
decides; the fleet does what Serve would do. While the autoscaler is away its last targets hold, and
its successor starts from the last state that was saved. The scenario decides which replicas die.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import ScalingSettings
from autoscaling.types import Decisions, GroupReading, PoolReading, StartReading, State
from deployments.contract.scaling.messages import GroupLoad
from deployments.gateway.scaling.reporter import model_load
from deployments.tools.simulate.fleet import Fleet
from deployments.tools.simulate.scaling_record import ScalingRecord
from deployments.tools.simulate.sim_pool import SimPool
from routers.api.snapshot import Snapshot
from routers.simulation.running_set import Expect, Kill, Order

SAVES_EVERY_S = 10.0
_UNKNOWN = GroupReading()


@dataclass(frozen=True, slots=True)
class Death:
    """place: of those that serve, the oldest first; where there are fewer, nobody dies."""

    at_s: float
    place: int


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
