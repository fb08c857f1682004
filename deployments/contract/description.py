"""What a ready model says about itself. Gateways route, parse and predict costs by it.

A replica of the model makes the description after its warm-up, the model's anchor publishes it
through the registry, and every gateway reads it. Plain data, so that it pickles and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from deployments.contract.codec import MessageCodec
from routers.api.settings import DispatcherSettings, GenerationParameters, GroupSettings
from runtimes.types import PairPrompt, TensorSpec, TokenVectors


@dataclass(frozen=True, slots=True)
class CrashTerms:
    """How rows that end replicas are treated."""

    refuse_s: float = 600.0  # how long a quarantined row is refused: longer than callers repeat it
    tenant_budget: int = 8  # replicas that a tenant's rows may end in `refuse_s`; 0: no bound
    hold_s: float = 30.0  # how long a suspected prompt that streams may wait for its turn


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How the model's requests are queued: the part of its settings that gateways act on."""

    # The core's settings as in the user's file. `dispatcher_settings` adds what the loaded model
    # and the gateway know.
    core: DispatcherSettings
    timeout_s: float  # after it no caller waits any longer
    slots: int  # batches that one replica may hold for one gateway
    hang_limit_s: float  # longest run on the device
    retry: bool  # whether a request may run again
    max_output_tokens: int = 0  # of a request that names no bound; 0: what its prompt leaves
    crashes: CrashTerms = field(default_factory=CrashTerms)
    max_timeout_s: float = inf  # the longest budget that a caller may ask for

    def budget_s(self, asked_s: float) -> float:
        """The budget of a request that brings its own, capped at `max_timeout_s`."""
        return min(asked_s, self.max_timeout_s)

    @property
    def slo_s(self) -> float:
        """Seconds to the deadline of a request that brings no budget; for a model that generates,
        to the deadline of its first token."""
        return self.core.slo_s


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """What gateways try besides running a request: a kept answer, a shared run, another model."""

    cache_bytes: int = 0  # memory for answered rows at one gateway; 0: no cache
    cache_ttl_s: float = 0.0  # how long an answer is kept
    cache_public: bool = False  # whether tenants share kept answers
    coalesce: bool = False  # whether identical requests share one run
    fallback: str = ""  # the model that takes what this one refuses; "": none

    def of_dependent_rows(self) -> ReuseSettings:
        """For answers that other rows decide too: none is kept or shared."""
        return replace(self, cache_bytes=0, coalesce=False)


@dataclass(frozen=True, slots=True)
class Generating:
    """The engine of a model that generates, as one replica measured or declared it."""

    context_tokens: int  # longest prompt and output together
    cache_tokens: int  # that a replica holds at once
    max_sequences: int  # of a replica at once
    block_tokens: int = 0  # unit in which prompts share the cache; 0: they do not
    # (running sequences, tokens of the step, seconds) of engine steps measured in the warm-up
    profile: tuple[tuple[int, int, float], ...] = ()
    shared_prefixes: bool = False  # all tenants share them
    adapters: tuple[str, ...] = ()  # asked for as `model:adapter`
    adapter_digests: tuple[str, ...] = ()  # of their contents, in the same order


def adapters_by_hand(
    declared: Mapping[str, str], by_hand: Mapping[str, str | None]
) -> dict[str, str]:
    """The adapters of a model, by name: those of its settings, but for those that an operator has
    added (a source) or taken out (None)."""
    both = {**declared, **by_hand}
    return {name: source for name, source in both.items() if source is not None}


@dataclass(frozen=True, slots=True)
class Recording:
    """What gateways record of callers' requests; each gateway writes a part in `folder`.

    Recorded are inputs, up to `max_rows` rows and `max_bytes`, spread over the buckets; and time,
    length and tenant of the first `max_requests` requests.
    """

    folder: str
    edges: tuple[int, ...]  # of the buckets, inclusive
    max_rows: int
    max_bytes: int
    max_requests: int
    generates: bool = False  # whether the output's length is recorded too


@dataclass(frozen=True, slots=True)
class ImageInput:
    """What an image becomes before the model sees it, as in the setting `image`."""

    input: str  # name of the tensor
    datatype: str  # of the tensor
    sizes: tuple[tuple[int, int], ...]  # (height, width), pixels, ascending
    resize: str
    antialias: bool
    rounded: bool
    shorter_side: int | None
    mean: tuple[float, ...]  # of levels from 0 to 1: one number, or one a channel as in `colour`
    std: tuple[float, ...]  # as `mean`
    colour: str
    layout: str
    max_pixels: int
    crops_down: bool = False  # how the middle is rounded, as `ImageSettings` says

    @property
    def channels(self) -> int:
        return 1 if self.colour == "grey" else 3


@dataclass(frozen=True, slots=True)
class Classes:
    """How rows of `output` [classes] become labels with scores: the best `top_k` of
    activation(logits / temperature)."""

    output: str
    labels: tuple[str, ...]
    top_k: int
    temperature: float
    threshold: float  # no label is given if the best score is below it; 0: always one
    probabilities: bool  # `output` holds probabilities instead of logits
    # softmax: the classes exclude each other; sigmoid: each is true or not by itself; identity:
    # scores are what `output` holds.
    activation: str = "softmax"


