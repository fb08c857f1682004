"""From a model's settings and its loaded runtime to runtime settings and the model's description.

Translates between the settings tree, `runtimes.types` and `ModelDescription`. What a row's length
is comes from the loaded runtime, which was given the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deployments.contract.description import (
    Generating,
    ModelDescription,
    Recording,
    ReuseSettings,
    Scheduling,
)
from deployments.contract.rollout.terms import model_of
from deployments.replica import processors
from deployments.replica.artifacts.checksum import sha256_of
from deployments.replica.artifacts.local_model import local_file, local_options
from deployments.replica.image_model import (
    beside_the_artifact,
    classes,
    image_input,
    row_shapes,
    with_image_lengths,
)
from deployments.replica.known_costs import KnownCosts
from deployments.replica.scheduling import scheduling
from deployments.settings import model_paths, remote_source
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.plain import digest as version_digest
from deployments.settings_files import preprocessing_support
from deployments.settings_files.sources import PREFIXES
from deployments.settings_files.sources import resolve as source_path
from runtimes import calibration
from runtimes import source as artifacts
from runtimes.digest import digest_of
from runtimes.errors import LoadError
from runtimes.profiling import Profile
from runtimes.types import Limits, Runtime, RuntimeSettings, StreamRuntime, TensorSpec

_TOKENIZER = "tokenizer.json"
UNKNOWN = KnownCosts()


def runtime_settings(
    name: str,
    model: ModelSettings,
    cache_dir: Path,
    progress: Callable[[str, float], None],
    reserved_cpus: float | None = None,
) -> RuntimeSettings:
    """The runtime's settings. Fetches files that lie elsewhere. `reserved_cpus`: as in
    `processors.threads`. Raises SourceError when the artifact cannot be had, LoadError when it was
    made for other inputs than it would get here."""
    path = None if model.source is None else local_file(model.source, cache_dir, progress)
    preprocessing_support.check(model, path)
    model = with_image_lengths(model)
    threads = processors.threads(model.replicas, reserved_cpus)
    options = processors.unpinned_where_shared(name, model.options, threads, reserved_cpus)
    return RuntimeSettings(
        name=model_of(name),  # an engine's answers name the model; a canary answers as its model
        runtime=model.runtime,
        source=path,
        cache_dir=cache_dir,
        precision=model.precision,
        threads=threads,
        task=model.task,
        length_input=model.lengths.input,
        length_axis=model.lengths.axis,
        mask_input=model.lengths.mask,
        max_length=model.lengths.max,
        edges=bucket_edges(model.lengths),
        max_size=model.batch.max_size,
        max_tokens=model.batch.max_tokens,
        row_shapes=row_shapes(model.image),
        options=local_options(options, cache_dir, progress),
        progress=progress,
    )


def describe(
    name: str,
    model: ModelSettings,
    digest: str,
    runtime: Runtime,
    costs: KnownCosts = UNKNOWN,
) -> tuple[ModelDescription, bytes]:
    """The description, with generation 0 because the anchor sets it, and the tokeniser's bytes,
    b"" without one."""
    limits, path = runtime.limits(), _source_path(model)
    own_version = version(model)
    model = with_image_lengths(model)
    tokenizer = tokenizer_bytes(path)
    embed = _embed_output(limits) if model.task == "embed" else None
    description = ModelDescription(
        name=name,
        version=own_version,
        generation=0,
        platform=limits.platform,
        task=model.task,
        inputs=limits.inputs,
        outputs=limits.outputs,
        lengths_input=limits.length_input,
        lengths_axis=limits.length_axis,
        mask_input=limits.mask_input,
        optional_inputs=limits.optional_inputs,
        max_length=model.lengths.max,
        truncate=model.lengths.truncate,
        bucket_edges=_edges(model, limits, costs),
        pads=limits.pads,
        precision=limits.precision,
        device=limits.device,
        scheduling=_scheduling(model, limits, costs),
        digest=digest,
        tokenizer_digest=hashlib.sha256(tokenizer).hexdigest() if tokenizer else "",
        embed_output=embed.name if embed else "",
        embed_width=embed.shape[-1] if embed else 0,
        max_rows=limits.max_rows,
        profile=costs.points,
        profile_from=costs.source,
        reuse=_reuse(model),
        recording=_recording(model),
        image=image_input(model.image, limits),
        classes=classes(model.classify, limits, path) if model.task == "classify" else None,
    )
    return description, tokenizer


def describe_stream(
    name: str, model: ModelSettings, digest: str, runtime: StreamRuntime, profile: Profile = ()
) -> tuple[ModelDescription, bytes]:
    """As `describe`, for a model that generates. It has no tensors; its lengths are prompts'."""
    limits = runtime.limits()
    tokenizer = tokenizer_bytes(_source_path(model))
    description = ModelDescription(
        name=name,
        version=version(model),
        generation=0,
        platform=limits.platform,
        task=model.task,
        inputs=(),
        outputs=(),
        lengths_input=None,
        lengths_axis=1,
        mask_input=None,
        optional_inputs=(),
        max_length=limits.context_tokens,
        truncate=False,
        bucket_edges=_prompt_edges(model, limits.context_tokens),
        pads=False,
        precision=limits.precision,
        device=limits.device,
        scheduling=scheduling(model),
        digest=digest,
        tokenizer_digest=hashlib.sha256(tokenizer).hexdigest() if tokenizer else "",
        recording=_recording(model),
        generating=Generating(
            context_tokens=limits.context_tokens,
            cache_tokens=limits.cache_tokens,
            max_sequences=limits.max_sequences,
            block_tokens=limits.block_tokens,
            profile=profile,
            shared_prefixes=model.generation.share_prefixes,
            adapters=_adapters(name, model),
        ),
    )
    return description, tokenizer


