"""How many replicas should each model have, and what should the shared pool hold?

An actor, a test or the simulator drives this core: it brings readings and the time, and carries out
the decisions. Each model proposes a number (`model_scaler`), the shared budget cuts the proposals
(`budget`), and the pool takes work that the models' own replicas cannot (`pool`). What was learnt
can be saved as plain values, with times as ages, and loaded by a successor on another clock. This
module fetches nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from autoscaling.budget import Claim, ceilings, share
from autoscaling.demand import WINDOWS_S
from autoscaling.envelope import RATE_WINDOW_S
from autoscaling.model_scaler import ModelScaler
from autoscaling.observation import LadderStep
from autoscaling.pool import Excess, Pool, ResidentWant
from autoscaling.settings import ScalingSettings
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
_LAST = 1_000_000  # priority of the pool: after all models
_UNMEASURED_LOAD_S = 5.0


@dataclass(frozen=True, slots=True)
class _Load:
    """The last measured load of a model into the pool; 0: not measured yet."""

    seconds: float = 0.0
    size_bytes: int = 0


class Autoscaler:
    """Decides for one cluster. Readings of models that the settings do not list are ignored."""

    def __init__(self, settings: ScalingSettings, now: float = 0.0) -> None:
        self.settings = settings
        self.is_frozen = False
        self._models: dict[str, ModelScaler] = {}
        self._resources: dict[str, float] | None = None
        self._pool = Pool()
        self._pool_readings: dict[str, PoolReading] = {}
        self._loads: dict[str, _Load] = {}
        self._loaded: dict[str, tuple[Any, float]] = {}
        self.reconfigure(settings, now)

    # -- readings and settings

    def reconfigure(self, settings: ScalingSettings, now: float) -> None:
        """Go on under new settings. A model that is no longer listed is forgotten."""
        self.settings = settings
        for name in [each for each in self._models if each not in settings.models]:
            del self._models[name]
            self._loads.pop(name, None)
        for name, terms in settings.models.items():
            if name in self._models:
                self._models[name].adopt(terms)
            else:
                self._models[name] = ModelScaler(terms, now)
                if name in self._loaded:
                    self._models[name].load(*self._loaded.pop(name))

    def record_demand(self, gateway: str, model: str, reading: DemandReading, now: float) -> None:
        """Take the demand for one model at one gateway. Raises ValueError if an amount of work is
        negative or not finite."""
        if model in self._models:
            self._models[model].demand.on_report(gateway, reading, now)

    def gateway_gone(self, gateway: str) -> None:
        """Forget a gateway that is known to have ended."""
        for scaler in self._models.values():
            scaler.demand.gone(gateway)

    def frozen(self, on: bool) -> None:
        """Freeze: all numbers hold, and nothing is learnt. False: go on."""
        self.is_frozen = on

    def record_replicas(self, model: str, groups: tuple[GroupReading, ...], now: float) -> None:
        """Take the replicas of a model as they are now."""
        if model in self._models:
            self._models[model].observe(groups, now)

    def set_described(self, model: str, known: bool) -> None:
        """Take whether a replica has ever described the model."""
        if model in self._models:
            self._models[model].described = known

    def record_start(self, reading: StartReading) -> None:
        """Take the start of a replica that has begun to serve; ignored while frozen."""
        if reading.model in self._models and not self.is_frozen:
            self._models[reading.model].starts.add(reading)

    def cluster(self, resources: Mapping[str, float] | None) -> None:
        """Take the resources of all nodes. None: unknown, or nodes can be added."""
        self._resources = None if resources is None else dict(resources)

    def pool(self, reading: PoolReading, now: float) -> None:
        """Take what a pool replica holds."""
        self._pool_readings[reading.replica] = reading
        for each in reading.residents:
            known = self._loads.get(each.model, _Load())
            self._loads[each.model] = _Load(
                each.load_s or known.seconds, each.size_bytes or known.size_bytes
            )

    def pool_gone(self, replica: str) -> None:
        """Forget a pool replica that has ended."""
        self._pool_readings.pop(replica, None)

    def pin(self, model: str, group: str, count: int | None, now: float) -> None:
        """Set a group's number of replicas by hand, within its bounds; None: automatic again.
        Raises ValueError if there is no such group, or for a negative count."""
        scaler = self._models.get(model)
        if scaler is None or group not in {each.name for each in scaler.terms.groups}:
            raise ValueError(f"model {model!r} has no group {group!r} that could be set by hand")
        if count is None:
            scaler.pins.pop(group, None)
        elif count < 0:
            raise ValueError(f"the number of replicas is {count}; must be at least 0")
        else:
            scaler.pins[group] = count

    # -- decisions

    def decide(self, now: float) -> Decisions:
        """The targets of all models and of the pool. Called each second, and at once when demand
        crosses the plan."""
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
        going = max(0, len(self._pool_readings) - pool.replicas)
        return [Claim(POOL, POOL, terms.needs, pool.replicas, terms.min, going, _LAST)]

    def _decide_pool(self, now: float) -> PoolDecision:
        terms = self.settings.pool
        if terms is None:
            return PoolDecision()
        wakes = self._wakes()
        excesses = [
            _excess(scaler, self._loads.get(name, _Load()), wakes.get(name, 0.0), now)
            for name, scaler in self._models.items()
            if scaler.terms.in_pool
        ]
        return self._pool.decide(self._pool_readings, excesses, terms, now, self.is_frozen)

    def _wakes(self) -> dict[str, float]:
        """By model of which the pool holds an engine, asleep or awake: the seconds of a waking."""
        wakes: dict[str, float] = {}
        for reading in self._pool_readings.values():
            known = [(each.model, each.wake_s) for each in reading.residents]
            for model, wake_s in [*known, *reading.kept.items()]:
                if wake_s:
                    wakes[model] = min(wake_s, wakes.get(model, wake_s))
        return wakes

    def back_s(self, model: str) -> float:
        """Until a pool replica would serve the model that it keeps asleep; inf: none keeps it, or
        each has other work, which would have to end first."""
        return min(
            (
                reading.kept[model]
                for reading in self._pool_readings.values()
                if model in reading.kept and not any(each.busy for each in reading.residents)
            ),
            default=inf,
        )

    def pins(self, model: str) -> dict[str, int]:
        """The numbers of a model that were set by hand, by group."""
        return dict(self._models[model].pins) if model in self._models else {}

    def ladder(self, model: str) -> dict[State, LadderStep]:
        """How long a model's starts took, by the state in which they began."""
        return self._models[model].starts.ladder() if model in self._models else {}

    # -- state for a successor

    def save(self, now: float) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "models": {name: scaler.save(now) for name, scaler in self._models.items()},
            "pool": self._pool.save(),
        }

    def load(self, state: dict[str, Any], now: float, age_s: float = 0.0) -> None:
        """Take over a predecessor's state, saved `age_s` seconds ago. The state of a model that is
        not listed yet is kept until it is. Raises KeyError, TypeError or ValueError if `state` is
        not a saved state."""
        self._pool.load(state["pool"])
        self._loaded = {}
        for name, saved in state["models"].items():
            if name in self._models:
                self._models[name].load(saved, now - age_s)
            else:
                self._loaded[name] = (saved, now - age_s)


def _excess(scaler: ModelScaler, load: _Load, wake_s: float, now: float) -> Excess:
    """The part of a model's demand that its own hot replicas cannot take in time. `wake_s`: after
    which the pool has it back once it has slept there; 0.0: that is not known."""
    view = scaler.demand.view(WINDOWS_S, now)
    speed, rate = scaler.runs.speed, view.rate(RATE_WINDOW_S) if view.rates else 0.0
    urgent_s = max(0.0, view.backlog_s - 0.5 * speed * scaler.slack_s)
    plan = scaler.planning.forecast.plan
    expected = view.recent_rate()
    if plan is not None and plan.trusted:
        expected = max(expected, plan.forecast_s)
    anew_s = load.seconds or _UNMEASURED_LOAD_S
    want = ResidentWant(
        scaler.terms.name, urgent_s, expected, wake_s or anew_s, load.size_bytes, scaler.runs.hot,
        anew_s,
    )  # fmt: skip
    price = 1.0 / max(1e-4, 1.0 - scaler.terms.percentile)
    return Excess(scaler.terms.name, max(0.0, rate - speed), price, want)
