"""Writes a MIG plan as configuration: the chart's worker groups, mig-parted's layouts, and the
groups of the settings file.

KubeRay replaces the whole cluster when a worker group is inserted before another or removed. So the
worker groups of the values in force keep their order, new ones are appended, and one that is not
needed any more stays with `minReplicas: 0`. Nodes whose GPUs have the same slices share a layout.

Two GPUs of a fleet may have a profile of one name, hence one resource of the device plugin. Pods on
it are then told apart by the node's label `nvidia.com/gpu.product`, replicas by a custom resource.

Sources: KubeRay 1.7 (what enters the cluster's hash), mig-parted's `config.yaml`, the device
plugin's names, GPU feature discovery's labels, GKE's `gpu-partition-size` and `gke-accelerator`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoscaling.mig.geometry import GPUS, Profile
from autoscaling.mig.packing import Packing, PlannedGpu, Slice
from deployments.settings.groups import MIG_RESOURCE, GroupSettings
from deployments.settings.tree import Settings
from deployments.tools.plan.needs import MARGIN, POOL, Need


@dataclass(frozen=True, slots=True)
class MigRequest:
    """The options of `headrace plan mig`."""

    gpu: Sequence[str]  # the GPUs' models
    # How many of each model there are; one that is left out: as many as the plan needs.
    gpus: Mapping[str, int] = field(default_factory=dict)
    per_node: int = 8  # GPUs of one node
    need_mib: Mapping[str, int] = field(default_factory=dict)  # measured memory, by model or group
    profiles: Mapping[str, str] = field(default_factory=dict)  # slices to take, by model or group
    usable: Mapping[str, int] = field(default_factory=dict)  # a slice's MiB by [GPU:]profile
    margin: float = MARGIN  # share that is added to memory not in `need_mib`
    surge: bool = False  # plan slices for new replicas beside old ones while a model changes
    values: Path | None = None  # the chart's values in force
    devices: str = "plugin"  # how pods get slices, as in the chart's `workerGroups`


@dataclass(frozen=True, slots=True)
class MigPlan:
    """Plans with the needs that they serve and the files that describe them to a cluster.

    plans: one of each GPU model; on GKE, which cuts all GPUs of a node pool alike, of each profile.
    """

    request: MigRequest
    needs: tuple[Need, ...]
    plans: tuple[Packing, ...]
    remarks: tuple[str, ...]
    files: Mapping[str, Any]  # content by file name

    @property
    def complete(self) -> bool:
        """Whether every replica that needs a slice has one."""
        rejected = any(plan.rejected for plan in self.plans)
        return not rejected and not any(need.unknown for need in self.needs)


PROCESS_GIB = 4  # host memory of Ray and the process, besides the weights that pass through it
MIN_CPUS = 2
Data = dict[str, Any]
Fleet = Sequence[str]
"""Names of the GPU models in `GPUS`."""

# What GPU feature discovery calls them: the label `nvidia.com/gpu.product` of their nodes.
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "a30": ("NVIDIA-A30",),
    "a100-40": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
    "a100-80": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
    "h100-80": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"),
    "h100-94": ("NVIDIA-H100-NVL",),
    "gh200-96": ("NVIDIA-GH200-480GB",),
    "gh200-144": ("NVIDIA-GH200-144G-HBM3e",),
    "h200-141": ("NVIDIA-H200", "NVIDIA-H200-NVL"),
    "b200-180": ("NVIDIA-B200",),
    "gb200-186": ("NVIDIA-GB200",),
    "b300-269": ("NVIDIA-B300-SXM6-AC",),
    "gb300-278": ("NVIDIA-GB300",),
}
# The label `cloud.google.com/gke-accelerator` of those that GKE partitions.
GKE_ACCELERATORS: Mapping[str, str] = {
    "a100-40": "nvidia-tesla-a100",
    "a100-80": "nvidia-a100-80gb",
    "h100-80": "nvidia-h100-80gb",
    "h200-141": "nvidia-h200-141gb",
    "b200-180": "nvidia-b200",
}


def group_name(profile: str) -> str:
    """The name of a profile's worker group and of its group of replicas: `mig-1g-18gb`."""
    return "mig-" + profile.replace(".", "-").replace("+", "-")


