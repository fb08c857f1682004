"""The fields of one model: its runtime, its promises to callers, its scheduling, its replicas.

Which fields go together is checked in `model.py` (`ModelSettings`). Times in ms are promises to
callers, or parts of a promise; times in s are limits of the machinery. Options that only one
backend knows are in `options`; the backend's own table checks them (`runtimes/`). Whether files
exist is checked by `sources.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from deployments.settings.accept import AcceptSettings
from deployments.settings.classify import ClassifySettings
from deployments.settings.generation import GenerationSettings
from deployments.settings.groups import NonEmptyText, Options, Precision, RuntimeName
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import LengthSettings
from deployments.settings.record import RecordSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.reuse import CacheSettings
from deployments.settings.rollout import RolloutSettings
from deployments.settings.scaling import ModelScalingSettings
from deployments.settings.scheduling import (
    AdmissionModes,
    BatchSettings,
    CrashSettings,
    HedgeSettings,
    OutlierSettings,
    PolicySettings,
    QueueSettings,
    SilenceSettings,
)
from yaml_document.section import Section, listed, name_check, wrong

NAME = r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?"
TTFT_MS = 1000.0
TIMEOUT_MS = 600_000.0
MAX_TIMEOUT_MS = 86_400_000  # that a model's settings may give its requests


def _requirements(written: tuple[str, ...]) -> tuple[str, ...]:
    """As they are. Raises an error for what is no requirement (options of pip are none), and for a
    package that is required twice where the same markers hold."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    places: dict[tuple[str, str], int] = {}
    for position, each in enumerate(written):
        try:
            required = Requirement(each)
        except InvalidRequirement:
            raise wrong(
                f"is {each!r}; must be a requirement such as xgboost==2.1.4 or "
                "name @ https://host/name.whl (pip's options are in its environment)",
                position,
            ) from None
        key = canonicalize_name(required.name), str(required.marker)
        if (first := places.setdefault(key, position)) != position:
            raise wrong(
                f"requires {required.name} a second time; must be one requirement with "
                f"{written[first]!r}",
                position,
            )
    return written


_WORD = "[A-Za-z0-9][A-Za-z0-9._-]*"
Alias = Annotated[
    str,
    AfterValidator(
        name_check(
            rf"(?=.{{1,200}}$){_WORD}(/{_WORD})*",
            "is no alias; must be at most 200 letters, digits, - . _, also in parts that / divides",
        )
    ),
]


_adapter_name = name_check(
    rf"(?=.{{1,100}}$){_WORD}",
    "is no name of an adapter; must be at most 100 letters, digits, - . _",
)
AdapterName = Annotated[str, AfterValidator(_adapter_name)]
MAX_ADAPTERS = 1000


class SloSettings(Section):
    latency_ms: float = Field(
        default=100,
        gt=0,
        le=3_600_000,
        description="A request's deadline is its arrival plus this time. Not for task `generate`, "
        "which has `ttft_ms`.",
    )
    ttft_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="For task `generate`: the deadline of a request's first token is the arrival "
        f"plus this time. Unset: {TTFT_MS:g}.",
    )
    tpot_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="For task `generate`: time for each token after the first. A replica gets only "
        "as many requests at once as can keep it. Unset: as many as the replica holds.",
    )
    percentile: float = Field(
        default=99,
        gt=0,
        lt=100,
        description="Share of requests, in %, that should meet the deadline. The autoscaler plans "
        "for it, and `headrace simulate` judges a run by it.",
    )
    late: Literal["demote", "refuse"] = Field(
        default="demote",
        description="What happens to a request that can no longer meet its deadline: it waits "
        "behind all requests that still can (`demote`), or it is refused (`refuse`).",
    )
    timeout_ms: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_MS,
        description="A request expires after this time, even while its answer streams. "
        f"Unset: 10 × `latency_ms`; for task `generate`, {TIMEOUT_MS:g}.",
    )
    max_timeout_ms: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_MS,
        description="Longest timeout that a request may ask for (`x-timeout-ms`); a longer one "
        f"counts as this. Unset: {TIMEOUT_MS:g}, or `timeout_ms` if that is longer.",
    )


def adapter_name_complaint(name: str) -> str | None:
    """What is wrong with the name of an adapter."""
    try:
        _adapter_name(name)
    except ValueError as error:
        return str(error)
    return None


