"""From a model's settings and its loaded runtime to runtime settings and the model's description.

Translates between the settings tree, `runtimes.types` and `ModelDescription`, and joins the
settings with what the model declares and what its folder holds: which tensor takes the image, which
one holds the classes, the labels, what makes scores of logits. A model that does not fit its
settings raises `LoadError` at the start, in the words of the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from deployments.contract.description import (
    Classes,
    Generating,
    ImageInput,
    ModelDescription,
    Recording,
    ReuseSettings,
    Scheduling,
)
from deployments.contract.rollout.terms import model_of
from deployments.preprocess import pairs
from deployments.replica import backend_env, embedding_choices
from deployments.replica.artifacts.fetch import sha256_of
from deployments.replica.artifacts.local_model import (
    LocalAdapters,
    adapter_digests,
    content_of,
    local_file,
    local_options,
    max_lora_rank,
)
from deployments.replica.known_costs import KnownCosts
from deployments.replica.scheduling import scheduling
from deployments.settings import model_paths, remote_source
from deployments.settings.classify import ClassifySettings
from deployments.settings.image import ImageSettings, patches
from deployments.settings.lengths import LengthSettings, bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.plain import digest as version_digest
from deployments.settings.python_source import python_class
from deployments.settings.record import MAX_BYTES
from deployments.settings_files import preprocessing_support
from deployments.settings_files.sources import PREFIXES
from deployments.settings_files.sources import resolve as source_path
from runtimes import calibration, catalog, fingerprint, towers
from runtimes.errors import LoadError
from runtimes.profiling import Profile
from runtimes.types import (
    INDICES,
    MAXSIM,
    TOKEN_VECTORS,
    VALUES,
    Limits,
    RowShapes,
    Runtime,
    RuntimeSettings,
    StreamLimits,
    StreamRuntime,
    TensorSpec,
    TokenVectors,
)

_MULTI_LABEL = "multi_label_classification"  # a `problem_type` of transformers
CLASSES_FILE = "classify.json"
_DATATYPES = ("FP32", "FP16", "FP64", "UINT8")


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """`classify.json`: what a training script knows of its model's classes."""

    labels: list[str] | None = None
    output_name: str | None = None
    output: str | None = None
    activation: str | None = None
    temperature: float | None = None
    threshold: float | None = None


def row_shapes(image: ImageSettings | None) -> RowShapes | None:
    """The shape of a row for each of the settings' image sizes, by its length in patches; None
    where nothing says them."""
    if image is None or not image.sizes:
        return None
    shapes = []
    for height, width in image.sizes:
        nchw = (image.channels, height, width)
        shape = nchw if image.layout == "NCHW" else (height, width, image.channels)
        shapes.append((patches(height, width), shape))
    return RowShapes(image.input, tuple(shapes))


def with_lengths(model: ModelSettings, artifact: Path | None = None) -> ModelSettings:
    """The settings with what the model's own files say: of images, whose sizes are lengths; or,
    where `lengths.max` is left out, of the longest row. Raises `LoadError`."""
    model = preprocessing_support.with_image(model, artifact)
    shapes = row_shapes(model.image)
    if shapes is not None:
        edges = shapes.lengths
        return model.model_copy(update={"lengths": LengthSettings(max=edges[-1], buckets=edges)})
    lengths = model.lengths
    if artifact is None or lengths_are_said(model):
        return model
    longest = fingerprint.longest(artifact)
    if longest is None or longest >= lengths.max:
        return model
    return model.model_copy(update={"lengths": lengths.model_copy(update={"max": longest})})


def lengths_are_said(model: ModelSettings) -> bool:
    """Whether the settings alone say how long a row may be. The length of a class's rows is its
    own, and an engine's its engine's."""
    of_files = model.task != "generate" and model.runtime != "python"
    return model.lengths.max_is_said or not of_files


