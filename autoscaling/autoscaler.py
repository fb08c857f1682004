"""How many replicas should each model have, and what should the shared pool hold?

The core that an actor, a test or the simulator drives: readings in, `decide` out, given the time.
Each model proposes (`model_scaler`), the budget that all share cuts (`budget`), the pool takes what
the models' own replicas cannot (`pool`). What was learnt can be saved as plain values, with moments
as ages, and loaded by a successor on another clock. Asks nobody and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoscaling.budget import Claim, ceilings, share
from autoscaling.demand import LONGEST_WINDOW_S
from autoscaling.envelope import RATE_WINDOW_S
from autoscaling.model_scaler import ModelScaler
from autoscaling.pool import Excess, Pool
from autoscaling.residency import ResidentWant
from autoscaling.settings import ScalingSettings
from autoscaling.start_times import LadderStep
from autoscaling.types import (
    Decisions,
    DemandReading,
    GroupReading,
    PoolDecision,
    PoolReading,
    StartReading,
    State,
)

POOL = "pool"
"""Name of the pool's claim on the budget, as its group and its model."""
_LAST = 1_000_000
_LOAD_S = 5.0


class Autoscaler:
    """Of one cluster. Readings of models that the settings do not list are left out."""

    def __init__(self, settings: ScalingSettings, now: float = 0.0) -> None:
        self.settings = settings
        self.is_frozen = False
        self._models: dict[str, ModelScaler] = {}
        self._resources: dict[str, float] | None = None
        self._pool = Pool()
        self._pool_readings: dict[str, PoolReading] = {}
        self._loaded: dict[str, tuple[Any, float]] = {}
        self.reconfigure(settings, now)

    # -- what it is told

    def reconfigure(self, settings: ScalingSettings, now: float) -> None:
        """Go on under new settings. A model that is no longer listed is forgotten."""
        self.settings = settings
        for name in [each for each in self._models if each not in settings.models]:
            del self._models[name]
        for name, terms in settings.models.items():
            if name in self._models:
                self._models[name].adopt(terms)
            else:
                self._models[name] = ModelScaler(terms, now)
                if name in self._loaded:
                    self._models[name].load(*self._loaded.pop(name))

    def heard(self, gateway: str, model: str, reading: DemandReading, now: float) -> None:
        """Demand of one model at one gateway. Raises ValueError for what is no amount of work."""
        if model in self._models:
            self._models[model].demand.hear(gateway, reading, now)

    def gateway_gone(self, gateway: str) -> None:
        """It is known to have ended: what it said last is not held."""
        for scaler in self._models.values():
            scaler.demand.gone(gateway)

    def frozen(self, on: bool) -> None:
        """Whether all numbers hold, and nothing is learnt."""
        self.is_frozen = on

    def observed(self, model: str, groups: tuple[GroupReading, ...], now: float) -> None:
        """What runs of a model."""
        if model in self._models:
            self._models[model].observe(groups, now)

    def described(self, model: str, known: bool) -> None:
        """Whether a replica has ever said what the model takes."""
        if model in self._models:
            self._models[model].described = known

    def started(self, reading: StartReading) -> None:
        if reading.model in self._models and not self.is_frozen:
            self._models[reading.model].starts.add(reading)

    def cluster(self, resources: Mapping[str, float] | None) -> None:
        """What all nodes have; None: not known, or nodes can be added."""
        self._resources = None if resources is None else dict(resources)

    def pool(self, reading: PoolReading, now: float) -> None:
        """What a pool replica holds."""
        self._pool_readings[reading.replica] = reading

    def pool_gone(self, replica: str) -> None:
        self._pool_readings.pop(replica, None)

    def pin(self, model: str, group: str, count: int | None, now: float) -> None:
        """Have that many replicas, within the bounds, until None makes it automatic again. Raises
        ValueError where there is no such group, or for a negative count."""
        scaler = self._models.get(model)
        if scaler is None or group not in {each.name for each in scaler.terms.groups}:
            raise ValueError(f"there is no group {group!r} of a model {model!r} to set by hand")
        if count is None:
            scaler.pins.pop(group, None)
        elif count < 0:
            raise ValueError(f"a number of replicas is at least 0, not {count}")
        else:
            scaler.pins[group] = count

    def corrected(self, model: str, ratio: float) -> None:
        """A simulation of the last minutes needed so many times the replicas that the formula
        says; kept within 0.7 and 1.5."""
        if model in self._models:
            self._models[model].sizing.correct(ratio)

    # -- what it says

    def crossing(self, model: str) -> bool:
        """Whether the latest demand is a reason to decide now: something waits that nothing that
        runs can take."""
        scaler = self._models.get(model)
        return scaler is not None and scaler.demand.is_urgent and not scaler.hot

    def decide(self, now: float) -> Decisions:
        scalers = self._models
        proposals = {name: each.propose(self.is_frozen, now) for name, each in scalers.items()}
        claims = [c for name, each in scalers.items() for c in each.claims(proposals[name])]
        pool = self._decide_pool(now)
        grants = share([*claims, *self._pool_claim(pool)], self._ceilings())
        decided = {
            name: each.settle(proposals[name], grants, now) for name, each in scalers.items()
        }
        granted = grants.get((POOL, POOL))
        if granted is not None and granted.count < pool.replicas:
            text = f"{granted.count} pool replicas: there is no more {granted.bound}."
            pool = PoolDecision(granted.count, pool.residents, text, pool.cost_hours, pool.saved_s)
        return Decisions(decided, pool)

    def _ceilings(self) -> dict[str, float]:
        return ceilings(self.settings.budget, self._resources)

    def _pool_claim(self, pool: PoolDecision) -> list[Claim]:
        terms = self.settings.pool
        if terms is None:
            return []
        return [Claim(POOL, POOL, terms.needs, pool.replicas, terms.min, priority=_LAST)]

    def _decide_pool(self, now: float) -> PoolDecision:
        terms = self.settings.pool
        if terms is None:
            return PoolDecision()
        loads = {r.model: r for p in self._pool_readings.values() for r in p.residents}
        excesses = []
        for name, scaler in self._models.items():
            if scaler.terms.in_pool:
                load_s = loads[name].load_s if name in loads else _LOAD_S
                size = loads[name].size_bytes if name in loads else 0
                excesses.append(_excess(scaler, load_s or _LOAD_S, size, now))
        return self._pool.decide(self._pool_readings, excesses, terms, now, self.is_frozen)

    def pins(self, model: str) -> dict[str, int]:
        """Numbers that were said by hand, by group."""
        return dict(self._models[model].pins) if model in self._models else {}

    def ladder(self, model: str) -> dict[State, LadderStep]:
        """How long a start from each state took, of those that were seen."""
        return self._models[model].starts.ladder() if model in self._models else {}

    # -- kept over its death

    def save(self, now: float) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "models": {name: scaler.save(now) for name, scaler in self._models.items()},
            "pool": self._pool.save(),
        }

    def load(self, state: dict[str, Any], now: float, age_s: float = 0.0) -> None:
        """A predecessor's state, saved so many seconds ago. That of models which are not listed
        yet is kept until they are. Raises KeyError, TypeError or ValueError for what is none."""
        self._pool.load(state["pool"])
        self._loaded = {}
        for name, saved in state["models"].items():
            if name in self._models:
                self._models[name].load(saved, now - age_s)
            else:
                self._loaded[name] = (saved, now - age_s)


def _excess(scaler: ModelScaler, load_s: float, size_bytes: int, now: float) -> Excess:
    """What of a model's demand its own hot replicas cannot take in time."""
    view = scaler.demand.view((RATE_WINDOW_S, LONGEST_WINDOW_S), now)
    speed, rate = scaler.hot_speed, view.rate(RATE_WINDOW_S) if view.rates else 0.0
    urgent_s = max(0.0, view.backlog_s - 0.5 * speed * scaler.slack_s)
    plan = scaler.planning.forecast.plan
    expected = max(rate, plan.forecast_s if plan else 0.0)
    want = ResidentWant(scaler.terms.name, urgent_s, expected, load_s, size_bytes, scaler.hot)
    price = 1.0 / max(1e-4, 1.0 - scaler.terms.percentile)
    return Excess(scaler.terms.name, max(0.0, rate - speed), price, want)
