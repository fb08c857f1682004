"""One model's settings: what runs it, what it promises, how its replicas are made.

Times in ms are promises to callers or lie within them, times in s are limits of the machinery. What
a backend understands beyond this stands in `options` and is checked by the backend's own table, not
here; files are looked for by `sources`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from deployments.settings.ladder import CacheSettings
from deployments.settings.lengths import LengthSettings
from deployments.settings.scheduling import (
    AdmissionSettings,
    BatchSettings,
    HedgeSettings,
    OutlierSettings,
    QueueSettings,
)
from deployments.settings.section import Section, wrong

NAME = r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?"


class SloSettings(Section):
    latency_ms: float = Field(
        default=100,
        gt=0,
        le=3_600_000,
        description="A request's deadline is its arrival plus this.",
    )
    percentile: float = Field(
        default=99,
        gt=0,
        lt=100,
        description="Share of requests, in %, that should meet the deadline; stated for people, "
        "nothing acts on it yet.",
    )
    late: Literal["demote", "refuse"] = Field(
        default="demote",
        description="What happens to a request that can no longer meet its deadline: it goes "
        "behind all that still can (`demote`), or is refused (`refuse`).",
    )
    timeout_ms: float | None = Field(
        default=None,
        gt=0,
        le=86_400_000,
        description="Nobody waits for an answer longer than this; unset, 10 × `latency_ms`.",
    )

    @property
    def timeout_s(self) -> float:
        return (self.latency_ms * 10 if self.timeout_ms is None else self.timeout_ms) / 1000

    @model_validator(mode="after")
    def _timeout_covers_deadline(self) -> SloSettings:
        if self.timeout_ms is not None and self.timeout_ms < self.latency_ms:
            raise wrong(
                f"is {self.timeout_ms:g}, shorter than latency_ms ({self.latency_ms:g}); "
                f"must be at least {self.latency_ms:g}",
                "timeout_ms",
            )
        return self


class ReplicaSettings(Section):
    count: int = Field(default=1, ge=1, le=10_000, description="Replicas of the model.")
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
    threads: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Threads the backend computes with; 0 is a replica's share of the CPUs that "
        "this container may use.",
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
    start_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="A replica that is not ready by then has failed to start.",
    )

    @model_validator(mode="after")
    def _gpus_are_whole_or_parts_of_one(self) -> ReplicaSettings:
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise wrong(
                f"is {self.num_gpus:g}; must be below 1 or a whole number of GPUs", "num_gpus"
            )
        return self


class ModelSettings(Section):
    runtime: Literal["onnxruntime", "openvino", "torch", "synthetic"] = Field(
        description="Backend that runs the model."
    )
    source: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["models/minilm or package:NAME/sub/folder"],
        description="File or folder of the model, relative to this file, or "
        "`package:NAME/sub/folder` for a folder inside an installed Python package; `synthetic` "
        "has none, but with task `embed` may name a folder for its `tokenizer.json`.",
    )
    task: Literal["tensors", "embed", "classify"] = Field(
        default="tensors", description="What the model is for; `embed` adds `POST /v1/embeddings`."
    )
    version: Annotated[str, StringConstraints(pattern=rf"^{NAME}$")] | None = Field(
        default=None,
        examples=['"1.0"'],
        description="Version in URLs and answers; unset, a digest of the artifact and of the "
        "settings that shape its answers.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Number format to compute with, where the backend has it."
    )
    slo: SloSettings = Field(default_factory=SloSettings, description="What callers are promised.")
    lengths: LengthSettings = Field(
        default_factory=LengthSettings, description="What a row's length is and how long it may be."
    )
    batch: BatchSettings = Field(
        default_factory=BatchSettings, description="How large a batch may become."
    )
    queue: QueueSettings = Field(
        default_factory=QueueSettings, description="How much may wait at one gateway, and how long."
    )
    admission: AdmissionSettings = Field(
        default_factory=AdmissionSettings, description="What is refused because of load."
    )
    hedge: HedgeSettings = Field(
        default_factory=HedgeSettings, description="Second copies of batches that take long."
    )
    outliers: OutlierSettings = Field(
        default_factory=OutlierSettings, description="Replicas that are slower than the others."
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings, description="How many run the model and with what."
    )
    cache: CacheSettings = Field(
        default_factory=CacheSettings,
        description="Answers that are kept, for a model that answers equal inputs equally.",
    )
    coalesce: bool = Field(
        default=False,
        description="Whether a tenant's request waits for the answer to an identical one of its "
        "own that is under way, instead of running too.",
    )
    fallback: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["minilm-small"],
        description="Cheaper model of the same task that answers what this one would refuse "
        "because of load or because it is not ready.",
    )
    profile_s: float = Field(
        default=2,
        ge=0,
        le=600,
        description="Seconds a starting replica may spend on timing batches of several sizes, "
        "from which gateways predict what a batch takes; 0 learns it from callers' batches.",
    )
    retry: bool = Field(
        default=True, description="Whether a request may run again after its replica died or hung."
    )
    options: Annotated[
        dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)
    ] = Field(
        default_factory=dict, description="Settings of the backend's own, see docs/runtimes.md."
    )

    @model_validator(mode="after")
    def _source_belongs_to_runtime(self) -> ModelSettings:
        if self.runtime == "synthetic" and self.source is not None and self.task != "embed":
            raise wrong("must be left out: a synthetic model has no artifact", "source")
        if self.runtime != "synthetic" and self.source is None:
            raise wrong(
                "is missing; must be a file or folder, or package:NAME/sub/folder", "source"
            )
        return self
