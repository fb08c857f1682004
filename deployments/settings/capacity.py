"""`scaling`: the budget of all models together, and the shared pool.

The budget bounds what the autoscaler orders; `min` replicas of each model start whatever the budget
is. The pool's replicas belong to no model and can hold several. Each pool replica is one more
replica, of the group `pool`, of every model that it holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings.gone import GONE
from deployments.settings.groups import Amount, NonEmptyText, not_rays_own
from yaml_document.section import Section, listed, wrong


class BudgetSettings(Section):
    cpus: float | None = Field(
        default=None, ge=0, le=10_000_000, description="Logical CPUs. Unset: all of the cluster."
    )
    gpus: float | None = Field(
        default=None, ge=0, le=1_000_000, description="GPUs. Unset: all of the cluster."
    )
    memory_mib: int | None = Field(
        default=None,
        ge=0,
        le=1_099_511_627_776,
        description="Memory, MiB, of the replicas that reserve memory. Unset: all of the cluster.",
    )
    resources: Annotated[dict[NonEmptyText, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 4}"],
        description="Custom resources, name to amount.",
    )
    cost_per_hour: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Cost of all replicas together for an hour, in the currency of "
        "`replicas.cost_per_hour`. Unset: no bound.",
    )


def _models(value: Any) -> Any:
    names = listed(value)
    if names == "all" or (isinstance(names, tuple) and all(isinstance(n, str) for n in names)):
        return names
    raise wrong("must be all, or a list of names of models")


class PoolSettings(Section):
    gone = GONE["pool"]
    min: int = Field(default=0, ge=0, le=10_000, description="Least number of pool replicas.")
    max: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Largest number of pool replicas; at least `min`.",
    )
    models: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_models)] = Field(
        default="all",
        examples=["all, or [minilm, reranker]"],
        description="Models that a pool replica may hold. `all`: every model that one can hold "
        "(docs/pool.md).",
    )
    memory_mib: int = Field(
        default=1024,
        ge=1,
        le=16_777_216,
        description="Memory for models' weights and engines' caches in one pool replica, MiB; of "
        "its GPU, for models that run there. The least valuable model is unloaded when another one "
        "needs room.",
    )
    asleep_mib: int = Field(
        default=0,
        ge=0,
        le=16_777_216,
        description="With `num_gpus`: memory of a pool replica's host, MiB, for the weights of "
        "engines that sleep while others use the GPUs. 0: an engine ends there, and is started "
        "anew when it is needed.",
    )
    memory_limit_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="A pool replica ends when its process's resident memory exceeds this, MiB, "
        "and reports which batch was running; a model with which it would be exceeded is not held. "
        "Unset: no limit. Must be at least `memory_mib`.",
    )
    after_ms: float = Field(
        default=20,
        gt=0,
        le=3_600_000,
        description="A model's own replicas come first. The pool is used while the predicted wait "
        "for them is longer than this, or while there are none.",
    )
    num_cpus: float = Field(
        default=0.5,
        ge=0,
        le=4096,
        description="Logical CPUs that Ray reserves for a pool replica.",
    )
    num_gpus: float = Field(
        default=0,
        ge=0,
        le=64,
        description="GPUs that Ray reserves for a pool replica; a fraction only below 1.",
    )
    resources: Annotated[dict[NonEmptyText, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 1}"],
        description="Custom resources that Ray reserves for a pool replica.",
    )
    cost_per_hour: float = Field(
        default=0, ge=0, le=1_000_000, description="Cost of one pool replica for an hour."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> PoolSettings:
        if self.max < self.min:
            raise wrong(f"is {self.max}; must be at least {self.min} (min)", "max")
        if self.memory_limit_mib is not None and self.memory_limit_mib < self.memory_mib:
            raise wrong(
                f"is {self.memory_limit_mib}; must be at least {self.memory_mib} (memory_mib)",
                "memory_limit_mib",
            )
        if self.asleep_mib and not self.num_gpus:
            raise wrong(
                f"is {self.asleep_mib}, but without num_gpus all weights are in the host's memory; "
                "must be left out",
                "asleep_mib",
            )
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise wrong(f"is {self.num_gpus:g}; must be below 1 or a whole number", "num_gpus")
        return self


class CapacitySettings(Section):
    budget: BudgetSettings = Field(
        default_factory=BudgetSettings,
        description="Most that all models together may take. Models with a lower "
        "`replicas.priority` number get their replicas first.",
    )
    pool: PoolSettings | None = Field(
        default=None, description="The shared pool. Left out: there is none."
    )