def image_input(image: ImageSettings | None, limits: Limits) -> ImageInput | None:
    """How images become rows. Raises `LoadError` if the model's tensor cannot hold what the
    settings make."""
    if image is None or limits.row_shapes is None:
        return None
    spec = next(each for each in limits.inputs if each.name == limits.row_shapes.input)
    if spec.datatype not in _DATATYPES:
        raise LoadError(
            f"the image input '{spec.name}' is {spec.datatype}; images can be "
            f"{', '.join(_DATATYPES)}"
        )
    plain = set(image.mean) == {0.0} and set(image.std) == {1.0} and image.rounded
    if spec.datatype == "UINT8" and not plain:
        raise LoadError(
            f"the image input '{spec.name}' takes whole levels (UINT8): leave image.mean, "
            "image.std and image.rounded out"
        )
    return ImageInput(
        input=spec.name,
        datatype=spec.datatype,
        sizes=image.sizes,
        resize=image.resize,
        antialias=image.antialias,
        rounded=image.rounded,
        shorter_side=image.shorter_side,
        mean=image.mean,
        std=image.std,
        colour=image.colour,
        layout=image.layout,
        max_pixels=image.max_pixels,
        crops_down=image.crops_down,
    )


def classes(settings: ClassifySettings, limits: Limits, source: Path | None) -> Classes:
    """How outputs become labels. The settings go before the model's folder, that before defaults.
    Raises `LoadError`."""
    stored, declared = _stored(source), _hugging_face(source)
    spec = _output(settings.output_name or stored.output_name, limits)
    labels = settings.labels or stored.labels or declared.labels
    width = spec.shape[-1]
    if labels is None:
        if width < 1:
            raise LoadError("classify.labels is missing, and the model does not say how many")
        labels = [str(number) for number in range(width)]
    if width not in (-1, len(labels)):
        raise LoadError(f"there are {len(labels)} labels for an output of {width} classes")
    temperature = _first(settings.temperature, stored.temperature, 1.0)
    threshold = _first(settings.threshold, stored.threshold, 0.0)
    activation = settings.activation or stored.activation
    if activation == "softmax" and len(labels) == 1:
        raise LoadError(
            "classify.activation is softmax, and the model has one class: every score would be 1; "
            "must be sigmoid, or identity for a score as the model gives it"
        )
    activation = activation or declared.activation(len(labels))
    if activation == "identity" and (temperature, threshold) != (1.0, 0.0):
        raise LoadError(
            "classify.temperature and classify.threshold are for scores between 0 and 1; this "
            "model's are as it gives them (classify.activation: identity)"
        )
    return Classes(
        output=spec.name,
        labels=tuple(labels),
        top_k=settings.top_k,
        temperature=temperature,
        threshold=threshold,
        probabilities=_first(settings.output, stored.output, "logits") == "probabilities",
        activation=activation,
    )


def beside_the_artifact(source: Path | None) -> bytes:
    """What decides labels and scores and is no part of the artifact: `classify.json`, and of a
    single file the `config.json` beside it."""
    alone = source is not None and source.is_file()
    config = _bytes_beside(source, "config.json") if alone else b""
    return _bytes_beside(source, CLASSES_FILE) + config


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _stored(source: Path | None) -> _Stored:
    raw = _bytes_beside(source, CLASSES_FILE)
    if not raw:
        return _Stored()
    try:
        stored = msgspec.json.decode(raw, type=_Stored)
        # Checked by the settings' own rules, because their messages say what would be right.
        given = msgspec.structs.asdict(stored)
        ClassifySettings.model_validate({k: v for k, v in given.items() if v is not None})
    except ValueError as error:  # the base of both libraries' errors
        raise LoadError(f"{_beside(source, CLASSES_FILE)}: {error}") from error
    return stored


def _output(name: str | None, limits: Limits) -> TensorSpec:
    flat = [spec for spec in limits.outputs if len(spec.shape) == 2]
    if name is not None:
        flat = [spec for spec in flat if spec.name == name]
    if len(flat) != 1:
        known = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in limits.outputs)
        wanted = f"one '{name}'" if name else "one alone, or classify.output_name must name it"
        raise LoadError(
            f"task classify needs an output of shape [batch, classes], {wanted}; the model has "
            f"{known}"
        )
    return flat[0]


