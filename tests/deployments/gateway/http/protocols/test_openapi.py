from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError
from openapi_spec_validator import validate

from deployments.contract.description import Classes, Generating, ImageInput, ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import (
    anthropic_messages,
    classify,
    embeddings,
    metadata,
    open_inference,
    openai_generation,
    openai_responses,
    openapi,
    predict,
    tokenizing,
    triton,
)
from deployments.gateway.http.protocols.error_shapes import (
    anthropic_error,
    oip_error,
    openai_error,
)
from deployments.gateway.http.protocols.tensors import ClassifyCall, Encoded, InferCall, Tensor
from deployments.gateway.http.row_conversion import split
from deployments.gateway.telemetry.metrics import (
    BatchSizeStatistics,
    ModelStatistics,
)
from deployments.preprocess.images import opened
from deployments.settings.gateway import PRIORITIES
from runtimes.types import DTYPES, TensorSpec

Describe = Callable[..., ModelDescription]

PATHS = {
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/repository/index",
    "/v2/models/stats",
    "/v2/models/{model}/config",
    "/v2/models/{model}/stats",
    "/v2/models/{model}/versions/{version}/config",
    "/v2/models/{model}/versions/{version}/stats",
    "/v2/models/{model}",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready",
    "/v2/models/{model}/versions/{version}/infer",
    "/v1/models/{model}:predict",
    "/v1/models/{model}:classify",
    "/v1/embeddings",
    "/pooling",
    "/embed_sparse",
    "/v1/classify",
    "/classify",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/models/{model}",
    "/metrics",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/docs",
} | {
    f"/v2/{kind}sharedmemory/{path}"
    for kind in ("system", "cuda")
    for path in (
        "status", "unregister", "region/{region}/status", "region/{region}/register",
        "region/{region}/unregister",
    )
}  # fmt: skip


def half(description: Describe) -> ModelDescription:
    inputs = (TensorSpec("x", "FP16", (-1, 3)),)
    return description(name="half", inputs=inputs, lengths_input=None)


def classifiers(description: Describe) -> list[ModelDescription]:
    """One of images, one of texts."""
    classes = Classes("sum", ("a", "b"), 2, 1.0, 0.9, False)
    image = ImageInput(
        "image", "FP32", ((8, 8),), "bilinear", True, True, None, (0.0,), (1.0,), "RGB", "NCHW", 99
    )
    shown = description(
        name="shown", classes=classes, image=image, inputs=(half(description).inputs)
    )
    return [shown, description(name="told", classes=classes, tokenizer_digest="t")]


@pytest.fixture
def doc(description: Describe, encoder: Describe) -> Any:
    described = [description(), encoder(), half(description), *classifiers(description)]
    return json.loads(openapi.document(described, "http://127.0.0.1:8000"))


def walk(node: Any) -> Iterator[Any]:
    yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from walk(child)


def operations(doc: Any) -> Iterator[tuple[str, Any]]:
    for path, item in doc["paths"].items():
        for method in ("get", "post"):
            if method in item:
                yield path, {**item[method], "shared": item.get("parameters", [])}


def examples(doc: Any, path: str) -> dict[str, Any]:
    media = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {name: example["value"] for name, example in media["examples"].items()}


def conforms(doc: Any, schema: str, value: Any) -> None:
    root = {"$ref": f"#/components/schemas/{schema}", "components": doc["components"]}
    Draft202012Validator(root).validate(value)


def test_every_path_of_the_surface_is_described(doc: Any) -> None:
    assert doc["openapi"] == "3.1.0"
    assert set(doc["paths"]) == PATHS


@pytest.mark.slow
def test_the_document_is_valid(doc: Any) -> None:
    validate(doc)


def test_the_document_lists_the_priorities_that_the_gateway_knows() -> None:
    doc = json.loads(openapi.document([], "http://localhost", ("now", "later")))
    assert doc["components"]["parameters"]["x-priority"]["schema"]["enum"] == ["now", "later"]
    doc = json.loads(openapi.document([], "http://localhost"))
    assert doc["components"]["parameters"]["x-priority"]["schema"]["enum"] == list(PRIORITIES)


