"""Translates settings for the autoscaler: each model's terms and policy, the budget, the pool.

This is the only place that translates; the autoscaler itself knows no settings file. A field that
the user did not give keeps the default of `autoscaling.settings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaling.settings import (
    Budget,
    GroupTerms,
    Mode,
    ModelTerms,
    Needs,
    PolicySettings,
    PoolTerms,
    ScalingSettings,
)
from deployments.contract.listed import Control
from deployments.contract.model_arguments import pool_arguments
from deployments.contract.rollout.terms import is_canary
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.messages import PoolModel
from deployments.settings.capacity import PoolSettings
from deployments.settings.model import ModelSettings
from deployments.settings.plain import parse, settings_digest
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings

_MIB = 1 << 20
Resources = tuple[tuple[str, float], ...]


def scaling_document(settings: Settings) -> ScalingDocument:
    """The document that the autoscaler reads. `settings`: with paths as the user wrote them, as for
    `serve_config`."""
    pool, budget = settings.scaling.pool, settings.scaling.budget
    held: list[PoolModel] = []
    for name, model in () if pool is None else pooled(settings, pool):
        args = pool_arguments(name, model, settings.gateway.channel)
        held.append(PoolModel(name, settings_digest(args["settings"]), args))
    keys = {each.name: each.key for each in held}
    own = _amounts(budget.cpus, budget.gpus, budget.memory_mib)
    bounds = {name: bound for name, bound in own.items() if bound is not None} | budget.resources
    return ScalingDocument(
        ScalingSettings(
            {name: model_terms(name, m, keys.get(name)) for name, m in settings.models.items()},
            Budget(_sorted(bounds.items()), budget.cost_per_hour),
            _pool(pool),
        ),
        tuple(held),
    )


def published_scaling(control: Control) -> ScalingDocument:
    """What the autoscaler is told. Models of `versions` hold instead of the file's, or besides.
    They need not go together with those, as one file's models do: an old live version may name a
    model that the file has no more."""
    return scaling_document(scaling_settings(control))


def scaling_settings(control: Control) -> Settings:
    """The settings that say it."""
    settings = parse(control.scaling)
    besides = {n: ModelSettings.model_validate(m) for n, m in control.versions.items()}
    return settings.model_copy(update={"models": {**settings.models, **besides}})


def model_terms(name: str, model: ModelSettings, pool_key: str | None = None) -> ModelTerms:
    """One model's terms. `pool_key`: for a model that the shared pool may hold, the digest of its
    settings there."""
    return ModelTerms(
        name=name,
        slo_s=model.deadline_s,
        groups=_groups(model),
        percentile=model.slo.percentile / 100,
        priority=model.replicas.priority,
        policy=policy_settings(model),
        in_pool=pool_key is not None,
        pool_key=pool_key or "",
    )


def policy_settings(model: ModelSettings) -> PolicySettings:
    given = model.scaling.resolved_policy()
    replicas = {"spare": model.replicas.spare, "survive": model.replicas.survive}
    given |= {name: number for name, number in replicas.items() if number is not None}
    if "mode" in given:
        given["mode"] = Mode(given["mode"])
    return PolicySettings(**given)


def _groups(model: ModelSettings) -> tuple[GroupTerms, ...]:
    views = model.views()
    if not views:
        return (_group("", model.replicas, reserve=False),)
    longest, groups = model.lengths.max, model.replicas.groups
    return tuple(
        replace(
            _group(group.name, views[group.name].replicas, reserve=group.after_s > 0),
            max_length=None if group.max_length == longest else group.max_length,
        )
        for group in groups
    )


def _group(name: str, replicas: ReplicaSettings, *, reserve: bool) -> GroupTerms:
    amounts = _amounts(replicas.num_cpus, replicas.num_gpus, replicas.memory_mib)
    needs = Needs(_taken(amounts, replicas.resources), replicas.cost_per_hour)
    return GroupTerms(name, replicas.least, replicas.most, reserve, needs)


def _amounts(
    cpus: float | None, gpus: float | None, memory_mib: int | None
) -> dict[str, float | None]:
    """By Ray's names; None: not given."""
    memory = None if memory_mib is None else float(memory_mib * _MIB)
    return {"CPU": cpus, "GPU": gpus, "memory": memory}


def _taken(own: Mapping[str, float | None], custom: Mapping[str, float]) -> Resources:
    """The amounts above 0."""
    return _sorted((name, amount) for name, amount in {**own, **custom}.items() if amount)


def _sorted(amounts: Iterable[tuple[str, float]]) -> Resources:
    return tuple(sorted((name, float(amount)) for name, amount in amounts))


def _pool(pool: PoolSettings | None) -> PoolTerms | None:
    if pool is None:
        return None
    amounts = _amounts(pool.num_cpus, pool.num_gpus, None)
    return PoolTerms(
        min=pool.min,
        max=pool.max,
        memory_bytes=pool.memory_mib * _MIB,
        needs=Needs(_taken(amounts, pool.resources), pool.cost_per_hour),
    )


def pooled(settings: Settings, pool: PoolSettings) -> list[tuple[str, ModelSettings]]:
    """The models that a replica of the pool may hold. Canaries are not among them: they have
    replicas of their own."""
    named = settings.models if pool.models == "all" else pool.models
    return [
        (name, model)
        for name, model in settings.models.items()
        if name in named and not model.unpoolable(pool.num_gpus) and not is_canary(name)
    ]
