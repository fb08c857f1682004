"""JSON Schemas (2020-12) of every body that goes in or out, and an example request per model.

msgspec generates the schemas from the structs that decode requests and encode answers. Answers that
hold tensors are written by orjson; their structs stand here, and tests hold what is written against
them. What a decoder checks besides types is added by name. An example has one row, four long where
the length is free; a model whose needed inputs have no JSON form (FP16, BF16) or more values than
anybody reads has none.
Source: Open Inference Protocol; TensorFlow Serving's predict; OpenAI's API reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols.anthropic_messages import (
    CountTokensRequest,
    MessagesRequest,
)
from deployments.gateway.http.protocols.classify import ClassifyRequest
from deployments.gateway.http.protocols.embeddings import (
    ClassificationRequest,
    EmbeddingsRequest,
    PoolingRequest,
    SparseEntry,
    SparseRequest,
)
from deployments.gateway.http.protocols.error_shapes import AnthropicError, Error, OpenAIError
from deployments.gateway.http.protocols.metadata import (
    IndexEntry,
    IndexRequest,
    Live,
    ModelMetadata,
    ModelReady,
    OpenAIModel,
    OpenAIModels,
    Ready,
    ServerMetadata,
)
from deployments.gateway.http.protocols.open_inference import InferRequest
from deployments.gateway.http.protocols.openai_generation import ChatRequest, CompletionRequest
from deployments.gateway.http.protocols.openai_responses import ResponsesRequest
from deployments.gateway.http.protocols.predict import PredictRequest
from deployments.gateway.http.protocols.rerank import (
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from deployments.gateway.http.protocols.tensors import HALVES, Datatype, documented
from deployments.gateway.http.protocols.tokenizing import DetokenizeRequest, TokenizeRequest
from deployments.gateway.http.protocols.triton import (
    Done,
    ModelConfig,
    RegionRequest,
    RegisteredRegion,
    StatisticsResponse,
)
from runtimes.types import DTYPES, TensorSpec

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
_File = Annotated[str, documented(format="binary")]


class OutputTensor(msgspec.Struct):
    """`data`, or bytes after the JSON where `parameters` has their `binary_data_size`."""

    name: str
    shape: list[int]
    datatype: Datatype
    parameters: dict[str, Any] | UnsetType = UNSET
    data: Annotated[list[Any], documented("Flat in row-major order.")] | UnsetType = UNSET


class InferResponse(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET


class PredictResponse(msgspec.Struct):
    """`predictions` for rows, `outputs` for columns."""

    predictions: list[Any] | UnsetType = UNSET
    outputs: Any = UNSET


class ClassifyForm(msgspec.Struct):
    """Every part with a file name is an image."""

    image: Annotated[list[_File], documented(minItems=1)]
    top_k: Annotated[int, documented(minimum=1)] | UnsetType = UNSET


class Label(msgspec.Struct):
    label: str
    score: float


class Prediction(msgspec.Struct):
    """`best_guess`: where it abstains, what it would have said."""

    labels: list[Label]
    abstained: bool
    best_guess: Label | UnsetType = UNSET


class ClassifyResponse(msgspec.Struct):
    model: str
    version: str
    predictions: list[Prediction]


class Embedding(msgspec.Struct):
    """`embedding`: numbers, or base64 of them as little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Pooled(msgspec.Struct):
    """`data`: a vector, the vectors of the text's tokens, or the scores of classes; or base64 of
    them as little-endian float32."""

    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str


class PoolingResponse(msgspec.Struct):
    object: Literal["list"]
    data: list[Pooled]
    model: str
    usage: Usage


class Classification(msgspec.Struct):
    """`label`: of the highest of `probs`."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationResponse(msgspec.Struct):
    object: Literal["list"]
    data: list[Classification]
    model: str
    usage: Usage


class ChatResponse(msgspec.Struct):
    """The engine's own."""

    choices: list[dict[str, Any]]
    id: str | UnsetType = UNSET
    object: str | UnsetType = UNSET
    created: int | UnsetType = UNSET
    model: str | UnsetType = UNSET
    usage: dict[str, Any] | UnsetType | None = UNSET


class CompletionResponse(ChatResponse):
    """The engine's own."""


class MessagesResponse(msgspec.Struct):
    """The engine's own."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    model: str
    usage: dict[str, Any]
    stop_reason: str | UnsetType | None = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class ResponsesResponse(msgspec.Struct):
    """The engine's own."""

    id: str
    object: Literal["response"]
    status: str
    model: str
    output: list[dict[str, Any]]
    created_at: int | UnsetType = UNSET
    store: Literal[False] | UnsetType = UNSET
    usage: dict[str, Any] | UnsetType | None = UNSET


class CountTokensResponse(msgspec.Struct):
    input_tokens: int
    context_management: dict[str, Any] | UnsetType | None = UNSET


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType | None = UNSET


class DetokenizeResponse(msgspec.Struct):
    prompt: str