def test_what_the_server_takes_of_a_fixed_set_is_listed(doc: Any) -> None:
    parameters, schemas = doc["components"]["parameters"], doc["components"]["schemas"]
    assert parameters["x-idempotent"]["schema"]["enum"] == ["true", "false"]
    for tensor in ("InputTensor", "OutputTensor", "TensorMetadata"):
        assert schemas[tensor]["properties"]["datatype"]["enum"] == list(DTYPES)
    formats = schemas["EmbeddingsRequest"]["properties"]["encoding_format"]
    assert {"enum": ["base64", "float"]} in formats["anyOf"]


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("InferRequest", {"inputs": []}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [0], "datatype": "FP32"}]}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [1], "datatype": "COMPLEX"}]}),
        ("PredictRequest", {}),
        ("PredictRequest", {"instances": []}),
        ("PredictRequest", {"instances": [1], "inputs": [1]}),
        ("ClassifyRequest", {"instances": []}),
        ("ClassifyRequest", {"instances": [{"b64": "aa", "text": "a"}]}),
        ("ClassifyRequest", {"instances": ["a"], "top_k": 0}),
        ("EmbeddingsRequest", {"model": "m", "input": []}),
        ("EmbeddingsRequest", {"model": "m", "input": "a", "encoding_format": "xml"}),
        ("ChatRequest", {"model": "m"}),
        ("ChatRequest", {"model": "m", "messages": []}),
        ("CompletionRequest", {"model": "m"}),
        ("CompletionRequest", {"model": "m", "prompt": "a", "n": 129}),
    ],
)
def test_what_decoders_refuse_does_not_conform(doc: Any, schema: str, body: Any) -> None:
    with pytest.raises(ValidationError):
        conforms(doc, schema, body)


def test_every_reference_leads_somewhere(doc: Any) -> None:
    refs = [node["$ref"] for node in walk(doc) if isinstance(node, dict) and "$ref" in node]
    assert refs
    for ref in refs:
        node = doc
        for key in ref.removeprefix("#/").split("/"):
            node = node[key]


