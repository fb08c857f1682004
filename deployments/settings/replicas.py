"""How many replicas a model has, and with what each of them runs.

The number is fixed (`count`) or lies between bounds (`min`, `max`), where the autoscaler decides.
What of this restarts a replica, and what Serve changes while it runs, is decided by
`cluster/serve_config.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings.groups import (
    Amount,
    GroupSettings,
    Text,
    group_complaints,
    not_rays_own,
)
from yaml_document.section import Section, listed, wrong


class ReplicaSettings(Section):
    count: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Replicas of the model, a fixed number; unset, 1 unless `min` or `max` says "
        "otherwise.",
    )
    min: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="Replicas at least, instead of `count`; 0: the model may sleep. Unset, where "
        "`max` is given, 1.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Replicas at most, instead of `count`; between `min` and `max` `scaling` "
        "decides. Unset, where `min` is given, `min` or 1.",
    )
    spare: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="Hot replicas beyond what is wanted; unset, as the policy says.",
    )
    survive: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Replicas that may be lost while the others still hold the SLO; unset, as the "
        "policy says.",
    )
    priority: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Who gets replicas first when a budget or the cluster is short: the lowest "
        "number.",
    )
    cost_per_hour: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Of one replica, in any currency; counted against "
        "`scaling.budget.cost_per_hour`.",
    )
    slots: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Batches a replica may hold: one runs, the others are staged.",
    )
    num_cpus: float = Field(
        default=0.5,
        ge=0,
        le=4096,
        description="Logical CPUs that Ray reserves for a replica; places it, does not limit it.",
    )
    num_gpus: float = Field(
        default=0,
        ge=0,
        le=64,
        description="GPUs that Ray reserves for a replica; parts only below 1.",
    )
    memory_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Memory that Ray reserves for a replica, MiB; places it, does not limit it; "
        "unset, none is reserved.",
    )
    memory_limit_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="A replica whose process has more resident than this, MiB, ends and names the "
        "batch that ran; unset, nobody looks. Replicas of the shared pool and of task `generate` "
        "have none.",
    )
    resources: Annotated[dict[Text, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 1}"],
        description="Custom resources of Ray's nodes, name to amount, that it reserves for a "
        "replica.",
    )
    labels: dict[Text, Text] = Field(
        default_factory=dict,
        examples=['{"ray.io/accelerator-type": H100}'],
        description="Labels of the nodes that a replica may run on, as Ray's label selector has "
        "them: a value, `!value`, `in(a, b)` or `!in(a, b)`.",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Threads the backend computes with; 0 is `num_cpus` where Ray counts no more "
        "CPUs than its node has, else a replica's share of the CPUs that this container may use.",
    )
    surge_percent: int = Field(
        default=100,
        ge=0,
        le=100,
        description="Share of the replicas, in %, that start beside the old ones when the model "
        "changes; 0 stops old ones first.",
    )
    hang_limit_s: float = Field(
        default=30,
        gt=0,
        le=86_400,
        description="A batch that runs longer than this counts as hung.",
    )
    hang_factor: float = Field(
        default=20,
        ge=0,
        le=1_000_000,
        description="So does one that runs longer than this times what it was predicted to take, "
        "and 10 s besides, at a replica that has answered some; 0: `hang_limit_s` alone.",
    )
    start_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="A replica that is not ready by then has failed to start.",
    )

    groups: Annotated[tuple[GroupSettings, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=["[{name: gpu, num_gpus: 1}, {name: cpu, runtime: openvino, count: 4}]"],
        description="Replicas of several kinds behind one queue, each with costs of its own; what "
        "a group does not say it takes from the model; work is counted in seconds of the first "
        "group. None: all replicas are alike.",
    )

    @model_validator(mode="after")
    def _number_is_said_one_way(self) -> ReplicaSettings:
        bounds = [name for name in ("min", "max") if getattr(self, name) is not None]
        if self.count is not None and bounds:
            raise wrong(
                f"is given beside {' and '.join(bounds)}; must be left out, or alone for a fixed "
                "number",
                "count",
            )
        if self.most < self.least:
            raise wrong(f"is {self.max}; must be at least {self.min} (min)", "max")
        return self

    @property
    def least(self) -> int:
        """Replicas that there are at least."""
        return (self.count or 1) if self.min is None else self.min

    @property
    def most(self) -> int:
        """Replicas that there are at most."""
        return max(self.count or 1, self.min or 1) if self.max is None else self.max

    @property
    def initial(self) -> int:
        """Replicas at the start of a run, one at least."""
        return max(1, self.least)

    @model_validator(mode="after")
    def _gpus_are_whole_or_parts_of_one(self) -> ReplicaSettings:
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise wrong(
                f"is {self.num_gpus:g}; must be below 1 or a whole number of GPUs", "num_gpus"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_told_apart(self) -> ReplicaSettings:
        for path, message in group_complaints(self.groups):
            raise wrong(message, "groups", *path)
        return self