def _adapters(name: str, model: ModelSettings) -> tuple[str, ...]:
    """The names in `lora_modules`, without the model's, which may stand before them."""
    modules = model.options.get(model_paths.NAMED) or ()
    names = (str(module).partition("=")[0] for module in modules)
    return tuple(each.removeprefix(f"{model_of(name)}:") for each in names)


def _prompt_edges(model: ModelSettings, context_tokens: int) -> tuple[int, ...]:
    """The settings' edges below the engine's context, and the context as the last edge."""
    edges = [edge for edge in bucket_edges(model.lengths) if edge < context_tokens]
    return (*edges, context_tokens)


def tokenizer_bytes(source: Path | None) -> bytes:
    """The bytes of `tokenizer.json` in the model's folder, or beside its file; b"" without one."""
    if source is None:
        return b""
    folder = source if source.is_dir() else source.parent
    path = folder / _TOKENIZER
    return path.read_bytes() if path.is_file() else b""


def _source_path(model: ModelSettings) -> Path | None:
    return None if model.source is None else source_path(model.source)


def version(model: ModelSettings, cache_dir: Path | None = None) -> str:
    """The version in the settings, else a digest of everything that shapes the model's answers.
    With `cache_dir`, files that have not changed are not read again. Raises SourceError."""
    return model.version or _version(model, cache_dir)


def _version(model: ModelSettings, cache_dir: Path | None) -> str:
    path = _source_path(model)
    stored = beside_the_artifact(path) if model.task == "classify" else b""
    # Labels and temperature shape answers just as weights do.
    artifact = _artifact(model, path, cache_dir) + _hex(stored) * bool(stored)
    return version_digest(_options_by_content(model, cache_dir), artifact)


def _options_by_content(model: ModelSettings, cache_dir: Path | None) -> ModelSettings:
    """The settings with digests in place of the paths in options, because those differ from node
    to node."""
    rows = model.options.get("calibration")

    def content(named: str) -> str:
        if remote_source.is_remote(named):
            return remote_source.parse(named).sha256
        if named == rows and not named.startswith(PREFIXES):
            return sha256_of(calibration.file_of(remote_source.path_of(named)))
        path = source_path(named)
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
        return digest_of(files, path if path.is_dir() else path.parent, cache_dir)

    options = model_paths.changed_options(model.options, content)
    return model.model_copy(update={"options": options})


def _artifact(model: ModelSettings, path: Path | None, cache_dir: Path | None) -> str:
    if path is None:
        return ""
    if model.runtime == "synthetic":  # its folder may hold a tokeniser only, and no model
        return _hex(tokenizer_bytes(path))
    return artifacts.inspect(path, cache_dir).digest


def _hex(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _scheduling(model: ModelSettings, limits: Limits, costs: KnownCosts) -> Scheduling:
    """The settings' scheduling, with the profile's batch target as one more bound on rows."""
    found = scheduling(model, fixed_shapes=bool(limits.fixed_edges))
    if costs.target_rows is None:
        return found
    core = replace(found.core, max_size=min(found.core.max_size, costs.target_rows))
    return replace(found, core=core)


def _edges(model: ModelSettings, limits: Limits, costs: KnownCosts) -> tuple[int, ...]:
    """The buckets' edges. A backend that is compiled for certain lengths fixes them."""
    if limits.fixed_edges:
        return limits.fixed_edges
    has_lengths = limits.length_input or limits.row_shapes
    if costs.edges is not None and has_lengths:
        return costs.edges
    return bucket_edges(model.lengths) if has_lengths else (1,)


def _embed_output(limits: Limits) -> TensorSpec:
    for spec in limits.outputs:
        if len(spec.shape) == 2 and spec.shape[-1] > 0:
            return spec
    raise LoadError("task embed needs an output of shape [batch, width]; the model has none")


def _recording(model: ModelSettings) -> Recording | None:
    record = model.record
    if record.folder is None:
        return None
    return Recording(
        record.folder,
        bucket_edges(model.lengths),
        record.max_rows,
        record.max_bytes,
        record.max_requests,
        generates=model.task == "generate",
    )


def _reuse(model: ModelSettings) -> ReuseSettings:
    cache = model.cache
    return ReuseSettings(
        cache.max_bytes, cache.ttl_s, cache.public, model.coalesce, model.fallback or ""
    )
