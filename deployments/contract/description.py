"""What a ready model says of itself: the description that gateways route, parse and measure by.

Made by the model's replica after warm-up, published by its anchor through the registry, read by
every gateway. Plain data, so that it pickles and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from routers.api.settings import DispatcherSettings, GenerationParameters, GroupSettings
from runtimes.types import TensorSpec


@dataclass(frozen=True, slots=True)
class CrashTerms:
    """Of rows that end replicas. refuse_s: how long such a row is refused; tenant_budget: replicas
    that a tenant's rows may end in that time, 0: any number; hold_s: how long a suspected prompt
    that streams may wait for its turn."""

    refuse_s: float = 600.0
    tenant_budget: int = 8
    hold_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How the model's requests are queued: the part of its settings that gateways act on.

    core: the core's own settings, as the user's file has them; what the loaded model and the
    gateway say is added by `dispatcher_settings`. timeout_s: when nobody waits any longer;
    max_timeout_s: the longest that a caller may say instead. slots: batches one replica may hold
    for one gateway. hang_limit_s: longest run on the device. retry: whether a request may run
    again. max_output_tokens: of a request that generates and does not say, 0: what its prompt
    leaves.
    """

    core: DispatcherSettings
    timeout_s: float
    slots: int
    hang_limit_s: float
    retry: bool
    max_output_tokens: int = 0
    crashes: CrashTerms = field(default_factory=CrashTerms)
    max_timeout_s: float = inf

    def budget_s(self, asked_s: float | None) -> float | None:
        """Of a request that brings its own; more than the model's longest counts as that."""
        return None if asked_s is None else min(asked_s, self.max_timeout_s)

    @property
    def slo_s(self) -> float:
        """Deadline of a request without a budget, of one that generates its first token's."""
        return self.core.slo_s


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """What gateways try before the model refuses.

    cache_bytes: memory for answered rows at one gateway, 0: none; cache_ttl_s: how long an answer
    is kept; cache_public: whether tenants share them. coalesce: whether identical requests share
    one run. fallback: the model that takes what this one refuses, "": none.
    """

    cache_bytes: int = 0
    cache_ttl_s: float = 0.0
    cache_public: bool = False
    coalesce: bool = False
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Generating:
    """How a model generates. Tokens: `cache_tokens` a replica holds at once, `block_tokens` the
    unit in which prompts share them (0: they do not), `context_tokens` the longest prompt and
    output together. `max_sequences`: of a replica at once. `profile`: (running sequences, tokens of
    the step, seconds) of the engine steps measured while warming up. `shared_prefixes`: by all
    tenants."""

    context_tokens: int
    cache_tokens: int
    max_sequences: int
    block_tokens: int = 0
    profile: tuple[tuple[int, int, float], ...] = ()
    shared_prefixes: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """What gateways keep of callers' requests, each in a part of `folder`: inputs of `max_rows`
    rows and `max_bytes`, spread over the buckets that end with `edges`; time, length and tenant of
    the first `max_requests`, and where the model `generates` the output's length."""

    folder: str
    edges: tuple[int, ...]
    max_rows: int
    max_bytes: int
    max_requests: int
    generates: bool = False


@dataclass(frozen=True, slots=True)
class ImageInput:
    """What an image becomes before the model sees it, as in the settings (`image`).

    `input`, `datatype`: the tensor's. sizes: (height, width), pixels, ascending. mean, std: of
    levels from 0 to 1, one number or one a channel, in the order of `colour`.
    """

    input: str
    datatype: str
    sizes: tuple[tuple[int, int], ...]
    resize: str
    antialias: bool
    rounded: bool
    shorter_side: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    colour: str
    layout: str
    max_pixels: int

    @property
    def channels(self) -> int:
        return 1 if self.colour == "grey" else 3