@dataclass(frozen=True, slots=True)
class EmbeddingChoices:
    """What requests for embeddings may choose, as the model's folder says."""

    prompts: dict[str, str] = field(default_factory=dict)  # by name; each goes before the text
    default_prompt: str = ""  # the name of the one that a request gets that names none; "": none
    dimensions: tuple[int, ...] = ()  # besides `default_dimensions` and the whole width
    default_dimensions: int = 0  # of a request that asks for none; 0: the whole width
    # The output with the entries of the vocabulary that `embed_output` has weights for; "": vectors
    # are dense.
    indices_output: str = ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Replicas of one kind of a model that has several, as one of them described itself. Fields
    without a comment are as in `ModelDescription`."""

    name: str
    digest: str
    platform: str
    precision: str
    device: str
    slots: int
    max_size: int  # rows a batch
    # Of a reserve: the predicted wait on the other groups beyond which it is used. 0: no reserve.
    after_s: float = 0.0
    profile: tuple[tuple[int, int, float], ...] = ()
    profile_from: str = ""
    generating: Generating | None = None
    max_tokens: int | None = None  # a batch; None: as the model's scheduling says
    max_length: int | None = None  # of a row, an edge of the model's buckets; None: the model's


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One live version of a model.

    Of a tensor's shape, axis 0 is the batch and -1 a dynamic axis.
    """

    name: str
    version: str
    generation: int  # of the anchor that announced it: Unix time in ms at its start, or later
    platform: str
    task: str
    inputs: tuple[TensorSpec, ...]  # () for a model that generates
    outputs: tuple[TensorSpec, ...]
    lengths_input: str | None  # the input that a row's length is read from; None: length 1
    lengths_axis: int  # of that input
    mask_input: str | None  # the input that marks real tokens
    optional_inputs: tuple[str, ...]  # may be left out of a request
    max_length: int
    truncate: bool
    bucket_edges: tuple[int, ...]  # ascending, tokens
    pads: bool
    precision: str
    device: str
    scheduling: Scheduling
    digest: str  # of its replica's settings; an anchor knows its own replicas by it
    tokenizer_digest: str = ""  # the registry's key of the tokeniser; "": the model takes no text
    embed_output: str = ""  # name of the output that holds the embedding
    embed_width: int = 0  # numbers in an embedding
    max_rows: int | None = None
    profile: tuple[tuple[int, int, float], ...] = ()  # (rows, length, seconds) of measured batches
    profile_from: str = ""  # where the profile comes from, for people
    reuse: ReuseSettings = ReuseSettings()
    image: ImageInput | None = None  # of a model that takes images; lengths are then patches
    classes: Classes | None = None  # of a model whose task is to classify
    recording: Recording | None = None  # None: nothing is recorded
    generating: Generating | None = None  # of a model whose replicas stream
    # In the settings' order, those of which a replica has described itself. (): without groups.
    groups: tuple[GroupDescription, ...] = ()
    embedding: EmbeddingChoices | None = None  # of a model whose task is to embed
    # Of a model that embeds each token of a text, or scores pairs by such vectors.
    token_vectors: TokenVectors | None = None
    pair_prompt: PairPrompt | None = None  # of a language model that reranks
    aliases: tuple[str, ...] = ()  # other names, as in the settings
    rows_depend: bool = False  # a row's answer depends on the rows that run beside it

    @property
    def kind(self) -> str:
        """Its task; of one that embeds, `sparse` where its vectors are, `tokens` where each token
        has one."""
        if self.embedding is None:
            return self.task
        if self.embedding.indices_output:
            return "sparse"
        return "tokens" if self.token_vectors else self.task

    @property
    def main_group(self) -> GroupDescription | None:
        """The first group that takes all lengths, else the first; None: without groups."""
        whole = [group for group in self.groups if group.max_length is None]
        return next(iter((*whole, *self.groups)), None)

    def group_digests(self) -> dict[str, str]:
        """The digest of the settings of each group's replicas, by group; under "" for a model
        without groups."""
        if not self.groups:
            return {"": self.digest}
        return {group.name: group.digest for group in self.groups}


DESCRIPTION = MessageCodec[ModelDescription](ModelDescription)


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """The gateway that a queue lives in."""

    gateway: str  # its name, unique in the cluster
    priorities: int = 3  # how many its requests may have
    frozen: bool = False  # nothing is learnt


def dispatcher_settings(d: ModelDescription, identity: GatewayIdentity) -> DispatcherSettings:
    """The settings of this model's scheduling core at one gateway."""
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
        group.max_tokens,
        group.max_length,
    )


def _measured(
    settings: GenerationParameters | None, engine: Generating | None
) -> GenerationParameters | None:
    """The settings of a model that generates, with what the loaded engine measured; None where no
    engine was loaded: the core then deals in batches, as the queue does."""
    if engine is None:
        return None
    settings = settings or GenerationParameters()
    return replace(settings, block_tokens=engine.block_tokens, profile=engine.profile)


def is_version(asked: str, version: str) -> bool:
    """Whether a caller who asks for this version means it."""
    return asked in (version, version_number(version))


def version_number(version: str) -> str:
    """A version as a whole number in decimal digits, the only form that perf_analyzer reads."""
    try:
        return str(int(version, 16))
    except ValueError:
        return version