class ModelFields(Section):
    """The fields of one model. `ModelSettings` adds the rules between them."""

    runtime: RuntimeName = Field(description="Backend that runs the model.")
    source: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["models/minilm or package:NAME/sub/folder"],
        description="Where the model's files are: a file or folder, relative to this file; "
        "`package:NAME/sub/folder` for a folder inside an installed Python package; "
        "`made:NAME/inside` for what `examples/make_NAME.py` makes; `file:///path` on every node; "
        "`hf:ORG/NAME@COMMIT` of Hugging Face's hub; "
        "or `https://…`, `s3://…`, `gs://…` with `#sha256=…` at the end (docs/sources.md). Of "
        "runtime `python`: `folder:module:Class` with any of these as the folder, or "
        "`python:package.module:Class` for what is installed (docs/python.md). "
        "`synthetic` has no files, but with task `embed` or `generate` it may name a folder that "
        "has a `tokenizer.json`.",
    )
    dependencies: Annotated[
        tuple[NonEmptyText, ...], BeforeValidator(listed), AfterValidator(_requirements)
    ] = Field(
        default=(),
        examples=["[xgboost==2.1.4]"],
        description="For runtime `python`: packages that are installed for the model's replicas "
        "alone, as `pip` takes them (PEP 508).",
    )
    task: Literal["tensors", "embed", "classify", "rerank", "generate"] = Field(
        default="tensors",
        description="What the model is for, and so which endpoints it has besides the Open "
        "Inference Protocol: `embed` adds `POST /v1/embeddings` and `/pooling` "
        "(`/embed_sparse` for sparse vectors, `/pooling` alone for those of tokens), "
        "`classify` `POST /v1/models/{name}:classify` and, of texts, `/v1/classify`, `/classify` "
        "and `/pooling`, `rerank` `POST /v1/rerank`, `/v2/rerank`, `/rerank` "
        "and `/v1/score`, `generate` `POST /v1/chat/completions`, `/v1/completions`, "
        "`/v1/messages`, `/v1/responses`, `/tokenize` and `/detokenize`.",
    )
    version: Annotated[str, StringConstraints(pattern=rf"^{NAME}$")] | None = Field(
        default=None,
        examples=['"1.0"'],
        description="Version in URLs and answers. Unset: a digest of the artifact and of the "
        "settings that shape its answers.",
    )
    precision: Precision = Field(
        default="fp32", description="Number format of the computation; the backend must have it."
    )
    slo: SloSettings = Field(default_factory=SloSettings, description="What callers are promised.")
    lengths: LengthSettings = Field(
        default_factory=LengthSettings,
        description="What a row's length is, and how long a row may be.",
    )
    image: ImageSettings | None = Field(
        default=None,
        description="How images are prepared, for a model that takes images; must be left out for "
        "all others.",
    )
    classify: ClassifySettings = Field(
        default_factory=ClassifySettings,
        description="How the output of a model whose task is `classify` becomes labels, and of one "
        "whose task is `rerank` scores.",
    )
    batch: BatchSettings = Field(
        default_factory=BatchSettings, description="How large a batch may become."
    )
    generation: GenerationSettings = Field(
        default_factory=GenerationSettings,
        description="How long outputs may get, and how replicas are chosen for prompts; for task "
        "`generate`.",
    )
    queue: QueueSettings = Field(
        default_factory=QueueSettings, description="How much work may wait at one gateway."
    )
    admission: AdmissionModes = Field(
        default_factory=dict,
        examples=["{codel: enforce}"],
        description="Modes of the controllers that `policies.admission` names: not asked (`off`), "
        "only counted (`observe`), or acted on (`enforce`). Left out: `codel` and `limit` are "
        "observed, all others act. `best_effort_capacity` has the mode of `feasibility`.",
    )
    policies: PolicySettings = Field(
        default_factory=PolicySettings,
        description="Which of several policies answers each question (docs/policies/choosing.md).",
    )
    hedge: HedgeSettings = Field(
        default_factory=HedgeSettings,
        description="When a batch, or a request to generate, that takes long gets a second copy on "
        "another replica.",
    )
    outliers: OutlierSettings = Field(
        default_factory=OutlierSettings,
        description="What happens to a replica that is slower than the others.",
    )
    silence: SilenceSettings = Field(
        default_factory=SilenceSettings,
        description="What happens to a replica that stops sending messages.",
    )
    crashes: CrashSettings = Field(
        default_factory=CrashSettings,
        description="What happens to inputs that crash or hang replicas, and to their senders.",
    )
    replicas: ReplicaSettings = Field(
        default_factory=ReplicaSettings,
        description="How many replicas the model has, and what each of them may use.",
    )
    scaling: ModelScalingSettings = Field(
        default_factory=ModelScalingSettings,
        description="Which policy decides the number of replicas (docs/autoscaling.md).",
    )
    accept: AcceptSettings = Field(
        default_factory=AcceptSettings,
        description="The reference that the model must agree with before it may serve "
        "(docs/verify.md; left out or empty: none), and what a changed model may cost "
        "(docs/rollouts.md).",
    )
    rollout: RolloutSettings | None = Field(
        default=None,
        description="How a new version replaces the live one: step by step, compared with it, and "
        "taken back automatically if it is worse. Unset: at once.",
    )
    record: RecordSettings = Field(
        default_factory=RecordSettings,
        description="What is recorded of callers' requests, for calibration and replay.",
    )
    cache: CacheSettings = Field(
        default_factory=CacheSettings,
        description="Whether answers are cached; only for a model that gives equal answers to "
        "equal inputs.",
    )
    coalesce: bool = Field(
        default=False,
        description="Whether a request waits for the answer to an identical request of the same "
        "tenant that is under way, instead of running as well.",
    )
    allow_non_finite: bool = Field(
        default=False,
        description="Whether NaN and infinity are valid outputs, as for a model that returns "
        "logarithms of 0. If false, a row with such an output gets 500, and a model that gives "
        "such outputs to every input does not start.",
    )
    optional: bool = Field(
        default=False,
        description="Whether the server counts as ready while this model is not. The model is "
        "started all the same. An upgrade on Kubernetes does not wait for it; until it is ready, "
        "its requests get 503 or go to `fallback`. At least one model must have false.",
    )
    aliases: Annotated[tuple[Alias, ...], BeforeValidator(listed)] = Field(
        default=(),
        max_length=32,
        examples=["[Qwen/Qwen3-0.6B]"],
        description="Other names by which requests may ask for the model, such as its name on a "
        "hub. Permissions, metrics and logs have its own name.",
    )
    adapters: Annotated[
        dict[AdapterName, NonEmptyText],
        BeforeValidator(lambda value: {} if value is None else value),
    ] = Field(
        default_factory=dict,
        max_length=MAX_ADAPTERS,
        examples=["{law: adapters/law}"],
        description="For task `generate`: LoRA adapters by name, each a folder as PEFT saves it, "
        "given as `source` is. Requests ask for one as `model:adapter`; a replica fetches, checks "
        "and loads it for the first of them (docs/generation.md).",
    )
    adapters_resident: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Adapters that a replica holds in its device's memory at once, all as large as "
        "the option `max_lora_rank` allows. For a further one the least used goes.",
    )
    fallback: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["minilm-small"],
        description="Cheaper model of the same task. It answers the requests that this model would "
        "refuse because of load, or because it is not ready.",
    )
    profile: Literal["stored", "start"] = Field(
        default="stored",
        description="Where a starting replica gets the cost of batches from. `stored`: from what "
        "`headrace profile` stored for this model on this processor, with its batch target and "
        "(if `lengths.buckets` is auto) its edges; if nothing is stored, as with `start`. `start`: "
        "from batches that the replica times at each start.",
    )
    profile_s: float = Field(
        default=2,
        ge=0,
        le=600,
        description="Seconds that a starting replica may spend on timing batches of several sizes, "
        "from which gateways predict how long a batch takes. 0: gateways learn it from callers' "
        "batches. Not spent if a stored profile is used, or if replicas of the same settings "
        "already run.",
    )
    retry: bool = Field(
        default=True,
        description="Whether a request may run again after its replica died or hung. If false, "
        "batches are not copied either (`hedge`).",
    )
    options: Options = Field(
        default_factory=dict, description="Options of the backend (docs/runtimes.md)."
    )

    def unpoolable(self, num_gpus: float) -> str:
        """Why a pool replica with so many GPUs cannot hold the model; "": it can."""
        if self.dependencies:
            return "has dependencies: a pool replica installs no packages"
        if self.task != "generate":
            return ""
        if self.adapters:
            return "has adapters: a pool replica's engines have none"
        if self.runtime != "vllm":
            return ""
        if not num_gpus:
            return (
                "has runtime vllm, which without a GPU shares no process; must have runtime torch "
                "or openvino, or scaling.pool.num_gpus"
            )
        for option, else_vllm in (
            ("kv_cache_gib", "leaves its cache to vllm, which would take what the GPU has left"),
            ("gpu_memory_utilization", "would not start beside others: vllm wants 0.92 of the GPU"),
        ):
            if self.options.get(option) is None:
                return f"{else_vllm}; must have options.{option}"
        return ""

    @property
    def deadline_s(self) -> float:
        """Seconds from a request's arrival to its deadline (for a generation: of the first
        token)."""
        slo = self.slo
        if self.task != "generate":
            return slo.latency_ms / 1000
        return (TTFT_MS if slo.ttft_ms is None else slo.ttft_ms) / 1000

    @property
    def timeout_s(self) -> float:
        """Seconds from a request's arrival until it expires, unless it asks for a time of its
        own."""
        slo = self.slo
        if slo.timeout_ms is not None:
            return slo.timeout_ms / 1000
        return TIMEOUT_MS / 1000 if self.task == "generate" else slo.latency_ms * 10 / 1000

    @property
    def max_timeout_s(self) -> float:
        """The longest timeout that a request may ask for, seconds."""
        if self.slo.max_timeout_ms is not None:
            return self.slo.max_timeout_ms / 1000
        return max(self.timeout_s, TIMEOUT_MS / 1000)
