"""The autoscaler without its cluster: takes in messages, returns targets and outlooks.

Translates between what processes report (`messages`, Serve's details) and the readings of the core
(`autoscaling`), and keeps what the core does not: who reported what, and when. Given the time, does
no I/O; `autoscaler_actor` is the shell that asks and stores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import ModelTerms, ScalingSettings
from autoscaling.types import (
    Decisions,
    GroupReading,
    ModelDecision,
    Reason,
    StartReading,
)
from deployments.contract.app_names import GATEWAY_APP, POOL_DIRECTORY, directory_key
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.messages import (
    GatewayReport,
    ModelOutlook,
    Observed,
    PoolOrder,
    PoolReport,
)
from deployments.control.scaling.pool_orders import PoolOrderBook
from deployments.control.scaling.readings import (
    GatewayReports,
    ServeObservations,
    group_readings,
    running_ids,
)
from deployments.control.scaling.start_orders import StartOrders

logger = logging.getLogger("headrace.autoscaler")


class Decider:
    """Owns the autoscaling core. `first_revision`: of orders to pool replicas; must be above all
    that an earlier `Decider` gave."""

    def __init__(self, now: float, first_revision: int) -> None:
        self.document = ScalingDocument()
        self.decisions = Decisions()
        self.seen = ServeObservations()
        self.gateways = GatewayReports()
        self.available: Mapping[str, float] = {}
        self.pool = PoolOrderBook(first_revision)
        self._core = Autoscaler(ScalingSettings(), now)
        self._orders = StartOrders()
        self._groups: dict[str, tuple[GroupReading, ...]] = {}
        self._outlooks: dict[str, ModelOutlook] = {}
        self._spoilt: set[str] = set()  # models of which a gateway reported impossible demand

    # ---- what it is told --------------------------------------------------------------------

    def reconfigure(self, document: ScalingDocument, now: float) -> None:
        self.document = document
        self._core.reconfigure(document.settings, now)

    def report(self, report: GatewayReport, now: float) -> bool:
        """Take in a gateway's report. Returns whether to decide at once. Demand that is no amount
        of work is left out, for that model only."""
        self.gateways.on_report(report, now)
        terms = self.document.settings.models
        loads = {name: load for name, load in report.models.items() if name in terms}
        for name, load in loads.items():
            try:
                self._core.record_demand(report.gateway, name, load.demand, now)
                self._spoilt.discard(name)
            except ValueError as wrong:
                if name not in self._spoilt:
                    logger.warning("%s", wrong, extra={"model": name})
                self._spoilt.add(name)
        return any(
            load.demand.urgent or load.demand.backlog_s > terms[name].slo_s
            for name, load in loads.items()
        )

    def exchange(self, observed: Mapping[str, Observed], now: float) -> dict[str, int]:
        """Take in what Serve runs, by "application/deployment". Returns the targets, likewise."""
        self.seen.observe(observed, now)
        self._orders.observe(observed, now)
        return self.targets()

    def detail(self, applications: Mapping[str, Any], now: float) -> None:
        """Take in Serve's details by application."""
        self.seen.detail(applications, now)
        for gateway in self.gateways.keep(running_ids(applications, GATEWAY_APP), now):
            self._core.gateway_gone(gateway)

    def record_start(self, start: StartReading, now: float) -> None:
        whole = self._orders.whole(start, now)
        if whole is not None:
            self._core.record_start(whole)

    def set_described(self, model: str, known: bool) -> None:
        self._core.set_described(model, known)

    def resources(self, most: Mapping[str, float] | None, available: Mapping[str, float]) -> None:
        """`most`: what the cluster has or may come to have; None: not known. `available`: what is
        free."""
        self._core.cluster(most)
        self.available = available

    def pin(self, model: str, group: str, replicas: int | None, now: float) -> str:
        """Fix a group's number of replicas. Returns what is wrong with the number, or ""."""
        complaint = pin_complaint(self.document.settings, model, group, replicas)
        if not complaint:
            self._core.pin(model, group, replicas, now)
        return complaint

    def pool_report(self, report: PoolReport, now: float) -> PoolOrder:
        keys = {each.key for each in self.document.pool_models}
        self._core.pool(self.pool.on_report(report, keys, now), now)
        return self.pool.order(report.replica)

    # ---- what it says -----------------------------------------------------------------------

    def step(self, now: float) -> list[str]:
        """Decide. Returns what has changed, one sentence each."""
        for replica in self.pool.sweep(now):
            self._core.pool_gone(replica)
        self._core.frozen(self.gateways.frozen(now))
        terms = self.document.settings.models
        self._groups = {
            name: group_readings(
                each, self.gateways.loads(name, now), self.seen, self.available, now
            )
            for name, each in terms.items()
        }
        for name, groups in self._groups.items():
            if groups:
                self._core.record_replicas(name, groups, self.seen.at)
        before, self.decisions = self.decisions, self._core.decide(now)
        outlooks: dict[str, ModelOutlook] = {}
        for name, decision in self.decisions.models.items():
            begun_s = self._orders.begun_s(name, [each.name for each in terms[name].groups], now)
            groups = self._groups.get(name, ())
            back_s = self._core.back_s(name)
            outlooks[name] = outlook(terms[name], decision, groups, begun_s, back_s)
        self._outlooks = outlooks
        return changes(before, self.decisions)

    def order_pool(self) -> bool:
        """Give pool replicas their orders. Returns whether any order has changed."""
        models = {each.name: each for each in self.document.pool_models}
        return self.pool.decide(self.decisions.pool.residents, models)

    def targets(self) -> dict[str, int]:
        """Targets by "application/deployment", without models whose decisions are only
        observed."""
        targets = self._minimums() | {
            directory_key(name, group.name): group.target
            for name, decision in self.decisions.models.items()
            if not decision.observed
            for group in decision.groups
        }
        if self.document.settings.pool is not None and self.decisions.models:
            targets[POOL_DIRECTORY] = self.decisions.pool.replicas
        return targets

    def _minimums(self) -> dict[str, int]:
        """The least numbers of replicas, for groups that Serve runs with fewer. Serve starts an
        optional model with none."""
        return {
            key: group.min
            for name, terms in self.document.settings.models.items()
            for group in terms.groups
            if (seen := self.seen.observed.get(key := directory_key(name, group.name)))
            and seen.target < group.min
        }

    def outlooks(self) -> dict[str, ModelOutlook]:
        return self._outlooks

    def status(self) -> dict[str, Any]:
        """The state as plain values, for `headrace status`."""
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
        """Load what was saved `age_s` ago by the wall clock. If that clock was set back since, the
        state counts as saved just now. Raises KeyError, TypeError or ValueError for anything that
        is not a saved state, and then changes nothing."""
        core = Autoscaler(self.document.settings, now)
        core.load(state, now, max(0.0, age_s))
        self._core = core


