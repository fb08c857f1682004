"""Which groups of a settings file need MIG slices, how many, and with how much memory?

A group needs slices if it requests a GPU or a MIG resource, or if the user names it. A group that
cannot run on a slice, or whose memory is unknown, is refused with the reason. Weights are counted
from the model's file, which must be on this machine; an engine's key-value cache follows from the
settings; CUDA's context and the activations come from rules (on one H100 torch's context took 757
to 799 MiB, and activations a sixth to two fifths of what the rule says). A part that follows from
none of these is not guessed. A margin is added to what the user did not give. See docs/mig.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deployments.settings import remote_source
from deployments.settings.groups import MIG_RESOURCE
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings
from deployments.settings_files import sources
from runtimes import catalog, folder, footprint, options
from runtimes.errors import LoadError
from runtimes.footprint import ITEM_BYTES, Architecture
from runtimes.source import Source, SourceKind, inspect_without_digest
from runtimes.vllm.runtime import VLLMOptions

CONTEXT_MIB = 820  # of CUDA and a framework; others report 0.5 to 0.8 GiB
GRAPHS_MIB = 512  # an engine's captured CUDA graphs
MIN_UNKNOWN_MIB = 512  # activations of a model whose shape is unknown, at least
# Assumed of an engine where its options do not say them.
SEQUENCES = 8  # full-length sequences in its key-value cache
STEP_TOKENS = 8192
STEP_SEQUENCES = 256
_MIB = 1 << 20
_GIB = 1 << 30


class CannotTell(Exception):
    """A part's size follows from neither the model's file nor the settings; says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a replica's device memory."""

    name: str
    mib: int
    # Where the figure comes from: counted (from the file), set (in the settings), given (on the
    # command line), rule (by the model's shape) or allowance (the same for all models).
    how: str
    text: str  # details, for the reader


def parts(model: ModelSettings) -> list[Part]:
    """The parts of one replica of a model without groups. Raises CannotTell."""
    if model.runtime == "synthetic":
        return [Part("weights", 0, "counted", "a synthetic model has none")]
    source = _source(model)
    shape = None if model.image is not None else footprint.architecture(source)
    counted = footprint.weights_bytes(source, model.precision)
    weights = Part("weights", _mib(counted), "counted", _how_counted(source, model))
    found = [weights, Part("context", CONTEXT_MIB, "allowance", "CUDA and the framework")]
    if model.runtime == "vllm":
        return [*found, *_of_engine(model, shape)]
    bound = model.options.get(catalog.GPU_MEMORY)
    return [
        *found,
        _activations(model, source, shape, weights.mib)
        if bound is None
        else _bounded(bound, weights.mib),
    ]


def of_pool(weights_mib: int, models: Sequence[ModelSettings]) -> list[Part]:
    """The parts of a replica of the shared pool. It runs one batch at a time, so it needs room for
    the activations of one of its models, the largest. Raises CannotTell."""
    largest = max(
        (part for model in models for part in parts(model) if part.name == "activations"),
        key=lambda part: part.mib,
        default=Part("activations", 0, "rule", "none of its models has any"),
    )
    weights = Part("weights", weights_mib, "set", "scaling.pool.memory_mib")
    return [weights, Part("context", CONTEXT_MIB, "allowance", "CUDA and the framework"), largest]


def _source(model: ModelSettings) -> Source:
    written = model.source or ""
    if remote_source.is_remote(written):
        raise CannotTell(f"its file is not on this machine ({remote_source.redacted(written)})")
    try:
        return inspect_without_digest(sources.resolve(written))
    except LoadError as error:
        raise CannotTell(f"its file cannot be read here: {error}") from error


def _how_counted(source: Source, model: ModelSettings) -> str:
    if source.weights:
        return f"its tensors in {model.precision}"
    return "the file as it is stored"


