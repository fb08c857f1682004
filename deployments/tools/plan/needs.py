"""Which groups of a settings file want slices, how many, and how much memory each replica needs.

A group wants one if it asks for a GPU or for a MIG resource, or if the user names it. Who cannot
run on a slice, or whose need cannot be known, is refused with the reason; the margin is on top of
what nobody measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings
from deployments.tools.plan import memory_parts
from deployments.tools.plan.memory_parts import CannotTell, Part

MARGIN = 0.1
MIG_RESOURCE = re.compile(r"mig_(\d+g)_(\d+gb)(_me)?")


@dataclass(frozen=True, slots=True)
class Need:
    """Of one group of a model's replicas, "" of a model without groups. replicas: at most; least:
    at least; surge: how many more start beside them while the model changes. cpus, host_mib: what
    one takes of its node, None: not said. profile: what was asked for, "": nothing. unknown: why it
    has no need; skipped: why it is not planned at all."""

    model: str
    group: str
    replicas: int
    least: int
    surge: int
    cpus: float
    host_mib: int | None
    profile: str = ""
    parts: tuple[Part, ...] = ()
    margin: float = MARGIN
    remarks: tuple[str, ...] = ()
    unknown: str = ""
    skipped: str = ""

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
class Told:
    """What the user says on the command line, by model or MODEL/GROUP. need_mib: all in, of one
    replica. profile: the slice to take."""

    need_mib: Mapping[str, int]
    profile: Mapping[str, str]
    margin: float = MARGIN


def needs(settings: Settings, told: Told) -> list[Need]:
    """In the order of the file."""
    return [
        _need(_blank(name, group, view.replicas), view, told)
        for name, model in settings.models.items()
        for group, view in (model.views() or {"": model}).items()
    ]


def names(settings: Settings) -> list[str]:
    """What `Told` may name."""
    groups = [f"{n}/{group}" for n, model in settings.models.items() for group in model.views()]
    return [*settings.models, *groups]


def _blank(name: str, group: str, replicas: ReplicaSettings) -> Need:
    surge = math.ceil(replicas.most * replicas.surge_percent / 100)
    return Need(
        name, group, replicas.most, replicas.least, surge, replicas.num_cpus, replicas.memory_mib
    )


def _need(blank: Need, model: ModelSettings, told: Told) -> Need:
    given = told.need_mib.get(blank.name, told.need_mib.get(blank.model))
    profile = told.profile.get(blank.name, told.profile.get(blank.model, asked_for(model)))
    if given is None and not profile and not _wants_gpu(model):
        return replace(blank, skipped="asks for no GPU (replicas.num_gpus)")
    need = replace(blank, profile=profile, margin=told.margin)
    refused = next(_no_slice(model), "")
    if refused:
        return replace(need, unknown=refused)
    need = replace(need, remarks=tuple(memory_parts.remarks(model)))
    if given is not None:
        return replace(need, parts=(Part("all", given, "given", "by --need"),))
    try:
        return replace(need, parts=tuple(memory_parts.parts(model)))
    except CannotTell as error:
        return replace(need, unknown=f"{error}; or say --need {need.name}=MIB")


def asked_for(model: ModelSettings) -> str:
    """The profile of the MIG resource that its replicas ask for, "" where they ask for none."""
    for name in model.replicas.resources:
        found = MIG_RESOURCE.fullmatch(name)
        if found:
            slices, memory, media = found.groups()
            return f"{slices}.{memory}{'+me' if media else ''}"
    return ""


def _wants_gpu(model: ModelSettings) -> bool:
    return model.replicas.num_gpus > 0 or model.runtime == "tensorrt"


def _no_slice(model: ModelSettings) -> Iterator[str]:
    """Why its replicas cannot run on a slice."""
    if model.replicas.num_gpus > 1:
        yield f"a replica takes {model.replicas.num_gpus:g} GPUs; a slice is a part of one"
    if model.runtime == "vllm" and memory_parts.engine_options(model).tensor_parallel_size > 1:
        yield "options.tensor_parallel_size is above 1; slices cannot reach each other's memory"
    if model.runtime == "openvino":
        yield "its runtime is openvino, which does not run on these GPUs"
    if model.options.get("device") == "cpu":
        yield "options.device is cpu"
