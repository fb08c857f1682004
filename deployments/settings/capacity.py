"""`scaling`: what all models together may take, and the shared pool.

The budget bounds what the autoscaler asks for, not what a file says by itself: `min` replicas of a
model are started whatever the budget is. The pool's replicas belong to no model and can become
several; each is one more replica, of the group `pool`, of every model that it holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings.groups import Amount, Text, not_rays_own
from yaml_document.section import Section, listed, wrong


class BudgetSettings(Section):
    cpus: float | None = Field(
        default=None, ge=0, le=10_000_000, description="Logical CPUs; unset, as the cluster has."
    )
    gpus: float | None = Field(
        default=None, ge=0, le=1_000_000, description="GPUs; unset, as the cluster has."
    )
    memory_mib: int | None = Field(
        default=None,
        ge=0,
        le=1_099_511_627_776,
        description="Memory of replicas that reserve some, MiB; unset, as the cluster has.",
    )
    resources: Annotated[dict[Text, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 4}"],
        description="Custom resources, name to amount.",
    )
    cost_per_hour: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Of all replicas together, in the currency of `replicas.cost_per_hour`; "
        "unset, no bound.",
    )


def _models(value: Any) -> Any:
    names = listed(value)
    if names == "all" or (isinstance(names, tuple) and all(isinstance(n, str) for n in names)):
        return names
    raise wrong("must be all or a list of models' names")


class PoolSettings(Section):
    min: int = Field(default=0, ge=0, le=10_000, description="Replicas of the pool at least.")
    max: int = Field(
        default=1, ge=1, le=10_000, description="Replicas of the pool at most; not below `min`."
    )
    auto: bool = Field(
        default=True,
        description="Whether their number between `min` and `max` follows what recorded spikes "
        "were worth; else it is `max`.",
    )
    models: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_models)] = Field(
        default="all",
        examples=["all, or [minilm, reranker]"],
        description="Models that a replica of the pool may hold; `all`: each that is answered in "
        "batches.",
    )
    memory_mib: int = Field(
        default=1024,
        ge=1,
        le=16_777_216,
        description="Memory of one of its replicas for models' weights, MiB; the least valuable "
        "model goes when another one needs room.",
    )
    residency_s: float = Field(
        default=10, ge=0, le=86_400, description="A loaded model stays at least so long."
    )
    residency_loads: float = Field(
        default=10,
        ge=0,
        le=10_000,
        description="Or so many times what its loading took, whichever is longer.",
    )
    num_cpus: float = Field(
        default=0.5, ge=0, le=4096, description="Logical CPUs that Ray reserves for one of them."
    )
    num_gpus: float = Field(
        default=0, ge=0, le=64, description="GPUs that Ray reserves for one; parts only below 1."
    )
    resources: Annotated[dict[Text, Amount], AfterValidator(not_rays_own)] = Field(
        default_factory=dict,
        examples=["{mig_3g: 1}"],
        description="Custom resources that Ray reserves for one.",
    )
    cost_per_hour: float = Field(
        default=0, ge=0, le=1_000_000, description="Of one of its replicas."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> PoolSettings:
        if self.max < self.min:
            raise wrong(f"is {self.max}; must be at least {self.min} (min)", "max")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise wrong(f"is {self.num_gpus:g}; must be below 1 or a whole number", "num_gpus")
        return self


class CapacitySettings(Section):
    budget: BudgetSettings = Field(
        default_factory=BudgetSettings,
        description="What all models together may take; models of a lower `replicas.priority` "
        "number get it first.",
    )
    pool: PoolSettings | None = Field(
        default=None, description="The shared pool; left out, there is none."
    )