def _activations(
    model: ModelSettings, source: Source, shape: Architecture | None, weights_mib: int
) -> Part:
    """Activations of the largest batch that the settings allow."""
    if shape is None:
        mib = max(weights_mib, MIN_UNKNOWN_MIB)
        said = f"its shape is not known: as much as the weights, at least {MIN_UNKNOWN_MIB}"
        return Part("activations", mib, "rule", said)
    longest, batch = model.lengths.max, model.batch
    rows = max(1, min(batch.max_size, batch.max_tokens // longest))
    tokens = max(longest, min(batch.max_tokens, batch.max_size * longest))
    taken = footprint.batch_bytes(shape, rows, tokens, longest, ITEM_BYTES[model.precision])
    if _is_sparse(source, model):
        taken += footprint.sparse_bytes(shape, tokens)
    return Part("activations", _mib(taken), "rule", f"{rows} rows of {longest}, {tokens:,} tokens")


def _bounded(bound_mib: int, weights_mib: int) -> Part:
    """What the option leaves beside the weights."""
    if bound_mib < weights_mib:
        raise CannotTell(
            f"options.{catalog.GPU_MEMORY} is {bound_mib}, less than its weights take "
            f"({weights_mib:,} MiB)"
        )
    left = bound_mib - weights_mib
    return Part("activations", left, "set", f"options.{catalog.GPU_MEMORY} less the weights")


def _is_sparse(source: Source, model: ModelSettings) -> bool:
    if source.kind is not SourceKind.HUGGING_FACE or model.task != "embed":
        return False
    with contextlib.suppress(LoadError):
        pooling = folder.pooling_of(source.path, model.options.get("pooling"), None)
        return pooling is not None and pooling.splade is not None
    return False


def _of_engine(model: ModelSettings, shape: Architecture | None) -> Iterator[Part]:
    chosen = engine_options(model)
    if shape is None:
        raise CannotTell("its config.json does not say its layers, heads and sizes")
    yield _cache(model, chosen, shape)
    sequences = chosen.max_num_seqs or STEP_SEQUENCES
    tokens = chosen.max_num_batched_tokens or STEP_TOKENS
    taken = footprint.step_bytes(shape, sequences, tokens, ITEM_BYTES[model.precision])
    yield Part("activations", _mib(taken), "rule", f"a step of {tokens:,} tokens")
    if not chosen.enforce_eager:
        yield Part("graphs", GRAPHS_MIB, "allowance", "captured graphs")


def _cache(model: ModelSettings, chosen: VLLMOptions, shape: Architecture) -> Part:
    item, longest = ITEM_BYTES[model.precision], model.lengths.max
    if (chosen.kv_cache_dtype or "").startswith(("fp8", "int8")):
        item = 1
    if chosen.kv_cache_gib is not None:
        given = int(chosen.kv_cache_gib * _GIB)
        if given < footprint.cache_bytes(shape, longest, item):
            minimum = footprint.cache_bytes(shape, longest, item) / _GIB
            raise CannotTell(
                f"options.kv_cache_gib is {chosen.kv_cache_gib:g}, less than one sequence of "
                f"lengths.max ({longest:,} tokens) takes; must be at least {minimum:.2f}"
            )
        return Part("kv cache", _mib(given), "set", "options.kv_cache_gib")
    sequences = chosen.max_num_seqs or SEQUENCES
    taken = footprint.cache_bytes(shape, sequences * longest, item)
    how = "set" if chosen.max_num_seqs else "rule"
    return Part("kv cache", _mib(taken), how, f"{sequences} sequences of {longest:,} tokens")


def engine_options(model: ModelSettings) -> VLLMOptions:
    """The model's options. Parsing cannot fail: they were checked when the file was read."""
    return options.parse(VLLMOptions, model.options)


def remarks(model: ModelSettings) -> Iterator[str]:
    """Sentences on what the numbers leave out, or on options that ought to be set."""
    if 0 < model.replicas.num_gpus < 1:
        yield (
            f"num_gpus {model.replicas.num_gpus:g}: planned with a slice of its own for each "
            "replica; replicas that share a slice are not planned"
        )
    if model.runtime != "vllm":
        return
    chosen = engine_options(model)
    if chosen.kv_cache_gib is None:
        yield (
            "set options.kv_cache_gib: on a slice vLLM may measure the whole GPU's memory instead "
            "of the slice's (vllm#41776), so gpu_memory_utilization, a share of it, is no bound"
        )
    if model.adapters:
        yield "memory of LoRA adapters is not counted"
    if chosen.speculative and "model" in chosen.speculative:
        yield "memory of the draft model is not counted"


def _mib(taken: int) -> int:
    return -(-taken // _MIB)


MARGIN = 0.1
POOL = "scaling.pool"
_WHOLE = "a replica takes {:g} GPUs; a slice is a part of one"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Need:
    """What the replicas of one group of a model need."""

    model: str
    group: str  # "": the model has no groups
    replicas: int  # the maximum
    min_replicas: int
    surge: int  # new replicas beside the old ones while the model changes

    # Of one replica.
    cpus: float
    host_mib: int | None  # memory of its node; None: not set
    profile: str = ""  # the MIG profile that was asked for; "": none
    resources: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    margin: float = MARGIN

    remarks: tuple[str, ...] = ()
    unknown: str = ""  # why the memory cannot be known
    skipped: str = ""  # why the group is not planned

    @property
    def name(self) -> str:
        return f"{self.model}/{self.group}" if self.group else self.model

    @property
    def mib(self) -> int:
        """Memory that a slice must have: all parts, plus the margin on those not `given`."""
        given = sum(part.mib for part in self.parts if part.how == "given")
        rest = sum(part.mib for part in self.parts if part.how != "given")
        return given + math.ceil(rest * (1 + self.margin))


@dataclass(frozen=True, slots=True)
class MemoryOverrides:
    """The user's options on the command line, by model or MODEL/GROUP."""

    need_mib: Mapping[str, int]  # memory of one replica, all parts
    profile: Mapping[str, str]  # the slice to take
    margin: float = MARGIN  # a share

    def of(self, option: Mapping[str, T], need: Need) -> T | None:
        """The option's value for the group, else the one for its model."""
        return option.get(need.name, option.get(need.model))


def needs(settings: Settings, overrides: MemoryOverrides) -> list[Need]:
    """A need for each group, in the order of the settings file, the shared pool last."""
    found = [
        _of_model(_blank(name, group, view.replicas), view, overrides)
        for name, model in settings.models.items()
        for group, view in (model.views() or {"": model}).items()
    ]
    return found if settings.scaling.pool is None else [*found, _of_pool(settings, overrides)]


def names(settings: Settings) -> list[str]:
    """The names that `MemoryOverrides` may contain: models, groups and the shared pool."""
    groups = [f"{n}/{group}" for n, model in settings.models.items() for group in model.views()]
    return [*settings.models, *groups, *([] if settings.scaling.pool is None else [POOL])]


def _blank(name: str, group: str, replicas: ReplicaSettings) -> Need:
    """The need before memory and profile are known."""
    surge = math.ceil(replicas.most * replicas.surge_percent / 100)
    return Need(
        name, group, replicas.most, replicas.least, surge, replicas.num_cpus, replicas.memory_mib
    )


def _of_model(blank: Need, model: ModelSettings, overrides: MemoryOverrides) -> Need:
    wants_gpu = model.replicas.num_gpus > 0 or model.runtime == "tensorrt"
    need = _with_profile(blank, overrides, model.replicas.resources, wants_gpu)
    refused = next(_no_slice(model), "")
    if need.skipped or refused:
        return need if need.skipped else replace(need, unknown=refused)
    need = replace(need, remarks=tuple(remarks(model)))
    return _with_parts(need, overrides, lambda: parts(model))


def _of_pool(settings: Settings, overrides: MemoryOverrides) -> Need:
    pool = settings.scaling.pool
    assert pool is not None
    blank = Need(POOL, "", pool.max, pool.min, 0, pool.num_cpus, None)
    need = _with_profile(blank, overrides, pool.resources, pool.num_gpus > 0)
    if need.skipped:
        return need
    if pool.num_gpus > 1:
        return replace(need, unknown=_WHOLE.format(pool.num_gpus))
    chosen = settings.models if pool.models == "all" else pool.models
    named = [settings.models[name] for name in chosen]
    models = [each for each in named if not each.unpoolable(pool.num_gpus)]
    return _with_parts(need, overrides, lambda: of_pool(pool.memory_mib, models))


def _with_profile(
    blank: Need, overrides: MemoryOverrides, resources: Mapping[str, float], wants_gpu: bool
) -> Need:
    """The need with the profile that was asked for; `skipped` if it needs no slice."""
    profile = overrides.of(overrides.profile, blank) or asked_for(resources)
    if not wants_gpu and not profile and overrides.of(overrides.need_mib, blank) is None:
        return replace(blank, skipped="requests no GPU (num_gpus)")
    return replace(blank, profile=profile, resources=resources, margin=overrides.margin)


def _with_parts(
    need: Need, overrides: MemoryOverrides, parts: Callable[[], Sequence[Part]]
) -> Need:
    """The need with its parts, or with the reason why they are `unknown`."""
    given = overrides.of(overrides.need_mib, need)
    if given is not None:
        return replace(need, parts=(Part("all", given, "given", "by --need"),))
    try:
        return replace(need, parts=tuple(parts()))
    except CannotTell as error:
        return replace(need, unknown=f"{error}; --need {need.name}=MIB sets it")


def asked_for(resources: Mapping[str, float]) -> str:
    """The profile of the MIG resource among `resources`, "" if there is none."""
    for name in resources:
        found = MIG_RESOURCE.fullmatch(name)
        if found:
            slices, memory, media = found.groups()
            return f"{slices}.{memory}{'+me' if media else ''}"
    return ""


def _no_slice(model: ModelSettings) -> Iterator[str]:
    """Reasons why the model's replicas cannot run on a slice."""
    if model.replicas.num_gpus > 1:
        yield _WHOLE.format(model.replicas.num_gpus)
    if model.runtime == "openvino":
        yield "its runtime is openvino, which does not run on these GPUs"
    if model.options.get("device") == "cpu":
        yield "options.device is cpu"