def pin_complaint(settings: ScalingSettings, model: str, group: str, replicas: int | None) -> str:
    """What is wrong with a number of replicas that an operator wants to fix; "" if nothing is."""
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
        if bounds.min == bounds.max:
            return (
                f"{model} always has {bounds.min}: with replicas.min and replicas.max in place of "
                "replicas.count it can be scaled between those"
            )
        return (
            f"{replicas} replicas are not within {bounds.min} to {bounds.max}, the model's "
            "replicas.min and max"
        )
    return ""


# ---- what gateways and operators are told --------------------------------------------------------

ANY_LENGTH = 1 << 62  # longer than any row
POOL_TURN_S = 2.0  # a request is heard of, the pool ordered and listed: at most two rounds


def outlook(
    terms: ModelTerms,
    decision: ModelDecision,
    groups: Iterable[GroupReading],
    begun_s: float = 0.0,
    back_s: float = inf,
) -> ModelOutlook:
    """What gateways are told of a model. `groups`: the readings that the decision was made from;
    `begun_s`: seconds since the next replica to come was ordered; `back_s`: as in `Autoscaler`."""
    runs = list(groups)
    starting = sum(each.starting for each in runs)
    # The operator or a freeze keeps it at no replicas, so that no request can wake it.
    held = decision.reason in (Reason.FROZEN, Reason.MANUAL) and decision.groups
    held_at_none = held and not any(each.target for each in decision.groups)
    may_sleep = terms.may_sleep and not decision.observed and not held_at_none
    targets = {each.name: each.target for each in decision.groups}
    anew_s = max(0.0, decision.time_to_capacity_s - (begun_s if starting else 0.0))
    holds = decision.reason in (Reason.FROZEN, Reason.MANUAL, Reason.FIXED)
    waking = [
        ANY_LENGTH if group.max_length is None else group.max_length
        for group in terms.groups
        if group.min == 0 < group.max and not (holds and not targets.get(group.name))
    ]
    return ModelOutlook(
        may_sleep=may_sleep,
        wakes=may_sleep and not any(each.hot or each.starting for each in runs),
        wakes_up_to=0 if decision.observed else max(waking, default=0),
        ready_in_s=min(anew_s, back_s + POOL_TURN_S),
        targets=targets,
        wanted={each.name: each.wanted for each in decision.groups},
        starting=starting,
        reason=decision.reason.value,
        offered_s=decision.offered_s,
        planned_s=decision.planned_s,
        forecast_s=decision.forecast_s,
        forecast_trusted=decision.forecast_trusted,
    )


def changes(before: Decisions, after: Decisions) -> list[str]:
    """A sentence for each model whose targets or reason have changed."""
    said = []
    for name, decision in after.models.items():
        old = before.models.get(name)
        targets = [each.target for each in decision.groups]
        if old is None or targets != [each.target for each in old.groups]:
            was = "?" if old is None else _numbers(old)
            said.append(f"{name}: {was} -> {_numbers(decision)} replicas, {_why(decision)}")
        elif old.reason is not decision.reason:
            said.append(f"{name}: {_numbers(decision)} replicas, {_why(decision)}")
    if after.pool.replicas != before.pool.replicas:
        said.append(f"pool: {before.pool.replicas} -> {after.pool.replicas}: {after.pool.text}")
    return said


def _why(decision: ModelDecision) -> str:
    only = " (observed, not done)" if decision.observed else ""
    return f"{decision.reason.value}{only}: {decision.text}"


def _numbers(decision: ModelDecision) -> str:
    named = [f"{each.name} {each.target}" if each.name else f"{each.target}"
             for each in decision.groups]  # fmt: skip
    return ", ".join(named) or "no"


def as_plain(decision: ModelDecision, groups: Iterable[GroupReading]) -> dict[str, Any]:
    """The decision as plain values for `status`, each group with what runs of it."""
    runs = {each.name: each for each in groups}
    plain = asdict(decision)
    plain["reason"] = decision.reason.value
    for group in plain["groups"]:
        reading = runs.get(group["name"], GroupReading())
        group |= {
            "serve_target": reading.target, "running": reading.hot, "starting": reading.starting,
            "draining": reading.draining, "unplaced_s": reading.unplaced_s,
            "missing": reading.missing,
        }  # fmt: skip
    return plain
