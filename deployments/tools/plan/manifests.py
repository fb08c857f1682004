"""A plan as what a cluster takes: worker groups, the layout for mig-parted, the file's groups.

Worker groups stand in an order that only grows: KubeRay rolls the whole cluster when one is put
before another or goes away, so those of the values in force keep their places, and one that is not
needed any more stays, with none at least. Nodes whose GPUs are cut alike share a layout. Sources:
KubeRay 1.7 (what enters the cluster's hash), mig-parted's `config.yaml`, the device plugin's names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaling.mig.gpus import Gpu, Profile
from autoscaling.mig.types import Plan, PlannedGpu, Slice
from deployments.settings.groups import GroupSettings
from deployments.settings.tree import Settings
from deployments.tools.plan.needs import MIG_RESOURCE, POOL, Need

VENDOR = "nvidia.com/"
PROCESS_GIB = 4  # of host memory beside the weights, which pass through it: Ray and the process
LEAST_CPUS = 2
Data = dict[str, Any]


def group_name(profile: str) -> str:
    """Of a worker group and of a model's group: `mig-1g-18gb`."""
    return "mig-" + profile.replace(".", "-").replace("+", "-")


@dataclass(frozen=True, slots=True)
class Workers:
    """Pods of one profile. least, most: how many; cpus, memory_gib: what one takes of its node."""

    profile: Profile
    least: int
    most: int
    cpus: int
    memory_gib: int

    def values(self) -> Data:
        """As the chart's `workerGroups` has it, which makes the rest of it."""
        return {
            "name": group_name(self.profile.name),
            **self.bounds(),
            "cpu": self.cpus,
            "memory": f"{self.memory_gib}Gi",
            "migProfile": self.profile.name,
        }

    def bounds(self) -> Data:
        return {"minReplicas": self.least, "maxReplicas": self.most}

    def pods(self) -> Data:
        """What such a pod asks for and what Ray is told of it, for who has no chart. Neither
        KubeRay nor Ray's autoscaler counts a MIG resource as a GPU by itself."""
        return {
            "name": group_name(self.profile.name),
            **self.bounds(),
            "resource": VENDOR + self.profile.resource,
            "rayStartParams": {"num-gpus": "1"},
            "customResources": {self.profile.ray_resource: 1},
        }


def workers(plan: Plan, needs: Sequence[Need]) -> list[Workers]:
    """One for each profile that is used, smallest first."""
    slices = [each for gpu in plan.gpus for each in gpu.slices]
    return [
        _workers(profile, [each for each in slices if each.profile == profile], needs)
        for profile in plan.gpu.profiles
        if any(each.profile == profile for each in slices)
    ]


def _workers(profile: Profile, slices: Sequence[Slice], needs: Sequence[Need]) -> Workers:
    placed = Counter(each.demand.name for each in slices)
    users = [need for need in needs if need.name in placed]
    least = sum(min(need.least, placed[need.name]) for need in users)
    cpus = max((math.ceil(need.cpus) for need in users), default=0)
    host_mib = max((need.mib if need.host_mib is None else need.host_mib for need in users),
                   default=0)  # fmt: skip
    memory_gib = math.ceil(host_mib / 1024) + PROCESS_GIB
    return Workers(profile, least, len(slices), max(LEAST_CPUS, cpus), memory_gib)


def worker_groups(
    gpu: Gpu, found: Sequence[Workers], in_force: Sequence[Mapping[str, Any]] = ()
) -> list[Data]:
    """The chart's `workerGroups`: those of `in_force` first, in their order and with what else
    stands in them."""
    new = {each.profile.name: each for each in found}
    kept = [_kept(gpu, old, new) for old in in_force]
    return kept + [each.values() for each in new.values()]


def _kept(gpu: Gpu, old: Mapping[str, Any], new: dict[str, Workers]) -> Data:
    """It takes what `new` has of its profile; nothing is left for a second one."""
    profile = str(old.get("migProfile"))
    if gpu.named(profile) is None:
        return dict(old)
    found = new.pop(profile, None)
    return {**old, **({"minReplicas": 0} if found is None else found.bounds())}


def values(plan: Plan, groups: Sequence[Data], per_node: int) -> Data:
    """The chart's values, to be given behind the settings file."""
    layouts = mig_parted(plan, per_node)["mig-configs"]
    return {"workerGroups": list(groups), "migLayouts": {"configs": layouts}}


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
    such model, and the shared pool, as they were but for their resources."""
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
    """One device a pod: its place is taken whole. Nothing where no slice was planned."""
    if profile is None:
        return {}
    kept = {name: amount for name, amount in resources.items() if not MIG_RESOURCE.fullmatch(name)}
    return {"num_gpus": 1, "resources": {**kept, profile.ray_resource: 1}}
