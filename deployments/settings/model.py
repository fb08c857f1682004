"""One model's settings: what runs it, what it promises, how its batches and replicas are made.

Times in ms are promises to callers, times in s are limits of the machinery. Lengths are tokens, or
whatever the model's length axis counts. What a backend understands beyond this stands in `options`
and is checked by the backend's own table, not here; files are looked for by `sources`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from deployments.settings.section import Section, listed, wrong

NAME = r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?"
SHORTEST_BUCKET = 16
LONGEST = 1_048_576


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


def _edges(value: Any) -> Any:
    """`auto` or a list of whole numbers; one sentence for whatever else stands there."""
    if value == "auto":
        return value
    edges = listed(value)
    if not isinstance(edges, tuple):
        raise wrong("must be auto or a list of lengths such as [32, 128, 512]")
    for position, edge in enumerate(edges):
        if isinstance(edge, bool) or not isinstance(edge, int) or not 1 <= edge <= LONGEST:
            raise wrong(f"is {edge!r}; must be a whole number of at least 1", position)
    return edges


class LengthSettings(Section):
    max: int = Field(
        default=512,
        ge=1,
        le=LONGEST,
        description="Longest row accepted, in tokens; a model that takes less does not start.",
    )
    buckets: Annotated[Literal["auto"] | tuple[int, ...], BeforeValidator(_edges)] = Field(
        default="auto",
        description="Ascending upper edges, in tokens, of the length intervals that are batched "
        "together, the last one equal to `max`; `auto` is powers of two from 16.",
    )
    input: str | None = Field(
        default=None,
        description="Input whose axis is a row's length; unset, what the model declares.",
    )
    axis: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="That axis, the batch being axis 0; unset, what the model declares.",
    )
    mask: str | None = Field(
        default=None,
        description="Input that is 1 for real tokens and 0 for padding; unset, what the model "
        "declares.",
    )
    truncate: bool = Field(
        default=False, description="Cut longer rows to `max` instead of refusing the request."
    )

    @model_validator(mode="after")
    def _edges_ascend_to_max(self) -> LengthSettings:
        if self.buckets == "auto":
            return self
        edges = self.buckets
        if not edges:
            raise wrong("is empty; must be auto or end with max", "buckets")
        for position in range(1, len(edges)):
            if edges[position] <= edges[position - 1]:
                raise wrong(
                    f"is {edges[position]} after {edges[position - 1]}; edges must ascend",
                    "buckets",
                    position,
                )
        if edges[-1] != self.max:
            raise wrong(
                f"ends with {edges[-1]}; the last edge must equal max ({self.max})", "buckets"
            )
        return self


def bucket_edges(lengths: LengthSettings) -> tuple[int, ...]:
    """Ascending inclusive upper edges, in tokens; the last is `lengths.max`."""
    if lengths.buckets != "auto":
        return lengths.buckets
    return (*_powers_below(lengths.max), lengths.max)


def _powers_below(limit: int) -> Iterator[int]:
    edge = SHORTEST_BUCKET
    while edge < limit:
        yield edge
        edge *= 2


class BatchSettings(Section):
    max_size: int = Field(default=32, ge=1, le=65_536, description="Rows in a batch at most.")
    max_tokens: int = Field(
        default=8192,
        ge=1,
        le=1_073_741_824,
        description="Tokens in a batch at most, padding included; a longer single row runs alone.",
    )
    max_passed_over_ms: float = Field(
        default=50,
        ge=0,
        le=3_600_000,
        description="A length interval whose oldest row has waited this long goes before fuller "
        "ones.",
    )


class QueueSettings(Section):
    max_rows: int = Field(
        default=2048,
        ge=1,
        le=10_000_000,
        description="Rows that may wait at one gateway; more are refused.",
    )
    max_late_rows: int = Field(
        default=1024,
        ge=0,
        le=10_000_000,
        description="Of those, rows that may wait although they have missed their deadline.",
    )


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
        "has none.",
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
        default_factory=QueueSettings, description="How much may wait at one gateway."
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings, description="How many run the model and with what."
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
        if self.runtime == "synthetic" and self.source is not None:
            raise wrong("must be left out: a synthetic model has no artifact", "source")
        if self.runtime != "synthetic" and self.source is None:
            raise wrong(
                "is missing; must be a file or folder, or package:NAME/sub/folder", "source"
            )
        return self
