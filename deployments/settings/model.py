"""Which of a model's settings go together, for models that run batches, generate, or take images?

A setting that would have no effect on a model is refused, not ignored. A replica of a model that
generates streams tokens: its engine batches by itself, so settings of batches, padding and tensors
have no effect there. The fields themselves are in `model_fields.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError, model_validator

from deployments.settings.accept import MAX_COST_RATIO
from deployments.settings.classify import ClassifySettings
from deployments.settings.generation import GenerationSettings
from deployments.settings.groups import group_views
from deployments.settings.lengths import LengthSettings
from deployments.settings.model_fields import ModelFields
from deployments.settings.python_source import FORMS, python_class
from deployments.settings.record import RecordSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.reuse import CacheSettings
from deployments.settings.scheduling import BatchSettings, PolicySettings
from yaml_document.document import Document
from yaml_document.mistakes import explain
from yaml_document.section import wrong

_LATENCY_MS = 100.0  # the default of slo.latency_ms: counts as not given
_STREAM_RUNTIMES = ("vllm", "torch", "openvino", "synthetic")
_WITH_ADAPTERS = ("vllm", "synthetic")

Complaint = tuple[tuple[str | int, ...], str]


class ModelSettings(ModelFields):
    """One model's settings. Validation fails if fields contradict each other."""

    @model_validator(mode="after")
    def _fields_go_together(self) -> ModelSettings:
        for rule in (_images, _source, _task, _adapters, _timeout, _group_lengths, _groups):
            for path, message in rule(self):
                raise wrong(message, *path)
        return self

    def views(self) -> dict[str, ModelSettings]:
        """By group: the settings that the group's replicas start with. Empty without groups."""
        written = self.model_dump(mode="json", exclude_unset=True)
        return {
            name: ModelSettings.model_validate(view) for name, view in group_views(written).items()
        }

    def main_view(self) -> ModelSettings:
        """The settings of the first group that takes all lengths; without groups, the model's."""
        all_lengths = (None, self.lengths.max)
        whole = [g.name for g in self.replicas.groups if g.max_length in all_lengths]
        views = self.views()
        return views[whole[0]] if whole else next(iter(views.values()), self)


def _images(model: ModelFields) -> Iterator[Complaint]:
    if model.task not in ("classify", "rerank") and model.classify != ClassifySettings():
        yield (
            ("classify",),
            f"must be left out for task {model.task}; only tasks classify and rerank have it",
        )
    if model.image is None:
        return
    if model.runtime == "synthetic":
        yield ("image",), "must be left out: a synthetic model takes no images"
    if model.task == "rerank":
        yield ("image",), "must be left out: a model that reranks takes texts, not images"
    if model.task == "generate":
        yield ("image",), "must be left out: a model that generates takes prompts, not images"
    if model.lengths != LengthSettings():
        yield (
            ("lengths",),
            "must be left out: for images, image.size decides their lengths and which of them are "
            "batched together",
        )


def _source(model: ModelFields) -> Iterator[Complaint]:
    tokenized = model.task in ("embed", "generate")
    if model.runtime == "synthetic" and model.source is not None and not tokenized:
        yield ("source",), "must be left out: a synthetic model has no artifact"
    if model.runtime != "synthetic" and model.source is None:
        yield ("source",), "is missing; must be a file or folder, or package:NAME/sub/folder"
    if model.runtime == "synthetic" and model.accept.required:
        yield ("accept",), "must be left out: a synthetic model has no artifact"
    if model.runtime == "python":
        yield from _python(model)
    elif model.source is not None and python_class(model.source) is not None:
        yield ("runtime",), f"is {model.runtime}, but source names a Python class; must be python"
    elif model.dependencies:
        yield ("dependencies",), "must be left out: only runtime python installs packages"


def _python(model: ModelFields) -> Iterator[Complaint]:
    if model.source is not None and python_class(model.source) is None:
        yield ("source",), f"is {model.source!r}, which names no class; must be {FORMS}"
    if model.accept.required:
        yield (
            ("accept",),
            "must be left out: no other runtime computes what a Python class computes; "
            "rollout.shadow_percent compares a new version with the live one",
        )
    if model.image is not None:
        yield ("image",), "must be left out: a Python class takes an input 'image' as it was sent"