@dataclass(frozen=True, slots=True)
class _HuggingFace:
    """What `config.json` says of the classes. `module`: the class name of the activation with
    which sentence-transformers trained a cross-encoder."""

    file: Path | None = None
    labels: list[str] | None = None
    problem: str | None = None
    module: str | None = None

    def activation(self, classes: int) -> str:
        """As sentence-transformers' CrossEncoder and the pipeline of transformers decide it."""
        if self.module is not None:
            known = {"Sigmoid": "sigmoid", "Identity": "identity"}
            if classes > 1:
                known["Softmax"] = "softmax"
            if self.module not in known:
                raise LoadError(
                    f"{self.file} names the activation {self.module}, which is not one of "
                    f"{', '.join(known)}; set classify.activation"
                )
            return known[self.module]
        if self.problem == "regression":
            return "identity"
        return "sigmoid" if classes == 1 or self.problem == _MULTI_LABEL else "softmax"


def _hugging_face(source: Path | None) -> _HuggingFace:
    file = _beside(source, "config.json")
    if file is None:
        return _HuggingFace()
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        named = config.get("id2label")
        labels = [str(named[str(number)]) for number in range(len(named))] if named else None
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{file}: id2label must name 0, 1, 2 …: {error!r}") from error
    trained = config.get("sentence_transformers")
    module = trained.get("activation_fn") if isinstance(trained, dict) else None
    module = module or config.get("sbert_ce_default_activation_function")
    return _HuggingFace(
        file, labels, config.get("problem_type"), str(module).rpartition(".")[2] if module else None
    )


def _beside(source: Path | None, name: str) -> Path | None:
    return None if source is None else fingerprint.beside(source, name)


def _bytes_beside(source: Path | None, name: str) -> bytes:
    """Empty if there is no such file."""
    file = _beside(source, name)
    return file.read_bytes() if file is not None else b""


UNKNOWN = KnownCosts()


def runtime_settings(
    name: str,
    model: ModelSettings,
    cache_dir: Path,
    progress: Callable[[str, float], None],
    reserved_cpus: float | None = None,
) -> RuntimeSettings:
    """The runtime's settings. Fetches files that lie elsewhere. `reserved_cpus`: as in
    `backend_env.threads`. Raises SourceError when the artifact cannot be had, LoadError when it was
    made for other inputs than it would get here."""
    path = None if model.source is None else local_file(model.source, cache_dir, progress)
    model = with_lengths(model, path)
    preprocessing_support.check(model, path)
    base, rank = None if model.runtime == "synthetic" else path, max_lora_rank(model)
    threads = backend_env.threads(model.replicas, reserved_cpus)
    options = backend_env.unpinned_where_shared(name, model.options, threads, reserved_cpus)
    return RuntimeSettings(
        name=model_of(name),  # an engine's answers name the model; a canary answers as its model
        runtime=model.runtime,
        source=path,
        entry=_entry(model),
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
        adapters=LocalAdapters(base, rank, cache_dir).made(model.adapters),
        adapters_resident=model.adapters_resident if model.adapters else 0,
        max_lora_rank=rank,
        progress=progress,
    )


