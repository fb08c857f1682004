"""One model's settings: what runs it, what it promises, how its replicas are made.

The fields alone; which of them go together is checked by `ModelSettings` above them (`model.py`).
Times in ms are promises to callers or lie within them, times in s are limits of the machinery. What
a backend understands beyond this stands in `options` and is checked by the backend's own table, not
here; files are looked for by `sources`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from deployments.settings.accept import AcceptSettings
from deployments.settings.classify import ClassifySettings
from deployments.settings.crashes import CrashSettings
from deployments.settings.generation import GenerationSettings
from deployments.settings.groups import Options, Precision, RuntimeName
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import LengthSettings
from deployments.settings.policy_names import PolicySettings
from deployments.settings.record import RecordSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.reuse import CacheSettings
from deployments.settings.rollout import RolloutSettings
from deployments.settings.scaling import ModelScalingSettings
from deployments.settings.scheduling import (
    AdmissionSettings,
    BatchSettings,
    HedgeSettings,
    OutlierSettings,
    QueueSettings,
    SilenceSettings,
)
from yaml_document.section import Section

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
    max_timeout_ms: float | None = Field(
        default=None,
        gt=0,
        le=86_400_000,
        description="A request that brings a time of its own (`x-timeout-ms`) gets this at most: "
        f"more counts as this; unset, {TIMEOUT_MS:g}, or its timeout where that is longer.",
    )


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
    policies: PolicySettings = Field(
        default_factory=PolicySettings,
        description="Which of several policies answers each question (docs/policies/choosing.md).",
    )
    hedge: HedgeSettings = Field(
        default_factory=HedgeSettings,
        description="Second copies of batches, and of requests to generate, that take long.",
    )
    outliers: OutlierSettings = Field(
        default_factory=OutlierSettings, description="Replicas that are slower than the others."
    )
    silence: SilenceSettings = Field(
        default_factory=SilenceSettings, description="Replicas that stop talking."
    )
    crashes: CrashSettings = Field(
        default_factory=CrashSettings, description="Inputs that end replicas."
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings, description="How many run the model and with what."
    )
    scaling: ModelScalingSettings = Field(
        default_factory=ModelScalingSettings,
        description="Which policy decides how many replicas there are (docs/autoscaling.md).",
    )
    accept: AcceptSettings = Field(
        default_factory=AcceptSettings,
        description="What the model must agree with before it may serve; left out or empty, "
        "nothing: see docs/verify.md.",
    )
    rollout: RolloutSettings | None = Field(
        default=None,
        description="How a new version takes the live one's place: step by step, compared with it, "
        "and taken back by itself; unset, at once.",
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
    allow_non_finite: bool = Field(
        default=False,
        description="Whether NaN and infinity are answers, as of a model that gives logarithms of "
        "0; otherwise a row that is answered so gets 500, and a model that answers so whatever it "
        "is asked does not start.",
    )
    optional: bool = Field(
        default=False,
        description="Whether the server is ready without this model, which is started all the "
        "same: an upgrade on Kubernetes does not wait for it, and until it is ready its requests "
        "get 503 or go to `fallback`. Of one model at least this must be false.",
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
    def poolable(self) -> bool:
        """Whether a replica of the shared pool may hold the model."""
        return self.task != "generate"

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

    @property
    def max_timeout_s(self) -> float:
        """What a request may ask for instead, at most."""
        if self.slo.max_timeout_ms is not None:
            return self.slo.max_timeout_ms / 1000
        return max(self.timeout_s, TIMEOUT_MS / 1000)