@dataclass(frozen=True, slots=True)
class Classes:
    """How rows of `output` [classes] become labels with scores: softmax(logits / temperature), the
    best `top_k` of them; abstains where the best is below `threshold`. probabilities: what the
    output holds instead of logits."""

    output: str
    labels: tuple[str, ...]
    top_k: int
    temperature: float
    threshold: float
    probabilities: bool


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Replicas of one kind of a model that has several, as one of them described itself; see
    `ModelDescription`. `max_size`: rows a batch. `after_s`: of a reserve, the predicted wait on the
    others beyond which it is used; 0: it is none."""

    name: str
    digest: str
    platform: str
    precision: str
    device: str
    slots: int
    max_size: int
    after_s: float = 0.0
    profile: tuple[tuple[int, int, float], ...] = ()
    profile_from: str = ""
    generating: Generating | None = None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """`inputs`/`outputs`: axis 0 is the batch, -1 dynamic.

    `lengths_input`/`lengths_axis`: where a row's length is read (None: every row has length 1);
    `mask_input`: which input marks real tokens; `optional_inputs`: may be left out of a request.
    `bucket_edges`: ascending, tokens. `tokenizer_digest`: key of the tokeniser's bytes in the
    registry, "" when the model takes no text. `embed_output`: name of the output that holds the
    embedding, `embed_width` its size. `digest`: of the settings that the replica was started with,
    by which an anchor knows its own replicas. `profile`: seconds of (rows, length) batches;
    `profile_from`: where it comes from, for people.
    `image`: of a model that takes images; a row's length is then its patches. `classes`: of one
    whose task is to classify. `recording`: None keeps nothing. `generating`: of a model whose
    replicas stream; it has no tensors. `groups`: in the settings' order, those of which a replica
    has described itself; () of a model without groups.
    """

    name: str
    version: str
    generation: int
    platform: str
    task: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    lengths_input: str | None
    lengths_axis: int
    mask_input: str | None
    optional_inputs: tuple[str, ...]
    max_length: int
    truncate: bool
    bucket_edges: tuple[int, ...]
    pads: bool
    precision: str
    device: str
    scheduling: Scheduling
    digest: str
    tokenizer_digest: str = ""
    embed_output: str = ""
    embed_width: int = 0
    max_rows: int | None = None
    profile: tuple[tuple[int, int, float], ...] = ()
    profile_from: str = ""
    reuse: ReuseSettings = ReuseSettings()
    image: ImageInput | None = None
    classes: Classes | None = None
    recording: Recording | None = None
    generating: Generating | None = None
    groups: tuple[GroupDescription, ...] = ()

    def group_digests(self) -> dict[str, str]:
        """The settings that replicas of each group, "" where there are none, were started with."""
        if not self.groups:
            return {"": self.digest}
        return {group.name: group.digest for group in self.groups}


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """The gateway that a queue lives in: its name, unique in the cluster; how many priorities its
    requests have; whether all that learns is frozen."""

    gateway: str
    priorities: int = 3
    frozen: bool = False


def dispatcher_settings(d: ModelDescription, identity: GatewayIdentity) -> DispatcherSettings:
    """What the gateway's core of this model is told."""
    core = d.scheduling.core
    return replace(
        core,
        bucket_edges=d.bucket_edges,
        max_size=core.max_size if d.max_rows is None else min(core.max_size, d.max_rows),
        pads=d.pads,
        profile=d.profile,
        priorities=identity.priorities,
        frozen=identity.frozen,
        generation=_measured(core.generation, d.generating),
        groups=tuple(_group(group) for group in d.groups),
    )


def _group(group: GroupDescription) -> GroupSettings:
    generating = group.generating
    return GroupSettings(
        group.name,
        group.profile,
        () if generating is None else generating.profile,
        group.max_size,
        group.after_s,
    )


def _measured(
    settings: GenerationParameters | None, engine: Generating | None
) -> GenerationParameters | None:
    """What the settings say of generating, with what the loaded engine says."""
    if settings is None or engine is None:
        return settings
    return replace(settings, block_tokens=engine.block_tokens, profile=engine.profile)