def _task(model: ModelFields) -> Iterator[Complaint]:
    """Fields that have no effect with this task or runtime."""
    if model.runtime == "vllm" and model.task != "generate":
        yield ("task",), f"is {model.task}; must be generate, the only task of vllm"
    elif model.task != "generate":
        yield from _of_batches(model)
    elif model.runtime not in _STREAM_RUNTIMES:
        others = "must be vllm, torch or openvino"
        yield ("runtime",), f"is {model.runtime}, which cannot generate; {others}"
    else:
        yield from _of_streams(model)


def _adapters(model: ModelFields) -> Iterator[Complaint]:
    if model.adapters and model.task != "generate":
        yield ("adapters",), f"must be left out: task {model.task} has none, only generate has"
    elif model.adapters and model.runtime not in _WITH_ADAPTERS:
        yield ("adapters",), f"must be left out: runtime {model.runtime} has no adapters"
    places = ModelFields.model_fields["adapters_resident"].default
    if not model.adapters and model.adapters_resident != places:
        yield ("adapters_resident",), "must be left out: the model has no adapters"


def _of_batches(model: ModelFields) -> Iterator[Complaint]:
    if model.policies.batching != "ragged" and model.batch.hold != "never":
        batching = model.policies.batching
        yield ("batch", "hold"), f"must be left out with policies.batching {batching}"
    if model.policies.edges != PolicySettings().edges and model.lengths.max_buckets is None:
        yield ("policies", "edges"), "must be left out: lengths.buckets lists fixed edges"
    for name in ("ttft_ms", "tpot_ms"):
        if getattr(model.slo, name) is not None:
            yield ("slo", name), "must be left out: only task generate has tokens to wait for"
    if model.generation != GenerationSettings():
        yield ("generation",), f"must be left out: task {model.task} generates nothing"
    if model.queue.preempt_streams:
        yield (
            ("queue", "preempt_streams"),
            f"must be left out: replicas of task {model.task} run batches, which are not stopped",
        )
    if model.hedge.mode == "tied" and not model.retry:
        yield (
            ("hedge", "mode"),
            "is tied, but with retry false no row runs twice; must be left out, or retry true",
        )
    for name in ("input", "axis", "mask") if model.runtime == "synthetic" else ():
        if getattr(model.lengths, name) is not None:
            yield ("lengths", name), "must be left out: a synthetic model has fixed inputs"


def _of_streams(model: ModelFields) -> Iterator[Complaint]:
    if "lora_modules" in model.options:
        yield (
            ("options", "lora_modules"),
            "is gone: adapters are loaded when they are asked for; must be the model's own "
            "adapters: {NAME: FOLDER}",
        )
    if model.slo.latency_ms != _LATENCY_MS:
        yield ("slo", "latency_ms"), "must be left out: task generate has ttft_ms and tpot_ms"
    if model.batch != BatchSettings():
        yield ("batch",), "must be left out: the engine batches by itself"
    if model.hedge.mode == "tied":
        yield (
            ("hedge", "mode"),
            "is tied, but no batch is staged at an engine; must be off or hedge",
        )
    if model.queue.preempt_streams and model.policies.preemption == "none":
        yield ("queue", "preempt_streams"), "must be left out with policies.preemption none"
    if model.policies.batching != PolicySettings().batching:
        yield ("policies", "batching"), "must be left out: the engine batches by itself"
    if model.policies.edges != PolicySettings().edges:
        yield ("policies", "edges"), "must be left out: an engine batches by itself, unpadded"
    if model.replicas.slots != ReplicaSettings().slots:
        yield (
            ("replicas", "slots"),
            "must be left out: the engine says how many requests a replica holds",
        )
    if model.cache != CacheSettings():
        yield ("cache",), "must be left out: answers that stream are not cached"
    if model.accept.required:
        yield ("accept",), "must be left out: generated text cannot be compared with a reference"
    if model.accept.max_cost_ratio != MAX_COST_RATIO:
        yield ("accept", "max_cost_ratio"), "must be left out: an engine's steps are not compared"
    if model.record.max_rows != RecordSettings().max_rows:
        yield ("record", "max_rows"), "must be left out: only the lengths of prompts are recorded"
    if model.replicas.memory_limit_mib is not None:
        yield (
            ("replicas", "memory_limit_mib"),
            "must be left out: an engine keeps the memory that its own options give it",
        )
    if model.allow_non_finite:
        yield ("allow_non_finite",), "must be left out: tokens cannot be NaN or infinite"
    if model.rollout is not None and model.rollout.shadow_percent:
        yield (
            ("rollout", "shadow_percent"),
            "must be left out: answers to a copied prompt are sampled, so they cannot be compared",
        )
    if model.coalesce:
        yield ("coalesce",), "must be left out: answers that stream are not shared"
    plain = LengthSettings(max=model.lengths.max)
    for name in ("input", "axis", "mask", "truncate"):
        if getattr(model.lengths, name) != getattr(plain, name):
            yield ("lengths", name), "must be left out: a prompt has no tensors and is not padded"


