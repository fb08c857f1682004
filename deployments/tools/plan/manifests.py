"""A plan as what a cluster takes: worker groups, the layout for mig-parted, the file's groups.

Worker groups stand in an order that only grows: KubeRay rolls the whole cluster when one is put
before another or goes away, so those of the values in force keep their places, and one that is not
needed any more stays, without replicas. Nodes whose GPUs are cut alike share a layout. Sources:
KubeRay 1.7 (what enters the cluster's hash), mig-parted's `config.yaml`, the device plugin's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoscaling.mig.gpus import Profile
from autoscaling.mig.types import Plan, PlannedGpu
from deployments.settings.groups import GroupSettings
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings
from deployments.tools.plan.needs import MIG_RESOURCE

VENDOR = "nvidia.com/"
Data = dict[str, Any]


def group_name(profile: str) -> str:
    """Of a worker group and of a model's group: `mig-1g-18gb`."""
    return "mig-" + profile.replace(".", "-").replace("+", "-")


def worker_groups(plan: Plan, in_force: Sequence[Mapping[str, Any]] = ()) -> list[Data]:
    """The chart's `workerGroups`, those of `in_force` first and in their order."""
    used = plan.replicas_on()
    profiles = {group_name(each.name): each for each in plan.gpu.profiles}
    groups = []
    for old in in_force:
        profile = profiles.get(str(old.get("name")))
        kept = _sized(used.pop(profile.name, 0)) if profile is not None else {}
        groups.append({**old, **kept})
    return groups + [
        _worker_group(profile, used[profile.name])
        for profile in plan.gpu.profiles
        if profile.name in used
    ]


def _worker_group(profile: Profile, replicas: int) -> Data:
    return {
        "name": group_name(profile.name),
        **_sized(replicas),
        "resource": VENDOR + profile.resource,
        # Neither KubeRay nor Ray's autoscaler counts a MIG resource as a GPU by itself.
        "rayStartParams": {"num-gpus": "1"},
        "customResources": {profile.ray_resource: 1},
    }


def _sized(replicas: int) -> Data:
    return {"replicas": replicas, "minReplicas": replicas, "maxReplicas": replicas}


def nodes(plan: Plan, per_node: int) -> list[tuple[str, tuple[PlannedGpu, ...]]]:
    """(layout's name, GPUs) of each node, its GPUs numbered from 0."""
    found: list[tuple[str, tuple[PlannedGpu, ...]]] = []
    names: dict[tuple[Any, ...], str] = {}
    for first in range(0, len(plan.gpus), per_node):
        gpus = plan.gpus[first : first + per_node]
        key = tuple(gpu.counts for gpu in gpus)
        name = names.setdefault(key, f"headrace-{plan.gpu.name}-{len(names)}")
        found.append((name, gpus))
    return found


def mig_parted(plan: Plan, per_node: int) -> Data:
    """What the MIG manager reads from its ConfigMap's `config.yaml`. GPUs of a node beyond the
    plan's are left as they are."""
    return {
        "version": "v1",
        "mig-configs": {name: _devices(gpus) for name, gpus in nodes(plan, per_node)},
    }


def _devices(gpus: Sequence[PlannedGpu]) -> list[Data]:
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, gpu in enumerate(gpus):
        alike.setdefault(gpu.counts, []).append(number)
    return [
        {"devices": numbers, "mig-enabled": True, "mig-devices": _cut(gpus[numbers[0]])}
        for numbers in alike.values()
    ]


def _cut(gpu: PlannedGpu) -> dict[str, int]:
    pairs = zip(gpu.gpu.profiles, gpu.counts, strict=True)
    return {profile.name: number for profile, number in pairs if number}


def settings_groups(plan: Plan, settings: Settings) -> Data:
    """The part of the settings file that puts each planned model on its slices: all groups of each
    such model, as they were but for their resources."""
    profiles = {s.demand.name: s.profile for gpu in plan.gpus for s in gpu.slices}
    models = {}
    for name, model in settings.models.items():
        views = model.views()
        if name in profiles:
            group = {"name": group_name(profiles[name].name), "count": model.replicas.count}
            placed = [group | _on(profiles[name], model)]
        elif any(f"{name}/{group}" in profiles for group in views):
            placed = [
                _written(group) | _on(profiles.get(f"{name}/{group.name}"), views[group.name])
                for group in model.replicas.groups
            ]
        else:
            continue
        models[name] = {"replicas": {"groups": placed}}
    return {"models": models}


def _written(group: GroupSettings) -> Data:
    return group.model_dump(mode="json", exclude_unset=True)


def _on(profile: Profile | None, model: ModelSettings) -> Data:
    """One device a pod: its place is taken whole. Nothing where no slice was planned."""
    if profile is None:
        return {}
    resources = model.replicas.resources.items()
    kept = {name: amount for name, amount in resources if not MIG_RESOURCE.fullmatch(name)}
    return {"num_gpus": 1, "resources": {**kept, profile.ray_resource: 1}}