_BODIES: Sequence[type[msgspec.Struct]] = (
    *(InferRequest, InferResponse, Error, ServerMetadata, ModelMetadata),
    *(IndexRequest, IndexEntry, Live, Ready, ModelReady, ModelConfig, StatisticsResponse),
    *(PredictRequest, PredictResponse, ClassifyRequest, ClassifyForm, ClassifyResponse),
    *(EmbeddingsRequest, EmbeddingsResponse, OpenAIModel, OpenAIModels, OpenAIError),
    *(PoolingRequest, PoolingResponse, ClassificationRequest, ClassificationResponse),
    *(RerankRequest, RerankResponse, ScoreRequest, ScoreResponse, SparseRequest, SparseEntry),
    *(ChatRequest, ChatResponse, CompletionRequest, CompletionResponse),
    *(MessagesRequest, MessagesResponse, CountTokensRequest, CountTokensResponse, AnthropicError),
    *(ResponsesRequest, ResponsesResponse),
    *(TokenizeRequest, TokenizeResponse, DetokenizeRequest, DetokenizeResponse),
    *(RegionRequest, RegisteredRegion, Done),
)
_STREAM_OPTIONS = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}
_UNREAD: dict[str, Schema] = {  # properties that are ignored, or left to the engine
    "PredictRequest": {"signature_name": STRING},
    "EmbeddingsRequest": {"user": STRING},
    "PoolingRequest": {"user": STRING},
    "ContentPart": {"type": STRING},
    "ChatRequest": {"stream_options": _STREAM_OPTIONS},
    "CompletionRequest": {"stream_options": _STREAM_OPTIONS},
}
_CHECKED: dict[str, Schema] = {  # after decoding, with an error that names what is missing
    "PredictRequest": {"oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}]},
    "PredictResponse": {"oneOf": [{"required": ["predictions"]}, {"required": ["outputs"]}]},
    "GivenDocument": {"oneOf": [{"required": ["text"]}, {"required": ["url"]}]},
    "Instance": {"oneOf": [{"required": [name]} for name in ("b64", "text", "url")]},
    "ContentPart": {"required": ["type"]},
    "ChatRequest": {"required": ["model", "messages"]},
    "CompletionRequest": {"required": ["model", "prompt"]},
    "MessagesRequest": {"required": ["model", "messages", "max_tokens"]},
    "CountTokensRequest": {"required": ["model", "messages"]},
    "ResponsesRequest": {"required": ["model", "input"]},
    "TokenizeRequest": {"oneOf": [{"required": [name]} for name in ("prompt", "messages")]},
    "DetokenizeRequest": {"required": ["model", "tokens"]},
}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def schemas() -> dict[str, Schema]:
    """`components.schemas`; one dictionary for all callers."""
    _, found = msgspec.json.schema_components(_BODIES, ref_template=ref("{name}")["$ref"])
    for name, properties in _UNREAD.items():
        found[name]["properties"] |= properties
    for name, more in _CHECKED.items():
        found[name] |= more
    found["Regions"] = {"type": "array", "items": ref("RegisteredRegion")}
    found["Index"] = {"type": "array", "items": ref("IndexEntry")}
    vector = {"type": "array", "items": ref("SparseEntry")}
    found["SparseResponse"] = {"type": "array", "items": vector}
    for schema in found.values():
        for field in schema.get("properties", {}).values():
            if field.get("default", ...) in (None, []):
                del field["default"]  # left out: no news beside its type
    return found


MAX_VALUES = 64
_ROW_LENGTH = 4
_VALUES: dict[str, Any] = {"b": True, "f": 0.5, "V": 0.5, "O": "text"}

# A grey PNG of 8 x 8, for a request that can be sent as it stands.
_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR4nGNsYIAAJgaKGAAmCACQXTCl"
    "HgAAAABJRU5ErkJggg=="
)


def infer(d: ModelDescription) -> dict[str, Any] | None:
    """An Open Inference request, None where the model's inputs have no JSON form or are large, or
    it has none."""
    needed = _needed(d)
    if not needed or any(spec.datatype in HALVES for spec in needed) or _are_large(needed, d):
        return None
    return {"inputs": [_tensor(spec, d) for spec in needed]}


def predict(d: ModelDescription) -> dict[str, Any] | None:
    """A `:predict` request in row format, None where the model's inputs are large, or it has
    none."""
    needed = _needed(d)
    if not needed or _are_large(needed, d):
        return None
    rows = {spec.name: _values(spec, d)[0] for spec in needed}
    return {"instances": [rows[needed[0].name] if len(needed) == 1 else rows]}


def classify(d: ModelDescription) -> dict[str, Any] | None:
    """A `:classify` request, None for a model that does not classify, or whose texts have no
    tokeniser here."""
    if d.classes is None or d.task == "rerank":
        return None
    if d.image is not None:
        return {"instances": [{"b64": _PNG}], "top_k": 3}
    return {"instances": ["a short text"]} if d.tokenizer_digest else None