def describe(
    name: str,
    model: ModelSettings,
    digest: str,
    runtime: Runtime,
    costs: KnownCosts = UNKNOWN,
    *,
    rows_depend: bool = False,
) -> tuple[ModelDescription, bytes]:
    """The description, with generation 0 because the anchor sets it, and the tokeniser's bytes,
    b"" without one."""
    limits, path = runtime.limits(), _source_path(model)
    if model.lengths.truncate and limits.length_input and limits.length_axis == 0:
        raise LoadError("lengths.truncate is for token lists; a raw text is not cut: leave it out")
    own_version = version(model)
    model = with_lengths(model, path)
    tokenizer = b"" if model.image is not None else tokenizer_bytes(path)
    tokens = _token_vectors(model, limits, path)
    scores = _scores(model, limits, path, tokens)
    if scores is not None and model.task == "rerank":
        prompt = catalog.pair_prompt(model.runtime, path)
        _check_pairs(scores, tokenizer, apart=tokens is not None or prompt is not None)
    else:
        prompt = None
    embed, cache = _embed_output(limits) if model.task == "embed" else None, model.cache
    indices = INDICES if embed and _is_sparse(limits) else ""
    reuse = ReuseSettings(
        cache.max_bytes, cache.ttl_s, cache.public, model.coalesce, model.fallback or ""
    )
    description = ModelDescription(
        **_in_common(name, model, digest, limits, tokenizer),
        version=own_version,
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
        scheduling=_scheduling(model, limits, costs),
        embed_output=embed.name if embed else "",
        embed_width=embed.shape[-1] if embed else 0,
        embedding=(
            embedding_choices.read(path, embed.shape[-1], indices, tokens) if embed else None
        ),
        token_vectors=tokens,
        pair_prompt=prompt,
        max_rows=limits.max_rows,
        profile=costs.points,
        profile_from=costs.source,
        reuse=reuse.of_dependent_rows() if rows_depend else reuse,
        rows_depend=rows_depend,
        image=image_input(model.image, limits),
        classes=scores,
    )
    return description, tokenizer


def _token_vectors(
    model: ModelSettings, limits: Limits, source: Path | None
) -> TokenVectors | None:
    """How texts become rows, of a model that embeds each token or scores by such vectors."""
    wanted = {"embed": [TOKEN_VECTORS], "rerank": [MAXSIM]}.get(model.task)
    if [spec.name for spec in limits.outputs] != wanted:
        return None
    return catalog.token_vectors(model.runtime, source, model.options) or TokenVectors()


def _scores(
    model: ModelSettings, limits: Limits, source: Path | None, tokens: TokenVectors | None
) -> Classes | None:
    if model.task not in ("classify", "rerank"):
        return None
    if tokens is None:
        return classes(model.classify, limits, source)
    # A sum of products is no logit, and the folder's config.json is of another head.
    said = {"activation": model.classify.activation or "identity"}
    return classes(model.classify.model_copy(update=said), limits, None)


def _check_pairs(scores: Classes, tokenizer: bytes, *, apart: bool) -> None:
    """Raises `LoadError` for a model that does not give one score for a pair of texts. `apart`: the
    tokeniser need not make pairs."""
    count = len(scores.labels)
    if count != 1:
        raise LoadError(
            f"task rerank needs a model that gives one score for a pair; this one gives {count}: "
            "its task is classify"
        )
    if not tokenizer:
        raise LoadError("task rerank needs a tokenizer.json in the model's folder")
    if apart:
        return
    try:
        pairs.template(tokenizer)
    except ValueError as error:
        raise LoadError(f"task rerank: {error}") from error


def describe_stream(
    name: str, model: ModelSettings, digest: str, runtime: StreamRuntime, profile: Profile = ()
) -> tuple[ModelDescription, bytes]:
    """As `describe`, for a model that generates. It has no tensors; its lengths are prompts'."""
    limits = runtime.limits()
    tokenizer = tokenizer_bytes(_source_path(model))
    edges = [edge for edge in bucket_edges(model.lengths) if edge < limits.context_tokens]
    description = ModelDescription(
        **_in_common(name, model, digest, limits, tokenizer),
        version=version(model),
        inputs=(),
        outputs=(),
        lengths_input=None,
        lengths_axis=1,
        mask_input=None,
        optional_inputs=(),
        max_length=limits.context_tokens,
        truncate=False,
        bucket_edges=(*edges, limits.context_tokens),
        pads=False,
        scheduling=scheduling(model),
        generating=Generating(
            context_tokens=limits.context_tokens,
            cache_tokens=limits.cache_tokens,
            max_sequences=limits.max_sequences,
            block_tokens=limits.block_tokens,
            profile=profile,
            shared_prefixes=model.generation.share_prefixes,
            adapters=tuple(model.adapters),
            adapter_digests=tuple(adapter_digests(model, None).values()),
        ),
    )
    return description, tokenizer


