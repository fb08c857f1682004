"""What the server and its models say of themselves: metadata, readiness, index, OpenAI's list.

Bodies only, from `ModelDescription`s and, for models that are declared and not ready, a
`ModelState` with the reason. Which model exists and which is ready is the caller's knowledge.
`created` in OpenAI's model objects is when the model began to start, the same at every gateway. One
that generates has its context as `max_model_len`, by which vLLM's clients know it.

Source: Open Inference Protocol, metadata and health; Triton's model repository extension (its
index only: models come and go by declaration, not by load and unload); OpenAI API, "Models".
"""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import Datatype, Encoded
from runtimes.types import TensorSpec

MAX_LABELS = 1000
_SLO = {False: "slo_latency_ms", True: "slo_ttft_ms"}  # by whether the model generates
EXTENSIONS = (
    "binary_tensor_data", "model_configuration", "model_repository(index)", "statistics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelState:
    """A declared model: `version` "" while unknown; `reason` says why it is not ready."""

    name: str
    version: str
    ready: bool
    reason: str = ""


class IndexRequest(msgspec.Struct):
    """`ready`: only those that are."""

    ready: bool = False


class IndexEntry(msgspec.Struct):
    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class ServerMetadata(msgspec.Struct):
    name: str
    version: str
    extensions: tuple[str, ...]


class TensorMetadata(msgspec.Struct):
    """-1 stands for an axis of any length."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class ModelMetadata(msgspec.Struct):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Any]


class OpenAIModel(msgspec.Struct):
    """`created`: when it began to start, Unix time in seconds; `max_model_len`: tokens of one that
    generates, prompt and answer; `parent`: the model that an adapter belongs to; `root`: the
    model that has this name as an alias."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    parent: str | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET


class OpenAIModels(msgspec.Struct):
    object: Literal["list"]
    data: list[OpenAIModel]


class Live(msgspec.Struct):
    live: bool


class Ready(msgspec.Struct):
    """`waiting`: why each model that is waited for is not ready, by its name."""

    ready: bool
    waiting: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class ModelReady(msgspec.Struct):
    name: str
    ready: bool


_index_requests = msgspec.json.Decoder(IndexRequest)


@cache
def server_version() -> str:
    """The installed package's version, "unknown" when run from a checkout without installing."""
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def server_metadata() -> Encoded:
    """`GET /v2`."""
    return _json(ServerMetadata("headrace", server_version(), EXTENSIONS))


def model_metadata(d: ModelDescription) -> Encoded:
    """`GET /v2/models/{name}[/versions/{version}]`."""
    inputs, outputs = ([_tensor(spec) for spec in specs] for specs in (d.inputs, d.outputs))
    return _json(ModelMetadata(d.name, [d.version], d.platform, inputs, outputs, _parameters(d)))


def _tensor(spec: TensorSpec) -> TensorMetadata:
    return TensorMetadata(spec.name, spec.datatype, spec.shape)


def _parameters(d: ModelDescription) -> dict[str, Any]:
    """What a caller must know beyond shapes: limits, and which inputs may be left out."""
    optional = sorted({*d.optional_inputs, *([d.mask_input] if d.mask_input else [])})
    return {
        "task": d.task,
        "precision": d.precision,
        "device": d.device,
        "max_length": d.max_length,
        "truncate": d.truncate,
        "optional_inputs": ",".join(optional),
        **({"rows_depend": True} if d.rows_depend else {}),
        _SLO[d.generating is not None]: round(d.scheduling.slo_s * 1000, 3),
        **_of_images(d),
        **_of_classes(d),
    }


def _of_images(d: ModelDescription) -> dict[str, Any]:
    """What is done to an image that is not the tensor itself."""
    if d.image is None:
        return {}
    sizes = ",".join(f"{height}x{width}" for height, width in d.image.sizes)
    return {
        "image_input": d.image.input,
        "image_sizes": sizes,
        "image_resize": d.image.resize,
        "image_antialias": d.image.antialias,
        "image_colour": d.image.colour,
        "image_layout": d.image.layout,
        "image_max_pixels": d.image.max_pixels,
    }


def _of_classes(d: ModelDescription) -> dict[str, Any]:
    if d.classes is None:
        return {}
    return {
        "labels": ",".join(d.classes.labels[:MAX_LABELS]),
        "label_count": len(d.classes.labels),
        "activation": d.classes.activation,
        "temperature": d.classes.temperature,
        "threshold": d.classes.threshold,
    }


def ready_only(body: bytes) -> bool:
    """Does an index request ask for ready models only? An empty body asks for all."""
    if not body.strip():
        return False
    try:
        return _index_requests.decode(body).ready
    except json_body.DECODE_ERRORS as error:
        raise json_body.fault(error, body) from None


def repository_index(states: Iterable[ModelState], *, only_ready: bool = False) -> Encoded:
    """`POST /v2/repository/index`: every declared model, READY or UNAVAILABLE with its reason."""
    return _json([_index_entry(state) for state in states if state.ready or not only_ready])


def _index_entry(state: ModelState) -> IndexEntry:
    if state.ready:
        return IndexEntry(state.name, state.version, "READY", "")
    return IndexEntry(state.name, state.version, "UNAVAILABLE", state.reason)


def openai_model(d: ModelDescription, adapter: str = "", alias: str = "") -> Encoded:
    """`GET /v1/models/{id}`; `adapter`: of one of the model's; `alias`: by which it was asked."""
    if adapter:
        return _json(_adapter(d, adapter))
    return _json(_alias(d, alias) if alias else _openai(d))


def openai_models(
    descriptions: Iterable[ModelDescription],
    aliases: Mapping[str, str],
    may_use: Callable[[str, str], bool],
) -> Encoded:
    """`GET /v1/models`: each model under each of its names, and the adapters of it that the reader
    may use. `aliases`: other names, to the models' own."""
    names = defaultdict(list)
    for alias, name in aliases.items():
        names[name].append(alias)
    listed = [
        each
        for d in descriptions
        for each in (
            _openai(d),
            *(_alias(d, alias) for alias in names[d.name]),
            *_adapters(d, may_use),
        )
    ]
    return _json(OpenAIModels("list", listed))


def _alias(d: ModelDescription, alias: str) -> OpenAIModel:
    return msgspec.structs.replace(_openai(d), id=alias, root=d.name)


def _adapters(d: ModelDescription, may_use: Callable[[str, str], bool]) -> Iterator[OpenAIModel]:
    adapters = () if d.generating is None else d.generating.adapters
    return (_adapter(d, each) for each in adapters if may_use(d.name, each))


def _adapter(d: ModelDescription, adapter: str) -> OpenAIModel:
    return msgspec.structs.replace(_openai(d), id=f"{d.name}:{adapter}", parent=d.name)


def _openai(d: ModelDescription) -> OpenAIModel:
    longest = msgspec.UNSET if d.generating is None else d.generating.context_tokens
    return OpenAIModel(d.name, "model", d.generation // 1000, "headrace", longest)


def live(alive: bool = True) -> Encoded:
    """`GET /v2/health/live` and `/healthz`."""
    return _json(Live(alive))


def server_ready(ready: bool, waiting: Iterable[ModelState] = ()) -> Encoded:
    """`GET /v2/health/ready` and `/readyz`; names the models that are still waited for."""
    reasons = {state.name: state.reason for state in waiting if not state.ready}
    return _json(Ready(ready, reasons or msgspec.UNSET))


def model_ready(name: str, ready: bool) -> Encoded:
    """`GET /v2/models/{name}[/versions/{version}]/ready`."""
    return _json(ModelReady(name, ready))


def _json(value: Any) -> Encoded:
    return Encoded(msgspec.json.encode(value))