def embeddings(d: ModelDescription) -> dict[str, Any] | None:
    """An embeddings request, None for a model that gives no embeddings."""
    return _of_two_texts(d) if d.kind == "embed" else None


def _of_two_texts(d: ModelDescription) -> dict[str, Any]:
    """Of a model that takes images, of one image."""
    given = _two_texts(d) if d.image is None else [{"image": _PNG}]
    return {"model": d.name, "input": given}


def _two_texts(d: ModelDescription) -> list[Any]:
    return ["a short text", "and another"] if d.tokenizer_digest else [[1, 2, 3], [4]]


def classes_of_texts(d: ModelDescription) -> dict[str, Any] | None:
    """A classification of texts, None for a model that does not classify them."""
    if classify(d) is None or d.image is not None:
        return None
    return {"model": d.name, "input": ["a short text"]}


def pooling(d: ModelDescription) -> dict[str, Any] | None:
    """A pooling request, None for a model that neither embeds nor classifies texts."""
    return _of_two_texts(d) if d.kind in ("embed", "tokens") else classes_of_texts(d)


def sparse(d: ModelDescription) -> dict[str, Any] | None:
    """A request for sparse vectors, None for a model that makes none."""
    if d.kind != "sparse":
        return None
    return {"model": d.name, "inputs": _two_texts(d)}


def rerank(d: ModelDescription) -> dict[str, Any] | None:
    """A reranking, None for a model that ranks no pairs."""
    if d.task != "rerank":
        return None
    documents = ["Bread is made of flour, water and yeast.", "Ulm lies on the Danube."]
    return {"model": d.name, "query": "How is bread made?", "documents": documents, "top_n": 1}


def score(d: ModelDescription) -> dict[str, Any] | None:
    """A scoring, None for a model that ranks no pairs."""
    if d.task != "rerank":
        return None
    return {"model": d.name, "text_1": "How is bread made?", "text_2": ["Of flour.", "In Ulm."]}


def completion(d: ModelDescription) -> dict[str, Any] | None:
    """A completion, None for a model that does not generate."""
    if d.generating is None:
        return None
    return {"model": d.name, "prompt": "Once upon a time", "max_tokens": 16}


def chat(d: ModelDescription) -> dict[str, Any] | None:
    """A chat whose answer streams, None for a model that does not generate."""
    if d.generating is None:
        return None
    messages = [{"role": "user", "content": "Say hello."}]
    return {"model": d.name, "messages": messages, "max_tokens": 16, "stream": True}


def message(d: ModelDescription) -> dict[str, Any] | None:
    """As `chat`, in Anthropic's form."""
    return chat(d)


def count_tokens(d: ModelDescription) -> dict[str, Any] | None:
    """Of a chat, None for a model that does not generate."""
    asked = chat(d)
    return asked and {name: asked[name] for name in ("model", "messages")}


def response(d: ModelDescription) -> dict[str, Any] | None:
    """As `chat`, as a response."""
    if d.generating is None:
        return None
    return {"model": d.name, "input": "Say hello.", "max_output_tokens": 16, "stream": True}


def tokenize(d: ModelDescription) -> dict[str, Any] | None:
    """A text's tokens, None for a model that does not generate."""
    return None if d.generating is None else {"model": d.name, "prompt": "Once upon a time"}


def detokenize(d: ModelDescription) -> dict[str, Any] | None:
    """Tokens, None for a model that does not generate."""
    return None if d.generating is None else {"model": d.name, "tokens": [1, 2, 3]}


def _needed(d: ModelDescription) -> list[TensorSpec]:
    spare = {*d.optional_inputs, d.mask_input} - {d.lengths_input}
    return [spec for spec in d.inputs if spec.name not in spare]


def _are_large(specs: list[TensorSpec], d: ModelDescription) -> bool:
    return sum(math.prod(_shape(spec, d)) for spec in specs) > MAX_VALUES


def _shape(spec: TensorSpec, d: ModelDescription) -> list[int]:
    length = min(_ROW_LENGTH, d.max_length)
    free = [length if axis == d.lengths_axis else 1 for axis in range(len(spec.shape))]
    sizes = zip(spec.shape[1:], free[1:], strict=True)
    return [1, *(default if size == -1 else size for size, default in sizes)]


def _values(spec: TensorSpec, d: ModelDescription) -> list[Any]:
    shape = _shape(spec, d)
    kind = DTYPES[spec.datatype].kind
    if kind in "iu":
        counted: list[Any] = np.arange(1, math.prod(shape) + 1).reshape(shape).tolist()
        return counted
    same: list[Any] = np.full(shape, _VALUES[kind], dtype=object).tolist()
    return same


def _tensor(spec: TensorSpec, d: ModelDescription) -> dict[str, Any]:
    return {
        "name": spec.name,
        "shape": _shape(spec, d),
        "datatype": spec.datatype,
        "data": _values(spec, d),
    }
