"""Writes a MIG plan as configuration: the chart's worker groups, mig-parted's layouts, and the
groups of the settings file.

KubeRay replaces the whole cluster when a worker group is inserted before another or removed. So the
worker groups of the values in force keep their order, new ones are appended, and one that is not
needed any more stays with `minReplicas: 0`. Nodes whose GPUs have the same slices share a layout.

Sources: KubeRay 1.7 (what enters the cluster's hash), mig-parted's `config.yaml`, the device
plugin's names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoscaling.mig.geometry import Gpu, Profile
from autoscaling.mig.packing import Packing, PlannedGpu, Slice
from deployments.settings.groups import MIG_RESOURCE, GroupSettings
from deployments.settings.tree import Settings
from deployments.tools.plan.needs import MARGIN, POOL, Need


@dataclass(frozen=True, slots=True)
class MigRequest:
    """The options of `headrace plan mig`."""

    gpu: str  # the GPUs' model
    gpus: int | None = None  # how many there are; None: as many as the plan needs
    per_node: int = 8  # GPUs of one node
    need_mib: Mapping[str, int] = field(default_factory=dict)  # measured memory, by model or group
    profiles: Mapping[str, str] = field(default_factory=dict)  # slices to take, by model or group
    usable: Mapping[str, int] = field(default_factory=dict)  # a slice's MiB by profile
    margin: float = MARGIN  # share that is added to memory not in `need_mib`
    surge: bool = False  # plan slices for new replicas beside old ones while a model changes
    values: Path | None = None  # the chart's values in force


@dataclass(frozen=True, slots=True)
class MigPlan:
    """A plan with the needs that it serves and the files that describe it to a cluster."""

    request: MigRequest
    needs: tuple[Need, ...]
    plan: Packing
    remarks: tuple[str, ...]
    files: Mapping[str, Any]  # content by file name

    @property
    def complete(self) -> bool:
        """Whether every replica that needs a slice has one."""
        return not self.plan.rejected and not any(need.unknown for need in self.needs)


PROCESS_GIB = 4  # host memory of Ray and the process, besides the weights that pass through it
MIN_CPUS = 2
Data = dict[str, Any]


def group_name(profile: str) -> str:
    """The name of a profile's worker group and of its group of replicas: `mig-1g-18gb`."""
    return "mig-" + profile.replace(".", "-").replace("+", "-")


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker group whose pods have one slice of a profile each."""

    profile: Profile
    min_replicas: int  # of pods
    max_replicas: int
    cpus: int  # of one pod
    memory_gib: int  # host memory of one pod

    def values(self) -> Data:
        """The group as an item of the chart's `workerGroups`."""
        return {
            "name": group_name(self.profile.name),
            **self.bounds(),
            "cpu": self.cpus,
            "memory": f"{self.memory_gib}Gi",
            "migProfile": self.profile.name,
        }

    def bounds(self) -> Data:
        return {"minReplicas": self.min_replicas, "maxReplicas": self.max_replicas}


def workers(plan: Packing, needs: Sequence[Need]) -> list[Workers]:
    """A worker group for each profile that the plan uses, smallest first."""
    slices = [each for gpu in plan.gpus for each in gpu.slices]
    return [
        _workers(profile, [each for each in slices if each.profile == profile], needs)
        for profile in plan.gpu.profiles
        if any(each.profile == profile for each in slices)
    ]


def _workers(profile: Profile, slices: Sequence[Slice], needs: Sequence[Need]) -> Workers:
    placed = Counter(each.demand.name for each in slices)
    users = [need for need in needs if need.name in placed]
    min_replicas = sum(min(need.min_replicas, placed[need.name]) for need in users)
    cpus = max((math.ceil(need.cpus) for need in users), default=0)
    host_mib = max((need.mib if need.host_mib is None else need.host_mib for need in users),
                   default=0)  # fmt: skip
    memory_gib = math.ceil(host_mib / 1024) + PROCESS_GIB
    return Workers(profile, min_replicas, len(slices), max(MIN_CPUS, cpus), memory_gib)


def worker_groups(
    gpu: Gpu, found: Sequence[Workers], in_force: Sequence[Mapping[str, Any]] = ()
) -> list[Data]:
    """The chart's `workerGroups`: those of `in_force` first, in their order and with all their
    other values, then new ones."""
    new = {each.profile.name: each for each in found}
    kept = [_kept(gpu, old, new) for old in in_force]
    return kept + [each.values() for each in new.values()]


def _kept(gpu: Gpu, old: Mapping[str, Any], new: dict[str, Workers]) -> Data:
    """The group `old` with the bounds of its profile in `new`, which are removed from `new`, so
    that a second group of the profile gets none."""
    profile = str(old.get("migProfile"))
    if gpu.named(profile) is None:
        return dict(old)
    found = new.pop(profile, None)
    return {**old, **({"minReplicas": 0} if found is None else found.bounds())}


def values(plan: Packing, groups: Sequence[Data], per_node: int) -> Data:
    """Values for the chart, to be given after the settings file."""
    layouts = mig_parted(plan, per_node)["mig-configs"]
    return {"workerGroups": list(groups), "migLayouts": {"configs": layouts}}


def nodes(plan: Packing, per_node: int) -> list[tuple[str, tuple[PlannedGpu, ...]]]:
    """The layout's name and the GPUs of each node; a node has `per_node` GPUs, numbered from 0."""
    found: list[tuple[str, tuple[PlannedGpu, ...]]] = []
    names: dict[tuple[Any, ...], str] = {}
    for first in range(0, len(plan.gpus), per_node):
        gpus = plan.gpus[first : first + per_node]
        key = tuple(gpu.counts for gpu in gpus)
        name = names.setdefault(key, f"headrace-{plan.gpu.name}-{len(names)}")
        found.append((name, gpus))
    return found


def mig_parted(plan: Packing, per_node: int) -> Data:
    """The `config.yaml` in the MIG manager's ConfigMap. A node's GPUs that the plan does not need
    are not mentioned, so they stay as they are."""
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


def settings_groups(plan: Packing, settings: Settings) -> Data:
    """The part of the settings file that puts planned models and the shared pool on their slices.

    It has all groups of each planned model. Of a group, only the resources change.
    """
    profiles = {s.demand.name: s.profile for gpu in plan.gpus for s in gpu.slices}
    models = {}
    for name, model in settings.models.items():
        views = model.views()
        if name in profiles:
            group = {"name": group_name(profiles[name].name)}
            placed = [group | _on(profiles[name], model.replicas.resources)]
        elif any(f"{name}/{group}" in profiles for group in views):
            placed = [
                _written(group)
                | _on(profiles.get(f"{name}/{group.name}"), views[group.name].replicas.resources)
                for group in model.replicas.groups
            ]
        else:
            continue
        models[name] = {"replicas": {"groups": placed}}
    pool = settings.scaling.pool
    if pool is None or POOL not in profiles:
        return {"models": models}
    return {"models": models, "scaling": {"pool": _on(profiles[POOL], pool.resources)}}


def _written(group: GroupSettings) -> Data:
    return group.model_dump(mode="json", exclude_unset=True)


def _on(profile: Profile | None, resources: Mapping[str, float]) -> Data:
    """The resources of a replica on a slice of `profile`; {} without one.

    `num_gpus` is 1, since a pod has one slice and a replica takes all of it.
    """
    if profile is None:
        return {}
    kept = {name: amount for name, amount in resources.items() if not MIG_RESOURCE.fullmatch(name)}
    return {"num_gpus": 1, "resources": {**kept, profile.ray_resource: 1}}