def marker(gpu: str, profile: str, fleet: Fleet) -> str:
    """The custom resource of nodes with this GPU, `gpu_a100_80`; "" if no other GPU of the fleet
    has a profile of that name."""
    others = (GPUS[each].named(profile) for each in fleet if each != gpu)
    return _marker(gpu) if any(others) else ""


def _marker(gpu: str) -> str:
    return "gpu_" + gpu.replace("-", "_")


def marked(resources: Mapping[str, Any], fleet: Fleet) -> str:
    """The GPU of the fleet whose marker is among the resources, "" without one."""
    return next((gpu for gpu in fleet if _marker(gpu) in resources), "")


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker group whose pods have one slice of a profile each."""

    gpu: str
    profile: Profile
    min_replicas: int  # of pods
    max_replicas: int
    cpus: int  # of one pod
    memory_gib: int  # host memory of one pod
    marker: str = ""
    devices: str = "plugin"

    def values(self) -> Data:
        """The group as an item of the chart's `workerGroups`."""
        return {
            "name": group_name(self.profile.name) + (f"-{self.gpu}" if self.marker else ""),
            **self.bounds(),
            "cpu": self.cpus,
            "memory": f"{self.memory_gib}Gi",
            "migProfile": self.profile.name,
            **({} if self.devices == "plugin" else {"devices": self.devices}),
            **({"resources": {self.marker: 1}} if self.marker else {}),
            **self._nodes(),
        }

    def bounds(self) -> Data:
        return {"minReplicas": self.min_replicas, "maxReplicas": self.max_replicas}

    def _nodes(self) -> Data:
        """Which nodes its pods may go to, where the slice's name does not say that."""
        if self.devices == "gke":
            accelerator = GKE_ACCELERATORS[self.gpu]
            return {"nodeSelector": {"cloud.google.com/gke-accelerator": accelerator}}
        if not self.marker:
            return {}
        label, products = "nvidia.com/gpu.product", PRODUCTS[self.gpu]
        if len(products) == 1:
            return {"nodeSelector": {label: products[0]}}
        term = {"matchExpressions": [{"key": label, "operator": "In", "values": list(products)}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return {"podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}


def workers(plans: Sequence[Packing], needs: Sequence[Need], request: MigRequest) -> list[Workers]:
    """A worker group for each profile that a plan uses, smallest first."""
    return [
        _workers(plan.gpu.name, profile, used, needs, request)
        for plan in plans
        for profile in plan.gpu.profiles
        if (used := [each for gpu in plan.gpus for each in gpu.slices if each.profile == profile])
    ]


def _workers(
    gpu: str, profile: Profile, used: Sequence[Slice], needs: Sequence[Need], request: MigRequest
) -> Workers:
    placed = Counter(each.demand.name for each in used)
    users = [need for need in needs if need.name in placed]
    min_replicas = sum(min(need.min_replicas, placed[need.name]) for need in users)
    cpus = max((math.ceil(need.cpus) for need in users), default=0)
    host_mib = max((need.mib if need.host_mib is None else need.host_mib for need in users),
                   default=0)  # fmt: skip
    memory_gib = math.ceil(host_mib / 1024) + PROCESS_GIB
    return Workers(
        gpu, profile, min_replicas, len(used), max(MIN_CPUS, cpus), memory_gib,
        marker(gpu, profile.name, request.gpu), request.devices,
    )  # fmt: skip


def worker_groups(
    fleet: Fleet, found: Sequence[Workers], in_force: Sequence[Mapping[str, Any]] = ()
) -> list[Data]:
    """The chart's `workerGroups`: those of `in_force` first, in their order and with all their
    other values, then new ones."""
    new = {(each.profile.name, each.marker): each for each in found}
    kept = [_kept(fleet, old, new) for old in in_force]
    return kept + [each.values() for each in new.values()]


def _kept(fleet: Fleet, old: Mapping[str, Any], new: dict[tuple[str, str], Workers]) -> Data:
    """The group `old` with the bounds of its profile in `new`, which are removed from `new`, so
    that a second group of the profile gets none."""
    profile, gpu = str(old.get("migProfile")), marked(old.get("resources") or {}, fleet)
    if not any(GPUS[each].named(profile) for each in fleet):
        return dict(old)
    found = new.pop((profile, _marker(gpu) if gpu else ""), None)
    return {**old, **({"minReplicas": 0} if found is None else found.bounds())}


def values(plans: Sequence[Packing], groups: Sequence[Data], request: MigRequest) -> Data:
    """Values for the chart, to be given after the settings file."""
    if request.devices == "gke":
        return {"workerGroups": list(groups)}
    layouts = mig_parted(plans, request.per_node)["mig-configs"]
    return {"workerGroups": list(groups), "migLayouts": {"configs": layouts}}


def nodes(plans: Sequence[Packing], per_node: int) -> Iterator[tuple[str, tuple[PlannedGpu, ...]]]:
    """The layout's name and the GPUs of each node; a node has `per_node` GPUs, numbered from 0."""
    for plan in plans:
        names: dict[tuple[Any, ...], str] = {}
        for first in range(0, len(plan.gpus), per_node):
            gpus = plan.gpus[first : first + per_node]
            key = tuple(gpu.counts for gpu in gpus)
            yield names.setdefault(key, f"headrace-{plan.gpu.name}-{len(names)}"), gpus


def node_pools(plans: Sequence[Packing], per_node: int) -> Iterator[str]:
    """The commands that make GKE's node pools: of each profile one."""
    for plan in plans:
        if plan.gpus:
            profile = plan.gpus[0].slices[0].profile.name
            name = f"{group_name(profile)}-{plan.gpu.name}"
            accelerator = GKE_ACCELERATORS[plan.gpu.name]
            yield (
                f"gcloud container node-pools create {name} --cluster CLUSTER --location LOCATION "
                f"--machine-type TYPE --num-nodes {math.ceil(len(plan.gpus) / per_node)} "
                f"--accelerator type={accelerator},count={per_node},gpu-partition-size={profile},"
                f"gpu-driver-version=default"
            )


def mig_parted(plans: Sequence[Packing], per_node: int) -> Data:
    """The `config.yaml` in the MIG manager's ConfigMap. A node's GPUs that the plan does not need
    are not mentioned, so they stay as they are."""
    return {
        "version": "v1",
        "mig-configs": {name: _devices(gpus) for name, gpus in nodes(plans, per_node)},
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
    return {p.name: gpu.counts[p.kind] for p in gpu.gpu.profiles if gpu.counts[p.kind]}


def settings_groups(plans: Sequence[Packing], settings: Settings, fleet: Fleet) -> Data:
    """The part of the settings file that puts planned models and the shared pool on their slices.

    It has all groups of each planned model. Of a group, only the resources change.
    """
    slices = [(plan.gpu.name, each) for plan in plans for gpu in plan.gpus for each in gpu.slices]
    profiles = {each.demand.name: each.profile for _, each in slices}
    asked = {
        each.demand.name: [each.profile.ray_resource]
        + ([name] if (name := marker(gpu, each.profile.name, fleet)) else [])
        for gpu, each in slices
    }
    models = {}
    for name, model in settings.models.items():
        views = model.views()
        if name in profiles:
            group = {"name": group_name(profiles[name].name)}
            placed = [group | _on(asked[name], model.replicas.resources)]
        elif any(f"{name}/{group}" in profiles for group in views):
            placed = [
                _written(group)
                | _on(asked.get(f"{name}/{group.name}"), views[group.name].replicas.resources)
                for group in model.replicas.groups
            ]
        else:
            continue
        models[name] = {"replicas": {"groups": placed}}
    pool = settings.scaling.pool
    if pool is None or POOL not in profiles:
        return {"models": models}
    return {"models": models, "scaling": {"pool": _on(asked[POOL], pool.resources)}}


def _written(group: GroupSettings) -> Data:
    return group.model_dump(mode="json", exclude_unset=True)


def _on(asked: Sequence[str] | None, resources: Mapping[str, float]) -> Data:
    """The resources of a replica that asks for these; {} without a slice.

    `num_gpus` is 1, since a pod has one slice and a replica takes all of it.
    """
    if asked is None:
        return {}
    markers = {_marker(gpu) for gpu in GPUS}
    kept = {
        name: amount
        for name, amount in resources.items()
        if name not in markers and not MIG_RESOURCE.fullmatch(name)
    }
    return {"num_gpus": 1, "resources": {**kept, **dict.fromkeys(asked, 1)}}
