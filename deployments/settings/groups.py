"""Groups of a model's replicas: what each runs, with what, and which of them are reserves.

A group says what it does its own way and takes the rest from the model. `group_views` makes of a
model's settings those that the replicas of each group are started with, which say nothing of the
other groups: so a change of one group touches that group's replicas alone. Whether a group fits its
model (a runtime that generates beside one of batches) is checked by `model`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from yaml_document.section import Section, finite, wrong

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
RuntimeName = Literal["onnxruntime", "openvino", "tensorrt", "torch", "vllm", "synthetic"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]
Text = Annotated[str, StringConstraints(min_length=1)]
Amount = Annotated[float, Field(gt=0, le=1_000_000)]
Options = Annotated[
    dict[str, Any],
    BeforeValidator(lambda value: {} if value is None else value),
    AfterValidator(finite),
]
_RAYS_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory_mib"}
_OF_THE_MODEL = ("runtime", "precision", "options")
_OF_REPLICAS = (
    "count", "min", "max", "cost_per_hour", "slots", "num_cpus", "num_gpus", "memory_mib",
    "resources", "labels", "threads",
)  # fmt: skip
_NUMBERS = ("count", "min", "max")
POOL_GROUP = "pool"  # of the replicas that belong to no model

Complaint = tuple[tuple[str | int, ...], str]


def not_rays_own(resources: dict[str, float]) -> dict[str, float]:
    """What Ray counts by itself is no custom resource."""
    for name in resources:
        if name in _RAYS_OWN:
            raise wrong(f"is no custom resource; must be given as {_RAYS_OWN[name]}", name)
    return resources


def _a_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise wrong(
            f"is {name!r}; must be 1 to 32 of a-z 0-9 -, the first and last a letter or digit"
        )
    if name == POOL_GROUP:
        raise wrong("is pool, as the shared pool's replicas are called; must be another name")
    return name


class OverflowSettings(Section):
    after_ms: float = Field(
        gt=0,
        le=3_600_000,
        description="Predicted wait on the other groups beyond which this one is used.",
    )


class GroupSettings(Section):
    name: Annotated[str, AfterValidator(_a_name)] = Field(
        description="Of the group, in metrics, logs and the name of its Serve deployment."
    )
    runtime: RuntimeName | None = Field(default=None, description="Its backend.")
    precision: Precision | None = Field(default=None, description="Its number format.")
    options: Options | None = Field(
        default=None, description="Settings of its backend, instead of the model's."
    )
    count: int | None = Field(
        default=None, ge=1, le=10_000, description="Replicas of the group, a fixed number."
    )
    min: int | None = Field(
        default=None, ge=0, le=10_000, description="Replicas of the group at least."
    )
    max: int | None = Field(
        default=None, ge=1, le=10_000, description="Replicas of the group at most."
    )
    cost_per_hour: float | None = Field(
        default=None, ge=0, le=1_000_000, description="As of the model."
    )
    slots: int | None = Field(
        default=None, ge=1, le=64, description="Batches that a replica of it may hold."
    )
    num_cpus: float | None = Field(default=None, ge=0, le=4096, description="As of the model.")
    num_gpus: float | None = Field(default=None, ge=0, le=64, description="As of the model.")
    memory_mib: int | None = Field(
        default=None, ge=1, le=16_777_216, description="As of the model."
    )
    resources: Annotated[dict[Text, Amount], AfterValidator(not_rays_own)] | None = Field(
        default=None, description="As of the model."
    )
    labels: dict[Text, Text] | None = Field(default=None, description="As of the model.")
    threads: int | None = Field(default=None, ge=0, le=4096, description="As of the model.")
    overflow: OverflowSettings | None = Field(
        default=None,
        description="Makes the group a reserve, used only while what waits would wait too long for "
        "the others.",
    )

    @property
    def after_s(self) -> float:
        """0.0: it is no reserve."""
        return 0.0 if self.overflow is None else self.overflow.after_ms / 1000


def group_complaints(groups: Sequence[GroupSettings]) -> Iterator[Complaint]:
    """What is wrong with them beside each other; paths begin with a position."""
    seen: dict[str, int] = {}
    for position, group in enumerate(groups):
        if group.name in seen:
            yield (
                (position, "name"),
                f"is {group.name!r}, as of group {seen[group.name]}; must be another one",
            )
        seen[group.name] = position
    if groups and all(group.overflow is not None for group in groups):
        yield (0, "overflow"), "must be left out of one group at least: all of them are reserves"


def group_views(written: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """From a model's settings, as plain data, to those of a model that has the group's replicas
    alone, by group; empty for a model without groups."""
    groups = (written.get("replicas") or {}).get("groups") or ()
    return {group["name"]: _view(written, group) for group in groups}


def _view(written: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    view = copy.deepcopy(dict(written))
    replicas = dict(view.get("replicas") or {})
    del replicas["groups"]
    view |= {name: group[name] for name in _OF_THE_MODEL if group.get(name) is not None}
    # A number of its own replaces the model's, whichever way either is said.
    if any(group.get(name) is not None for name in _NUMBERS):
        replicas = {name: value for name, value in replicas.items() if name not in _NUMBERS}
    replicas |= {name: group[name] for name in _OF_REPLICAS if group.get(name) is not None}
    view.pop("replicas", None)
    return view | ({"replicas": replicas} if replicas else {})
