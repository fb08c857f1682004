"""The autoscaler without its cluster: messages in, targets and outlooks out, given the time.

Translates between what processes say (`messages`, Serve's details) and the core's readings, and
keeps what the core does not: who said what, and when. The actor around it is the shell that asks
and stores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import ModelTerms, ScalingSettings
from autoscaling.types import Decisions, DemandReading, GroupReading, StartReading
from deployments.contract.app_names import GATEWAY_APP, POOL_DIRECTORY, directory_key
from deployments.contract.scaling.deployments_seen import DeploymentsSeen, running_ids
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.gateway_reports import GatewayReports
from deployments.contract.scaling.group_readings import group_readings
from deployments.contract.scaling.messages import (
    GatewayReport,
    ModelLoad,
    ModelOutlook,
    Observed,
    PoolOrder,
    PoolReport,
)
from deployments.contract.scaling.outlooks import as_plain, changes, outlook
from deployments.contract.scaling.pool_orders import PoolOrders
from deployments.contract.scaling.start_orders import StartOrders

logger = logging.getLogger("headrace.autoscaler")


class Decider:
    """`first_revision`: of an order to a pool replica; above all that an earlier one gave."""

    def __init__(self, now: float, first_revision: int) -> None:
        self.document = ScalingDocument()
        self.decisions = Decisions()
        self.seen = DeploymentsSeen()
        self.gateways = GatewayReports()
        self.available: Mapping[str, float] = {}
        self.pool = PoolOrders(first_revision)
        self._core = Autoscaler(ScalingSettings(), now)
        self._orders = StartOrders()
        self._groups: dict[str, tuple[GroupReading, ...]] = {}
        self._outlooks: dict[str, ModelOutlook] = {}
        self._spoilt: set[str] = set()  # whose demand some gateway told in numbers that are none

    # ---- what it is told --------------------------------------------------------------------

    def reconfigure(self, document: ScalingDocument, now: float) -> None:
        self.document = document
        self._core.reconfigure(document.settings, now)

    def report(self, report: GatewayReport, now: float) -> bool:
        """Whether to decide at once. What is no amount of work is left out, of that model alone."""
        self.gateways.hear(report, now)
        terms = self.document.settings.models
        loads = {name: load for name, load in report.models.items() if name in terms}
        for name, load in loads.items():
            self._hear(report.gateway, name, load.demand, now)
        return any(_presses(load, terms[name]) for name, load in loads.items())

    def _hear(self, gateway: str, model: str, demand: DemandReading, now: float) -> None:
        try:
            self._core.heard(gateway, model, demand, now)
        except ValueError as wrong:
            if model not in self._spoilt:
                logger.warning("%s", wrong, extra={"model": model})
            self._spoilt.add(model)
        else:
            self._spoilt.discard(model)

    def exchange(self, observed: Mapping[str, Observed], now: float) -> dict[str, int]:
        """What Serve runs, by "application/deployment"; targets, likewise."""
        self.seen.observe(observed, now)
        self._orders.observe(observed, now)
        return self.targets()

    def detail(self, applications: Mapping[str, Any], now: float) -> None:
        """Serve's details by application."""
        self.seen.detail(applications, now)
        for gateway in self.gateways.keep(running_ids(applications, GATEWAY_APP), now):
            self._core.gateway_gone(gateway)

    def started(self, start: StartReading, now: float) -> None:
        whole = self._orders.whole(start, now)
        if whole is not None:
            self._core.started(whole)

    def described(self, model: str, known: bool) -> None:
        self._core.described(model, known)

    def resources(self, most: Mapping[str, float] | None, available: Mapping[str, float]) -> None:
        """most: what the cluster has or may come to have, None: not known."""
        self._core.cluster(most)
        self.available = available

    def pin(self, model: str, group: str, replicas: int | None, now: float) -> str:
        """What is wrong with it, "" where nothing is."""
        complaint = pin_complaint(self.document.settings, model, group, replicas)
        if not complaint:
            self._core.pin(model, group, replicas, now)
        return complaint

    def pool_report(self, report: PoolReport, now: float) -> PoolOrder:
        self._core.pool(self.pool.hear(report, now), now)
        return self.pool.order(report.replica)

    # ---- what it says -----------------------------------------------------------------------

    def step(self, now: float) -> list[str]:
        """Decides; what changed, a sentence each."""
        for replica in self.pool.sweep(now):
            self._core.pool_gone(replica)
        self._core.frozen(self.gateways.frozen(now))
        terms = self.document.settings.models
        self._groups = {name: self._runs(each, now) for name, each in terms.items()}
        for name, groups in self._groups.items():
            if groups:
                self._core.observed(name, groups, self.seen.at)
        before, self.decisions = self.decisions, self._core.decide(now)
        self._outlooks = {
            name: outlook(
                terms[name], decision, self._groups.get(name, ()), self._begun_s(terms[name], now)
            )
            for name, decision in self.decisions.models.items()
        }
        return changes(before, self.decisions)

    def _begun_s(self, terms: ModelTerms, now: float) -> float:
        return self._orders.begun_s(terms.name, [group.name for group in terms.groups], now)

    def _runs(self, terms: ModelTerms, now: float) -> tuple[GroupReading, ...]:
        loads = self.gateways.loads(terms.name, now)
        return group_readings(terms, loads, self.seen, self.available, now)

    def order_pool(self) -> bool:
        """Gives pool replicas their orders; whether any is another one than before."""
        models = {each.name: each for each in self.document.pool_models}
        return self.pool.decide(self.decisions.pool.residents, models)

    def targets(self) -> dict[str, int]:
        """By "application/deployment"; what is decided but only observed is not in it."""
        targets = self._least() | {
            directory_key(name, group.name): group.target
            for name, decision in self.decisions.models.items()
            if not decision.observed
            for group in decision.groups
        }
        if self.document.settings.pool is not None and self.decisions.models:
            targets[POOL_DIRECTORY] = self.decisions.pool.replicas
        return targets

    def _least(self) -> dict[str, int]:
        """Of groups that Serve lets have fewer replicas than their settings do: an optional
        model's, which it starts with none."""
        least = {
            directory_key(name, group.name): group.min
            for name, terms in self.document.settings.models.items()
            for group in terms.groups
        }
        return {
            key: number
            for key, number in least.items()
            if key in self.seen.observed and self.seen.observed[key].target < number
        }

    def outlooks(self) -> dict[str, ModelOutlook]:
        return self._outlooks

    def status(self) -> dict[str, Any]:
        """Plain values."""
        models = {
            name: as_plain(decision, self._groups.get(name, ()))
            | {
                "priority": self.document.settings.models[name].priority,
                "pinned": self._core.pins(name),
                "states": {s.value: asdict(step) for s, step in self._core.ladder(name).items()},
            }
            for name, decision in self.decisions.models.items()
            if name in self.document.settings.models
        }
        pool = asdict(self.decisions.pool) | {
            "reports": [asdict(report) for report in self.pool.reports()],
            "serve": asdict(self.seen.observed.get(POOL_DIRECTORY, Observed(0, 0))),
        }
        return {
            "models": models,
            "pool": None if self.document.settings.pool is None else pool,
            "frozen": self._core.is_frozen,
        }

    # ---- kept over its death ----------------------------------------------------------------

    def save(self, now: float) -> dict[str, Any]:
        return self._core.save(now)

    def load(self, state: dict[str, Any], now: float, age_s: float) -> None:
        """Saved `age_s` ago by the wall clock, which may have been set back since: then just now.
        Raises KeyError, TypeError or ValueError for what is no state; nothing is kept of it."""
        core = Autoscaler(self.document.settings, now)
        core.load(state, now, max(0.0, age_s))
        self._core = core


def pin_complaint(settings: ScalingSettings, model: str, group: str, replicas: int | None) -> str:
    """What is wrong with a number that was set by hand."""
    terms = settings.models.get(model)
    if terms is None:
        return f"there is no model {model}; must be one of {', '.join(settings.models) or 'none'}"
    groups = {each.name: each for each in terms.groups}
    if group not in groups:
        names = ", ".join(name for name in groups if name)
        return (
            f"{model} has the groups {names}: say which, with --group"
            if names
            else (f"{model} has no groups; --group must be left out")
        )
    bounds = groups[group]
    if replicas is not None and not bounds.min <= replicas <= bounds.max:
        return (
            f"{replicas} replicas are not within {bounds.min} to {bounds.max}, the model's "
            "replicas.min and max"
        )
    return ""


def _presses(load: ModelLoad, terms: ModelTerms) -> bool:
    """Whether what waits can't wait for the next turn."""
    demand = load.demand
    return demand.urgent or demand.backlog_s > terms.slo_s
