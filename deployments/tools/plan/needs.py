"""Which groups of a settings file need MIG slices, how many, and with how much memory?

A group needs slices if it asks for a GPU or for a MIG resource, or if the user names it. A group
that cannot run on a slice, or whose memory cannot be known, is refused with the reason. A margin is
added to memory that was not measured.
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
    replicas: int  # the largest number
    least: int  # the least number
    surge: int  # replicas that start beside the old ones while the model changes

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
        """What a slice must hold: all parts, and the margin on all but what was given."""
        given = sum(part.mib for part in self.parts if part.how == "given")
        rest = sum(part.mib for part in self.parts if part.how != "given")
        return given + math.ceil(rest * (1 + self.margin))


@dataclass(frozen=True, slots=True)
class MemoryOverrides:
    """What the user says on the command line, by model or MODEL/GROUP. need_mib: all in, of one
    replica. profile: the slice to take."""

    need_mib: Mapping[str, int]
    profile: Mapping[str, str]
    margin: float = MARGIN

    def of(self, said: Mapping[str, T], need: Need) -> T | None:
        """What is said of the group, else of its model."""
        return said.get(need.name, said.get(need.model))


def needs(settings: Settings, told: MemoryOverrides) -> list[Need]:
    """In the order of the file, the shared pool last."""
    found = [
        _of_model(_blank(name, group, view.replicas), view, told)
        for name, model in settings.models.items()
        for group, view in (model.views() or {"": model}).items()
    ]
    return found if settings.scaling.pool is None else [*found, _of_pool(settings, told)]


def names(settings: Settings) -> list[str]:
    """What `MemoryOverrides` may name."""
    groups = [f"{n}/{group}" for n, model in settings.models.items() for group in model.views()]
    return [*settings.models, *groups, *([] if settings.scaling.pool is None else [POOL])]


def _blank(name: str, group: str, replicas: ReplicaSettings) -> Need:
    surge = math.ceil(replicas.most * replicas.surge_percent / 100)
    return Need(
        name, group, replicas.most, replicas.least, surge, replicas.num_cpus, replicas.memory_mib
    )


def _of_model(blank: Need, model: ModelSettings, told: MemoryOverrides) -> Need:
    wants = model.replicas.num_gpus > 0 or model.runtime == "tensorrt"
    need = _asking(blank, told, model.replicas.resources, wants)
    refused = next(_no_slice(model), "")
    if need.skipped or refused:
        return need if need.skipped else replace(need, unknown=refused)
    need = replace(need, remarks=tuple(memory_parts.remarks(model)))
    return _filled(need, told, lambda: memory_parts.parts(model))


def _of_pool(settings: Settings, told: MemoryOverrides) -> Need:
    pool = settings.scaling.pool
    assert pool is not None
    blank = Need(POOL, "", pool.max, pool.min, 0, pool.num_cpus, None)
    need = _asking(blank, told, pool.resources, pool.num_gpus > 0)
    if need.skipped:
        return need
    if pool.num_gpus > 1:
        return replace(need, unknown=_WHOLE.format(pool.num_gpus))
    chosen = settings.models if pool.models == "all" else pool.models
    models = [m for name in chosen if (m := settings.models[name]).poolable]
    return _filled(need, told, lambda: memory_parts.of_pool(pool.memory_mib, models))


def _asking(
    blank: Need, told: MemoryOverrides, resources: Mapping[str, float], wants: bool
) -> Need:
    """With the profile that was asked for; skipped where no slice is wanted."""
    profile = told.of(told.profile, blank) or asked_for(resources)
    if not wants and not profile and told.of(told.need_mib, blank) is None:
        return replace(blank, skipped="asks for no GPU (num_gpus)")
    return replace(blank, profile=profile, margin=told.margin)


def _filled(need: Need, told: MemoryOverrides, parts: Callable[[], Sequence[Part]]) -> Need:
    """With its parts, or with why they cannot be told."""
    given = told.of(told.need_mib, need)
    if given is not None:
        return replace(need, parts=(Part("all", given, "given", "by --need"),))
    try:
        return replace(need, parts=tuple(parts()))
    except CannotTell as error:
        return replace(need, unknown=f"{error}; or say --need {need.name}=MIB")


def asked_for(resources: Mapping[str, float]) -> str:
    """The profile of a MIG resource among them, "" where there is none."""
    for name in resources:
        found = MIG_RESOURCE.fullmatch(name)
        if found:
            slices, memory, media = found.groups()
            return f"{slices}.{memory}{'+me' if media else ''}"
    return ""


def _no_slice(model: ModelSettings) -> Iterator[str]:
    """Why its replicas cannot run on a slice."""
    if model.replicas.num_gpus > 1:
        yield _WHOLE.format(model.replicas.num_gpus)
    if model.runtime == "vllm" and memory_parts.engine_options(model).tensor_parallel_size > 1:
        yield "options.tensor_parallel_size is above 1; slices cannot reach each other's memory"
    if model.runtime == "openvino":
        yield "its runtime is openvino, which does not run on these GPUs"
    if model.options.get("device") == "cpu":
        yield "options.device is cpu"
