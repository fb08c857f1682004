"""Groups of a model's replicas: what each group runs, with which resources, and which are reserves.

A group sets the fields in which it differs and takes the others from the model. `group_views`
returns the settings with which the replicas of each group start. They do not contain the other
groups, so a change of one group restarts only that group's replicas. `model.py` checks whether a
group fits its model.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from deployments.settings.lengths import LengthBound
from deployments.settings.scheduling import BatchBounds
from yaml_document.section import Section, finite, wrong

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_RUNTIMES = ("onnxruntime", "openvino", "tensorrt", "torch", "vllm", "python", "synthetic")
if TYPE_CHECKING:
    RuntimeName = str
else:  # and those that installed packages bring: entry points, which are not imported here
    _BROUGHT = (each.name for each in entry_points(group="headrace.runtimes"))
    RuntimeName = Literal[(*_RUNTIMES, *sorted({*_BROUGHT} - {*_RUNTIMES}))]
Precision = Literal["fp32", "bf16", "fp16", "int8", "fp8"]
NonEmptyText = Annotated[str, StringConstraints(min_length=1)]
Amount = Annotated[float, Field(gt=0, le=1_000_000)]
Options = Annotated[
    dict[str, Any],
    BeforeValidator(lambda value: {} if value is None else value),
    AfterValidator(finite),
]
MIG_RESOURCE = re.compile(r"mig_(\d+g)_(\d+gb)(_me)?")  # Ray's name for a slice of a GPU
_RAYS_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory_mib"}
_OF_THE_MODEL = ("runtime", "precision", "options")
_OF_REPLICAS = (
    "count", "min", "max", "cost_per_hour", "slots", "num_cpus", "num_gpus", "memory_mib",
    "resources", "labels", "threads",
)  # fmt: skip
_NUMBERS = ("count", "min", "max")
_OWN = "As the model's, for the replicas of this group. Unset: the model's own."
POOL_GROUP = "pool"  # of the replicas that belong to no model

Complaint = tuple[tuple[str | int, ...], str]


def not_rays_own(resources: dict[str, float]) -> dict[str, float]:
    """The resources as they are. Raises an error for a resource that Ray counts by itself."""
    for name in resources:
        if name in _RAYS_OWN:
            raise wrong(f"is not a custom resource; must be given as {_RAYS_OWN[name]}", name)
    return resources


def _a_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise wrong(
            f"is {name!r}; must be 1 to 32 of a-z 0-9 -, the first and last a letter or digit"
        )
    if name == POOL_GROUP:
        raise wrong("is pool, the name of the shared pool's replicas; must be another name")
    return name


class OverflowSettings(Section):
    after_ms: float = Field(
        gt=0,
        le=3_600_000,
        description="The group is used once the predicted wait for the other groups is longer than "
        "this.",
    )


class GroupSettings(Section):
    name: Annotated[str, AfterValidator(_a_name)] = Field(
        description="Name of the group, in metrics, logs and the name of its Serve deployment."
    )
    runtime: RuntimeName | None = Field(default=None, description=_OWN)
    precision: Precision | None = Field(default=None, description=_OWN)
    options: Options | None = Field(default=None, description=_OWN)
    count: int | None = Field(default=None, ge=1, le=10_000, description=_OWN)
    min: int | None = Field(default=None, ge=0, le=10_000, description=_OWN)
    max: int | None = Field(default=None, ge=1, le=10_000, description=_OWN)
    cost_per_hour: float | None = Field(default=None, ge=0, le=1_000_000, description=_OWN)
    slots: int | None = Field(default=None, ge=1, le=64, description=_OWN)
    num_cpus: float | None = Field(default=None, ge=0, le=4096, description=_OWN)
    num_gpus: float | None = Field(default=None, ge=0, le=64, description=_OWN)
    memory_mib: int | None = Field(default=None, ge=1, le=16_777_216, description=_OWN)
    resources: Annotated[dict[NonEmptyText, Amount], AfterValidator(not_rays_own)] | None = Field(
        default=None, description=_OWN
    )
    labels: dict[NonEmptyText, NonEmptyText] | None = Field(default=None, description=_OWN)
    threads: int | None = Field(default=None, ge=0, le=4096, description=_OWN)
    lengths: LengthBound | None = Field(default=None, description=_OWN)
    batch: BatchBounds | None = Field(default=None, description=_OWN)
    overflow: OverflowSettings | None = Field(
        default=None,
        description="Makes the group a reserve: it is used only while waiting requests would wait "
        "too long for the other groups.",
    )

    @property
    def max_length(self) -> int | None:
        """The longest row that the group takes, where the group itself says so."""
        lengths = self.lengths
        return lengths.max if lengths is not None and lengths.model_fields_set else None

    @property
    def after_s(self) -> float:
        """The predicted wait beyond which the group is used, seconds; 0.0: it is no reserve."""
        return 0.0 if self.overflow is None else self.overflow.after_ms / 1000


def group_complaints(groups: Sequence[GroupSettings]) -> Iterator[Complaint]:
    """(path, error) of each conflict between groups. A path begins with a group's position."""
    seen: dict[str, int] = {}
    for position, group in enumerate(groups):
        if group.name in seen:
            yield (
                (position, "name"),
                f"is {group.name!r}, the name of group {seen[group.name]} too; must be another one",
            )
        seen[group.name] = position
    if groups and all(group.overflow is not None for group in groups):
        yield (0, "overflow"), "must be left out of at least one group: all groups are reserves"


def group_views(written: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By group: plain data of a model that has only this group's replicas. `written`: the model's
    settings as plain data. Empty for a model without groups."""
    groups = (written.get("replicas") or {}).get("groups") or ()
    return {group["name"]: _view(written, group) for group in groups}


def _view(written: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    view = copy.deepcopy(dict(written))
    replicas = dict(view.get("replicas") or {})
    del replicas["groups"]
    view |= {name: group[name] for name in _OF_THE_MODEL if group.get(name) is not None}
    if group.get("lengths"):
        view["lengths"] = _shorter(view.get("lengths") or {}, group["lengths"]["max"])
    if group.get("batch"):
        view["batch"] = (view.get("batch") or {}) | group["batch"]
    # A number of the group replaces the model's, whether it is given as `count` or as bounds.
    if any(group.get(name) is not None for name in _NUMBERS):
        replicas = {name: value for name, value in replicas.items() if name not in _NUMBERS}
    replicas |= {name: group[name] for name in _OF_REPLICAS if group.get(name) is not None}
    view.pop("replicas", None)
    return view | ({"replicas": replicas} if replicas else {})


def _shorter(lengths: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """The model's `lengths`, for replicas that take rows of at most `longest`."""
    buckets = lengths.get("buckets")
    if isinstance(buckets, list):
        return {
            **lengths,
            "max": longest,
            "buckets": [*(e for e in buckets if e < longest), longest],
        }
    return {**lengths, "max": longest}
