"""One model's settings: what runs it, what it promises, how its replicas are made.

The fields alone; which of them go together is checked by `ModelSettings` above them (`model.py`).
Times in ms are promises to callers or lie within them, times in s are limits of the machinery. What
a backend understands beyond this stands in `options` and is checked by the backend's own table, not
here; files are looked for by `sources`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from deployments.settings.accept import AcceptSettings
from deployments.settings.classify import ClassifySettings
from deployments.settings.generation import GenerationSettings
from deployments.settings.groups import (
    Amount,
    GroupSettings,
    Options,
    Precision,
    RuntimeName,
    Text,
    group_complaints,
    not_rays_own,
)
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import LengthSettings
from deployments.settings.record import RecordSettings
from deployments.settings.reuse import CacheSettings
from deployments.settings.scheduling import (
    AdmissionSettings,
    BatchSettings,
    HedgeSettings,
    OutlierSettings,
    QueueSettings,
    SilenceSettings,
)
from yaml_document.section import Section, listed, wrong

NAME = r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?"
TTFT_MS = 1000.0
TIMEOUT_MS = 600_000.0


class SloSettings(Section):
    latency_ms: float = Field(
        default=100,
        gt=0,
        le=3_600_000,
        description="A request's deadline is its arrival plus this; of task `generate` not, see "
        "`ttft_ms`.",
    )
    ttft_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="Of task `generate`: a request's first token is due at its arrival plus this; "
        f"unset, {TTFT_MS:g}.",
    )
    tpot_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="Of task `generate`: time for each further token; a replica is given no more "
        "requests at once than keep it; unset, as many as it holds.",
    )
    percentile: float = Field(
        default=99,
        gt=0,
        lt=100,
        description="Share of requests, in %, that should meet the deadline: what `headrace "
        "simulate` judges a run by; a server does not act on it.",
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
        description="A request expires after this time, also while its answer streams; "
        f"unset, 10 × `latency_ms`, of task `generate` {TIMEOUT_MS:g}.",
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
    memory_mib: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Memory that Ray reserves for a replica, MiB; places it, does not limit it; "
        "unset, none is reserved.",
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


class ModelFields(Section):
    runtime: RuntimeName = Field(description="Backend that runs the model.")
    source: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["models/minilm or package:NAME/sub/folder"],
        description="File or folder of the model, relative to this file, or "
        "`package:NAME/sub/folder` for a folder inside an installed Python package, "
        "`made:NAME/inside` for what `examples/make_NAME.py` makes, `file:///path` on every node, "
        "or `https://…`, `s3://…`, `gs://…` with `#sha256=…` at the end (docs/sources.md); "
        "`synthetic` has none, but with task `embed` or `generate` may name a folder for its "
        "`tokenizer.json`.",
    )
    task: Literal["tensors", "embed", "classify", "generate"] = Field(
        default="tensors",
        description="What the model is for; `embed` adds `POST /v1/embeddings`, `classify` "
        "`POST /v1/models/{name}:classify`, `generate` `POST /v1/chat/completions` and "
        "`/v1/completions`.",
    )
    version: Annotated[str, StringConstraints(pattern=rf"^{NAME}$")] | None = Field(
        default=None,
        examples=['"1.0"'],
        description="Version in URLs and answers; unset, a digest of the artifact and of the "
        "settings that shape its answers.",
    )
    precision: Precision = Field(
        default="fp32", description="Number format to compute with, where the backend has it."
    )
    slo: SloSettings = Field(default_factory=SloSettings, description="What callers are promised.")
    lengths: LengthSettings = Field(
        default_factory=LengthSettings, description="What a row's length is and how long it may be."
    )
    image: ImageSettings | None = Field(
        default=None,
        description="What is done to images, for a model that takes them; must be left out for all "
        "others.",
    )
    classify: ClassifySettings = Field(
        default_factory=ClassifySettings,
        description="How the output of a model whose task is `classify` becomes labels.",
    )
    batch: BatchSettings = Field(
        default_factory=BatchSettings, description="How large a batch may become."
    )
    generation: GenerationSettings = Field(
        default_factory=GenerationSettings,
        description="How requests that generate are weighed, predicted and placed.",
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
    silence: SilenceSettings = Field(
        default_factory=SilenceSettings, description="Replicas that stop talking."
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings, description="How many run the model and with what."
    )
    accept: AcceptSettings = Field(
        default_factory=AcceptSettings,
        description="What the model must agree with before it may serve; left out or empty, "
        "nothing: see docs/verify.md.",
    )
    record: RecordSettings = Field(
        default_factory=RecordSettings,
        description="What is kept of callers' requests, for calibration and replay.",
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
    profile: Literal["stored", "start"] = Field(
        default="stored",
        description="Where a starting replica gets the cost of batches from: what `headrace "
        "profile` stored for this model on this processor, if it did, with its batch target and "
        "(where `lengths.buckets` is auto) its edges; or its own timing at each start.",
    )
    profile_s: float = Field(
        default=2,
        ge=0,
        le=600,
        description="Seconds a starting replica may spend on timing batches of several sizes, "
        "from which gateways predict what a batch takes; 0 learns it from callers' batches. Not "
        "spent where a stored profile is used, nor beside replicas of the same settings that run.",
    )
    retry: bool = Field(
        default=True,
        description="Whether a request may run again after its replica died or hung; false also "
        "keeps batches from being copied (`hedge`).",
    )
    options: Options = Field(
        default_factory=dict, description="Settings of the backend's own, see docs/runtimes.md."
    )

    @property
    def deadline_s(self) -> float:
        """From a request's arrival until its answer, or its first token, is due."""
        slo = self.slo
        if self.task != "generate":
            return slo.latency_ms / 1000
        return (TTFT_MS if slo.ttft_ms is None else slo.ttft_ms) / 1000

    @property
    def timeout_s(self) -> float:
        """From a request's arrival until nobody waits any longer."""
        slo = self.slo
        if slo.timeout_ms is not None:
            return slo.timeout_ms / 1000
        return TIMEOUT_MS / 1000 if self.task == "generate" else slo.latency_ms * 10 / 1000