def test_every_schema_is_one(doc: Any) -> None:
    for schema in doc["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_operations_are_distinct_and_name_their_path_parameters(doc: Any) -> None:
    ids = [operation["operationId"] for _, operation in operations(doc)]
    assert len(set(ids)) == len(ids)
    for path, operation in operations(doc):
        named = {parameter["name"] for parameter in operation["shared"]}
        assert set(re.findall(r"{(\w+)}", path)) == named


def test_refusals_that_may_be_retried_say_when(doc: Any) -> None:
    for name, answer in doc["components"]["responses"].items():
        may = name.endswith(("429", "503", "529"))
        assert ("retry-after" in answer.get("headers", {})) is may


def test_infer_takes_all_forms_and_answers_its_time_split(doc: Any) -> None:
    infer = doc["paths"]["/v2/models/{model}/infer"]["post"]
    arrow = "application/vnd.apache.arrow.stream"
    forms = {"application/json", "application/octet-stream", arrow}
    assert set(infer["requestBody"]["content"]) == forms
    assert set(infer["responses"]["200"]["content"]) == forms
    assert "x-queue-wait-ms" in infer["responses"]["200"]["headers"]
    embeddings = doc["paths"]["/v1/embeddings"]["post"]
    assert arrow in embeddings["requestBody"]["content"]
    assert arrow in embeddings["responses"]["200"]["content"]


def test_infer_examples_are_taken_by_schema_decoder_and_model(
    doc: Any, description: Describe, encoder: Describe
) -> None:
    found = examples(doc, "/v2/models/{model}/infer")
    assert set(found) == {"device", "encoder", "told"}
    for d in (description(), encoder()):
        conforms(doc, "InferRequest", found[d.name])
        rows = split(open_inference.decode(json.dumps(found[d.name]).encode()), d)
        assert rows.lengths == (4,)


def test_predict_examples_are_taken_by_schema_decoder_and_model(
    doc: Any, description: Describe, encoder: Describe
) -> None:
    found = examples(doc, "/v1/models/{model}:predict")
    for d in (description(), encoder(), half(description)):
        conforms(doc, "PredictRequest", found[d.name])
        assert predict.rows_of(predict.decode(json.dumps(found[d.name]).encode()), d).count == 1


@pytest.mark.parametrize(("values", "shown"), [(64, True), (65, False), (3 * 10**9, False)])
def test_an_input_that_nobody_would_read_is_no_example(
    description: Describe, values: int, shown: bool
) -> None:
    inputs = (TensorSpec("image", "FP32", (-1, values)),)
    described = [description(inputs=inputs, lengths_input=None)]
    doc = json.loads(openapi.document(described, "http://127.0.0.1:8000"))
    for path in ("/v2/models/{model}/infer", "/v1/models/{model}:predict"):
        media = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert ("examples" in media) is shown


def test_embedding_examples_stand_for_models_that_embed(doc: Any) -> None:
    found = examples(doc, "/v1/embeddings")
    assert set(found) == {"encoder"}
    conforms(doc, "EmbeddingsRequest", found["encoder"])
    assert embeddings.decode(json.dumps(found["encoder"]).encode()).model == "encoder"


def test_classify_examples_are_taken_by_schema_and_decoder(doc: Any) -> None:
    found = examples(doc, "/v1/models/{model}:classify")
    assert set(found) == {"shown", "told"}
    for example in found.values():
        conforms(doc, "ClassifyRequest", example)
    shown, told = (
        classify.decode(json.dumps(found[name]).encode(), "", b"") for name in ("shown", "told")
    )
    assert opened(shown.images[0], "image", 64, grey=True).size == (8, 8)
    assert told.texts == ["a short text"]


def test_what_is_written_conforms_to_its_schema(
    doc: Any, encoder: Describe, description: Describe
) -> None:
    d, call = encoder(), embeddings.decode(b'{"model": "m", "input": "a"}')
    array = np.ones((1, 2), dtype=np.float32)
    states = [metadata.ModelState("a", "", False, "warming")]
    counted = ModelStatistics("1", by_size={2: BatchSizeStatistics()})
    named = classifiers(description)[0]
    unsure, sure = (np.array([0.0, logit]) for logit in (1.0, 9.0))
    written = {
        "InferResponse": open_inference.encode(
            InferCall([], id="1"), "m", "1", [Tensor("y", "FP32", array)]
        ),
        "EmbeddingsResponse": embeddings.encode(array, 1, "m", "embedding", base64=call.base64),
        "PoolingResponse": embeddings.encode(array, 1, "m", "pooling", base64=True),
        "ClassificationResponse": embeddings.encode(
            array, 1, "m", "classification", base64=False, labels=("a", "b")
        ),
        "ClassifyResponse": classify.encode(ClassifyCall(["a"], None), [unsure, sure], named),
        "Error": oip_error(BadRequest("m")),
        "OpenAIError": openai_error(BadRequest("m")),
        "AnthropicError": anthropic_error(BadRequest("m")),
        "ServerMetadata": metadata.server_metadata(),
        "ModelMetadata": metadata.model_metadata(d),
        "ModelConfig": triton.model_config(d),
        "StatisticsResponse": triton.statistics([counted.entry("m")]),
        "RegisteredRegion": Encoded(
            msgspec.json.encode(triton.RegisteredRegion("r", "headrace-default-r", 0, 8))
        ),
        "Index": metadata.repository_index(states),
        "OpenAIModel": metadata.openai_model(d),
        "OpenAIModels": metadata.openai_models([d], {}, lambda *_: True),
        "Live": metadata.live(),
        "Ready": metadata.server_ready(False, states),
        "ModelReady": metadata.model_ready("a", True),
    }
    for schema, encoded in written.items():
        conforms(doc, schema, json.loads(encoded.body))


def test_document_without_models_has_no_examples() -> None:
    empty = json.loads(openapi.document([], "http://localhost"))
    assert set(empty["paths"]) == PATHS
    assert not any(isinstance(node, dict) and "examples" in node for node in walk(empty))


@pytest.mark.parametrize(
    ("path", "schema", "decode"),
    [
        ("/v1/chat/completions", "ChatRequest", openai_generation.decode_chat),
        ("/v1/completions", "CompletionRequest", openai_generation.decode_completion),
        ("/v1/messages", "MessagesRequest", anthropic_messages.decode),
        ("/v1/messages/count_tokens", "CountTokensRequest", anthropic_messages.decode_count),
        ("/v1/responses", "ResponsesRequest", openai_responses.decode),
        ("/tokenize", "TokenizeRequest", tokenizing.decode),
        ("/detokenize", "DetokenizeRequest", tokenizing.decode_tokens),
    ],
)
def test_examples_of_generation_are_of_models_that_generate_and_decode(
    description: Describe, path: str, schema: str, decode: Callable[[bytes], Any]
) -> None:
    writes = description(name="chat", inputs=(), outputs=(), generating=Generating(100, 100, 4))
    doc = json.loads(openapi.document([description(), writes], "http://127.0.0.1:8000"))
    (found,) = examples(doc, path).values()
    conforms(doc, schema, found)
    assert decode(json.dumps(found).encode()).model == "chat"
    assert list(examples(doc, "/v2/models/{model}/infer")) == ["device"]
    answers = doc["paths"][path]["post"]["responses"]["200"]["content"]
    streams = {"text/event-stream"} if path in openapi._GENERATES else set()
    assert set(answers) == {"application/json"} | streams