def _group_lengths(model: ModelFields) -> Iterator[Complaint]:
    """Groups that take shorter rows than the model. Each bound must be an edge of buckets, and the
    longest rows need a group that is no reserve: a reserve is closed while the others have time."""
    groups, longest = model.replicas.groups, model.lengths.max
    bounds = {n: g.max_length for n, g in enumerate(groups) if g.max_length is not None}
    for position, most in bounds.items():
        at = ("replicas", "groups", position, "lengths")
        name = groups[position].name
        if model.task == "generate":
            yield at, "must be left out: an engine's cache decides which prompts it takes"
        if model.image is not None:
            yield at, "must be left out: image.size decides the lengths"
        if not model.lengths.max_is_said:
            yield (
                ("lengths", "max"),
                f"is missing; must be given, because group {name} takes rows of at most {most} "
                "only, so that others are known to take the rest",
            )
        if most > longest:
            yield (*at, "max"), f"is {most}, above lengths.max ({longest}); must be at most that"
        edges = model.lengths.buckets
        if isinstance(edges, tuple) and most not in edges:
            shorter, longer = [e for e in edges if e < most], [e for e in edges if e > most]
            near = " or ".join(str(each) for each in (*shorter[-1:], *longer[:1]))
            yield (
                (*at, "max"),
                f"is {most}, which is no edge of lengths.buckets; must be one, such as {near}",
            )
    if not bounds:
        return
    buckets, apart = model.lengths.max_buckets, len({*bounds.values(), longest})
    if buckets is not None and buckets < apart:
        yield (
            ("lengths", "buckets"),
            f"is {buckets}; must be at least {apart}, because groups end at so many lengths",
        )
    taken = max(longest if g.max_length is None else g.max_length for g in groups if not g.overflow)
    if taken < longest:
        yield (
            ("replicas", "groups"),
            f"take rows of at most {taken} (reserves left out), so that nobody takes those of "
            f"{taken + 1} to {longest}; must have a group without lengths.max and overflow, or "
            f"the model's lengths.max must be {taken}",
        )


def _groups(model: ModelSettings) -> Iterator[Complaint]:
    """Each group, with the model's other settings, must be a valid model by itself."""
    written = model.model_dump(mode="json", exclude_unset=True)
    for position, (name, view) in enumerate(group_views(written).items()):
        at = ("replicas", "groups", position)
        try:
            ModelSettings.model_validate(view)
        except ValidationError as error:
            for each in explain(error, ModelSettings, Document("").mistake):
                yield at, f"{name} is not valid together with the model's settings: {each}"


def _timeout(model: ModelFields) -> Iterator[Complaint]:
    slo, due_ms = model.slo, model.deadline_s * 1000
    if slo.timeout_ms is not None and slo.timeout_ms < due_ms:
        name = "ttft_ms" if model.task == "generate" else "latency_ms"
        yield (
            ("slo", "timeout_ms"),
            f"is {slo.timeout_ms:g}, shorter than {name} ({due_ms:g}); must be at least {due_ms:g}",
        )
    timeout_ms = model.timeout_s * 1000
    if slo.max_timeout_ms is not None and slo.max_timeout_ms < timeout_ms:
        yield (
            ("slo", "max_timeout_ms"),
            f"is {slo.max_timeout_ms:g}, shorter than the timeout of a request that names none "
            f"(timeout_ms, {timeout_ms:g}); must be at least {timeout_ms:g}",
        )
