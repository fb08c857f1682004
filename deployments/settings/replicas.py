"""`models.<name>.replicas`: how many replicas a model has, and what each of them may use.

The number is fixed (`count`), or the autoscaler decides it between bounds (`min`, `max`).
`control/serve_config.py` decides which of these fields restart a replica when they change, and
which Serve changes while the replica runs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings.groups import (
    Amount,
    GroupSettings,
    NonEmptyText,
    group_complaints,
    not_rays_own,
)
from yaml_document.section import Section, listed, wrong


class ReplicaSettings(Section):
    count: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Fixed number of replicas. Unset: 1, unless `min` or `max` is given.",
    )
    min: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="Least number of replicas, in place of `count`. 0: the model may sleep. Unset, "
        "with `max` given: 1.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Largest number of replicas, in place of `count`; `scaling` decides between "
        "`min` and `max`. Unset, with `min` given: `min`, or 1 if `min` is 0.",
    )
    spare: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="Hot replicas beyond the wanted number. Unset: as the scaling policy sets it.",
    )
    survive: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Number of replicas that may be lost while the rest still keeps the SLO. "
        "Unset: as the scaling policy sets it.",
    )
    priority: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="If a budget or the cluster is short of room, the model with the lowest "
        "priority number gets its replicas first.",
    )
    cost_per_hour: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Cost of one replica for an hour, in any currency; counts against "
        "`scaling.budget.cost_per_hour`.",
    )
    slots: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Batches that a replica may hold: one runs, the others are staged.",
    )
    num_cpus: float = Field(
        default=0.5,
        ge=0,
        le=4096,
        description="Logical CPUs that Ray reserves for a replica. Ray uses the number to choose a "
        "node; it does not limit the replica.",
    )
    num_gpus: float = Field(
        default=0,
        ge=0,
        le=64,
        description="GPUs that Ray reserves for a replica; a fraction only below 1.",
    )
    memory_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Memory that Ray reserves for a replica, MiB. Ray uses the number to choose a "
        "node; it does not limit the replica. Unset: none is reserved.",
    )
    memory_limit_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="A replica ends when its process's resident memory exceeds this, MiB, and "
        "reports which batch was running. Unset: no limit. Replicas of the shared pool have a "
        "limit of their own (`scaling.pool.memory_limit_mib`); those of task `generate` have none.",
    )
    resources: Annotated[dict[NonEmptyText, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 1}"],
        description="Custom resources, name to amount, that Ray reserves for a replica.",
    )
    labels: dict[NonEmptyText, NonEmptyText] = Field(
        default_factory=dict,
        examples=['{"ray.io/accelerator-type": H100}'],
        description="Labels of the nodes that a replica may run on, in the form of Ray's label "
        "selectors: a value, `!value`, `in(a, b)` or `!in(a, b)`.",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Threads that the backend computes with. 0: `num_cpus`, if Ray counts no more "
        "CPUs than its node has; else a replica's share of the CPUs that the container may use.",
    )
    surge_percent: int = Field(
        default=100,
        ge=0,
        le=100,
        description="When the model changes: share of its replicas, in %, that may start while the "
        "old ones still run. 0: old replicas stop first.",
    )
    hang_limit_s: float = Field(
        default=30,
        gt=0,
        le=86_400,
        description="A batch that runs longer than this counts as hung, and its replica is "
        "replaced. Task `generate`: an engine that makes no step for so long.",
    )
    hang_factor: float = Field(
        default=20,
        ge=0,
        le=1_000_000,
        description="At a replica that has answered 20 batches, a batch also counts as hung once "
        "it has run longer than 10 s plus this many times its predicted time; likewise an "
        "engine's step, predicted by its recent steps and by prompts that are yet to be read. 0: "
        "only `hang_limit_s` counts.",
    )
    start_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="A replica that is not ready within this time has failed to start.",
    )

    groups: Annotated[tuple[GroupSettings, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=["[{name: gpu, num_gpus: 1}, {name: cpu, runtime: openvino, count: 4}]"],
        description="Replicas of several kinds behind one queue, each kind with costs of its own. "
        "A field that a group does not set is the model's. Work is counted in seconds of the first "
        "group. Empty: all replicas are alike.",
    )

    @model_validator(mode="after")
    def _number_is_said_one_way(self) -> ReplicaSettings:
        bounds = [name for name in ("min", "max") if getattr(self, name) is not None]
        if self.count is not None and bounds:
            raise wrong(
                f"is given beside {' and '.join(bounds)}; must be left out, or be alone for a "
                "fixed number",
                "count",
            )
        if self.most < self.least:
            raise wrong(f"is {self.max}; must be at least {self.min} (min)", "max")
        return self

    @property
    def least(self) -> int:
        """The least number of replicas."""
        return (self.count or 1) if self.min is None else self.min

    @property
    def most(self) -> int:
        """The largest number of replicas."""
        return max(self.count or 1, self.min or 1) if self.max is None else self.max

    @property
    def initial(self) -> int:
        """The number of replicas when the server starts: `least`, but at least 1."""
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