def _in_common(
    name: str, model: ModelSettings, digest: str, limits: Limits | StreamLimits, tokenizer: bytes
) -> dict[str, Any]:
    """What every description says."""
    return {
        "name": name, "generation": 0, "task": model.task, "platform": limits.platform,
        "precision": limits.precision, "device": limits.device, "digest": digest,
        "tokenizer_digest": _hex(tokenizer), "recording": _recording(model),
        "aliases": model.aliases,
    }  # fmt: skip


def tokenizer_bytes(source: Path | None) -> bytes:
    """The bytes of `tokenizer.json` in the model's folder, or beside its file; b"" without one."""
    return _bytes_beside(source, "tokenizer.json")


def _entry(model: ModelSettings) -> str:
    found = python_class(model.source or "")
    return found.entry if found is not None else ""


def _source_path(model: ModelSettings) -> Path | None:
    return None if model.source is None else source_path(model.source)


def version(model: ModelSettings, cache_dir: Path | None = None) -> str:
    """The version in the settings, else a digest of everything that shapes the model's answers.
    With `cache_dir`, files that have not changed are not read again. Raises SourceError."""
    if model.version:
        return model.version
    path = _source_path(model)
    stored = beside_the_artifact(path) if model.task in ("classify", "rerank") else b""
    if model.task == "embed" and model.source is not None:
        stored = _bytes_beside(path, embedding_choices.FILE)
    if not lengths_are_said(model):
        stored += _bytes_beside(path, fingerprint.LENGTHS)
    if model.image is not None and model.image.size is None:
        stored += b"".join(_bytes_beside(path, name) for name in towers.PREPARED)
    artifact = ""
    if path is not None and model.runtime == "synthetic":
        # Its folder may hold a tokeniser only, and no model.
        artifact = hashlib.sha256(tokenizer_bytes(path)).hexdigest()
    elif path is not None:
        artifact = catalog.digest(model.runtime, path, cache_dir, model.task)
    # Labels and temperature shape answers just as weights do.
    return version_digest(_options_by_content(model, cache_dir), artifact + _hex(stored))


def _options_by_content(model: ModelSettings, cache_dir: Path | None) -> ModelSettings:
    """The settings with digests in place of the paths in options, because those differ from node
    to node."""
    rows = model.options.get("calibration")

    def content(named: str) -> str:
        if named == rows and not remote_source.is_remote(named) and not named.startswith(PREFIXES):
            return sha256_of(calibration.file_of(remote_source.path_of(named)))
        return content_of(named, cache_dir)

    options = model_paths.changed_options(model.options, content)
    adapters = adapter_digests(model, cache_dir)
    return model.model_copy(update={"options": options, "adapters": adapters})


def _hex(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest() if blob else ""


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


def _is_sparse(limits: Limits) -> bool:
    """Whether its outputs are the two of a sparse vector, [rows, width] both."""
    if sorted(spec.name for spec in limits.outputs) != [INDICES, VALUES]:
        return False
    at, of = sorted(limits.outputs, key=lambda spec: spec.name)
    whole = len(of.shape) == 2 and of.shape[1] > 0
    return whole and at.shape == of.shape and (at.datatype, of.datatype) == ("INT64", "FP32")


def _embed_output(limits: Limits) -> TensorSpec:
    if _is_sparse(limits):
        return next(spec for spec in limits.outputs if spec.name == VALUES)
    for spec in limits.outputs:
        by_token = spec.name == TOKEN_VECTORS and len(limits.outputs) == 1
        if len(spec.shape) == (3 if by_token else 2) and spec.shape[-1] > 0:
            return spec
    raise LoadError(
        f"task embed needs an output of shape [batch, width], or {TOKEN_VECTORS} [batch, length, "
        "width] alone; the model has none"
    )


def _recording(model: ModelSettings) -> Recording | None:
    record, generates = model.record, model.task == "generate"
    if record.folder is None:
        return None
    edges, most = bucket_edges(model.lengths), (record.max_rows, MAX_BYTES)
    return Recording(record.folder, edges, *most, record.max_requests, generates=generates)
