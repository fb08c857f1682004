"""Which groups of a settings file need MIG slices, how many, and with how much memory?

A group needs slices if it requests a GPU or a MIG resource, or if the user names it. A group that
cannot run on a slice, or whose memory is unknown, is refused with the reason. A margin is added to
memory that the user did not give.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings
from deployments.tools.plan import memory_parts
from deployments.tools.plan.memory_parts import CannotTell, Part

MARGIN = 0.1
POOL = "scaling.pool"
MIG_RESOURCE = re.compile(r"mig_(\d+g)_(\d+gb)(_me)?")
_WHOLE = "a replica takes {:g} GPUs; a slice is a part of one"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Need:
    """What the replicas of one group of a model need."""

    model: str
    group: str  # "": the model has no groups
    replicas: int  # the maximum
    min_replicas: int
    surge: int  # new replicas beside the old ones while the model changes

    # Of one replica.
    cpus: float
    host_mib: int | None  # memory of its node; None: not set
    profile: str = ""  # the MIG profile that was asked for; "": none
    parts: tuple[Part, ...] = ()
    margin: float = MARGIN

    remarks: tuple[str, ...] = ()
    unknown: str = ""  # why the memory cannot be known
    skipped: str = ""  # why the group is not planned

    @property
    def name(self) -> str:
        return f"{self.model}/{self.group}" if self.group else self.model

    @property
    def mib(self) -> int:
        """Memory that a slice must have: all parts, plus the margin on those not `given`."""
        given = sum(part.mib for part in self.parts if part.how == "given")
        rest = sum(part.mib for part in self.parts if part.how != "given")
        return given + math.ceil(rest * (1 + self.margin))


@dataclass(frozen=True, slots=True)
class MemoryOverrides:
    """The user's options on the command line, by model or MODEL/GROUP."""

    need_mib: Mapping[str, int]  # memory of one replica, all parts
    profile: Mapping[str, str]  # the slice to take
    margin: float = MARGIN  # a share

    def of(self, option: Mapping[str, T], need: Need) -> T | None:
        """The option's value for the group, else the one for its model."""
        return option.get(need.name, option.get(need.model))


def needs(settings: Settings, overrides: MemoryOverrides) -> list[Need]:
    """A need for each group, in the order of the settings file, the shared pool last."""
    found = [
        _of_model(_blank(name, group, view.replicas), view, overrides)
        for name, model in settings.models.items()
        for group, view in (model.views() or {"": model}).items()
    ]
    return found if settings.scaling.pool is None else [*found, _of_pool(settings, overrides)]


def names(settings: Settings) -> list[str]:
    """The names that `MemoryOverrides` may contain: models, groups and the shared pool."""
    groups = [f"{n}/{group}" for n, model in settings.models.items() for group in model.views()]
    return [*settings.models, *groups, *([] if settings.scaling.pool is None else [POOL])]


def _blank(name: str, group: str, replicas: ReplicaSettings) -> Need:
    """The need before memory and profile are known."""
    surge = math.ceil(replicas.most * replicas.surge_percent / 100)
    return Need(
        name, group, replicas.most, replicas.least, surge, replicas.num_cpus, replicas.memory_mib
    )


def _of_model(blank: Need, model: ModelSettings, overrides: MemoryOverrides) -> Need:
    wants_gpu = model.replicas.num_gpus > 0 or model.runtime == "tensorrt"
    need = _with_profile(blank, overrides, model.replicas.resources, wants_gpu)
    refused = next(_no_slice(model), "")
    if need.skipped or refused:
        return need if need.skipped else replace(need, unknown=refused)
    need = replace(need, remarks=tuple(memory_parts.remarks(model)))
    return _with_parts(need, overrides, lambda: memory_parts.parts(model))


def _of_pool(settings: Settings, overrides: MemoryOverrides) -> Need:
    pool = settings.scaling.pool
    assert pool is not None
    blank = Need(POOL, "", pool.max, pool.min, 0, pool.num_cpus, None)
    need = _with_profile(blank, overrides, pool.resources, pool.num_gpus > 0)
    if need.skipped:
        return need
    if pool.num_gpus > 1:
        return replace(need, unknown=_WHOLE.format(pool.num_gpus))
    chosen = settings.models if pool.models == "all" else pool.models
    models = [m for name in chosen if (m := settings.models[name]).poolable]
    return _with_parts(need, overrides, lambda: memory_parts.of_pool(pool.memory_mib, models))


def _with_profile(
    blank: Need, overrides: MemoryOverrides, resources: Mapping[str, float], wants_gpu: bool
) -> Need:
    """The need with the profile that was asked for; `skipped` if it needs no slice."""
    profile = overrides.of(overrides.profile, blank) or asked_for(resources)
    if not wants_gpu and not profile and overrides.of(overrides.need_mib, blank) is None:
        return replace(blank, skipped="requests no GPU (num_gpus)")
    return replace(blank, profile=profile, margin=overrides.margin)


def _with_parts(
    need: Need, overrides: MemoryOverrides, parts: Callable[[], Sequence[Part]]
) -> Need:
    """The need with its parts, or with the reason why they are `unknown`."""
    given = overrides.of(overrides.need_mib, need)
    if given is not None:
        return replace(need, parts=(Part("all", given, "given", "by --need"),))
    try:
        return replace(need, parts=tuple(parts()))
    except CannotTell as error:
        return replace(need, unknown=f"{error}; --need {need.name}=MIB sets it")


def asked_for(resources: Mapping[str, float]) -> str:
    """The profile of the MIG resource among `resources`, "" if there is none."""
    for name in resources:
        found = MIG_RESOURCE.fullmatch(name)
        if found:
            slices, memory, media = found.groups()
            return f"{slices}.{memory}{'+me' if media else ''}"
    return ""


def _no_slice(model: ModelSettings) -> Iterator[str]:
    """Reasons why the model's replicas cannot run on a slice."""
    if model.replicas.num_gpus > 1:
        yield _WHOLE.format(model.replicas.num_gpus)
    if model.runtime == "vllm" and memory_parts.engine_options(model).tensor_parallel_size > 1:
        yield "options.tensor_parallel_size is above 1; slices cannot reach each other's memory"
    if model.runtime == "openvino":
        yield "its runtime is openvino, which does not run on these GPUs"
    if model.options.get("device") == "cpu":
        yield "options.device is cpu"
