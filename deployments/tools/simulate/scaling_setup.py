"""Whether a scenario's replicas come and go, and what decides on them.

They do where the settings give a range and a policy that is not off, or where the model may use the
shared pool; else their number is fixed, and nothing here is used. Of a settings file with several
models only the one that is simulated has replicas, demand and a part of the budget.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from autoscaling.settings import Mode, ModelTerms, ScalingSettings
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.gateway.queues.pool_replicas import PoolUse, with_pool
from deployments.settings.tree import Settings
from deployments.tools.simulate.devices import maker, scaled_deaths
from deployments.tools.simulate.fleet import Fleet, StartTime
from deployments.tools.simulate.scaling_controller import ScalingController, ScalingSetup
from deployments.tools.simulate.scaling_record import ScalingRecord
from deployments.tools.simulate.sim_pool import SimPool
from deployments.tools.simulate.sim_setup import SimSetup, SimSetupError, model_of
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_scaling import ScalingPart


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
