"""The OpenAPI 3.1 document of everything the gateway answers, with an example per ready model.

Written anew for the models at hand; bodies' schemas stand in `openapi_schemas`. It describes; it
routes and validates nothing.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols import error_shapes, openapi_schemas
from deployments.gateway.http.protocols.classify import IMAGE_MEDIA
from deployments.gateway.http.protocols.metadata import server_version
from deployments.gateway.http.protocols.openapi_schemas import STRING, ref, schemas
from deployments.settings.gateway import PRIORITIES

Node = dict[str, Any]
Descriptions = Sequence[ModelDescription]

_BINARY: Node = {"schema": {"type": "string", "format": "binary"}}
_ARROW = "application/vnd.apache.arrow.stream"
_COUNT: Node = {"type": "integer", "minimum": 1}
_MILLISECONDS: Node = {"type": "number", "minimum": 0}
_NAME: Node = {"type": "string", "minLength": 1, "maxLength": 128}
_REQUEST_HEADERS: dict[str, tuple[str, Node]] = {
    "x-tenant": ("The tenant, where no tenant has keys.", STRING),
    "x-priority": ("The request's priority, no higher than its tenant's.", STRING),
    "x-timeout-ms": (
        "The request's time limit in milliseconds; also its deadline. More than the model's "
        "`slo.max_timeout_ms` counts as that.",
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9},
    ),
    "x-session-id": ("Prefers the replica that served this session last.", _NAME),
    "x-idempotent": (
        "`false`: runs once and by itself: no retry, no hedge, no kept answer.",
        {"type": "string", "enum": ["true", "false"]},
    ),
    "cache-control": (
        "`no-cache`: runs by itself. `no-store`: and its answer is not kept.",
        STRING,
    ),
    "x-request-id": ("Comes back with the answer; made up when missing.", STRING),
    "traceparent": ("W3C trace context.", STRING),
}
_ANSWER_HEADERS: dict[str, tuple[str, Node]] = {
    "x-request-id": ("The request's id.", STRING),
    "x-queue-wait-ms": ("Milliseconds from arrival to the device.", _MILLISECONDS),
    "x-service-time-ms": ("Milliseconds on the device.", _MILLISECONDS),
    "x-batch-size": ("Rows in the batch that answered.", _COUNT),
    "x-bucket": ("Upper edge of the batch's length bucket, tokens.", _COUNT),
    "x-cache": (
        "Whether rows were answered before: all, some or none.",
        {"type": "string", "enum": ["hit", "partial", "miss"]},
    ),
    "x-coalesced": (
        "`true`: answered by an identical request's run.",
        {"type": "string", "enum": ["true"]},
    ),
    "x-served-by": ("The fallback model that answered instead of the requested one.", STRING),
}
_GENERATES = {  # by path: operation, summary, schema, example
    "/v1/chat/completions": (
        *("chatCompletions", "Answer a conversation (OpenAI's form).", "Chat"),
        openapi_schemas.chat,
    ),
    "/v1/completions": (
        *("completions", "Go on with a text (OpenAI's form).", "Completion"),
        openapi_schemas.completion,
    ),
    "/v1/responses": (
        *("responses", "Answer a conversation (OpenAI's newer form).", "Responses"),
        openapi_schemas.response,
    ),
    "/v1/messages": (
        *("messages", "Answer a conversation (Anthropic's form).", "Messages"),
        openapi_schemas.message,
    ),
}
_COUNTS = {  # as `_GENERATES`
    "/v1/messages/count_tokens": (
        *("countTokens", "Count a conversation's tokens (Anthropic's form).", "CountTokens"),
        openapi_schemas.count_tokens,
    ),
    "/tokenize": (
        *("tokenize", "Tokens of a text or a conversation (vLLM's form).", "Tokenize"),
        openapi_schemas.tokenize,
    ),
    "/detokenize": (
        *("detokenize", "The text of tokens (vLLM's form).", "Detokenize"),
        openapi_schemas.detokenize,
    ),
}
_RERANK = "Order documents by how well they answer a query"
_CLASSES = "Score the classes of texts or token arrays (vLLM's form)."
_OF_TEXTS = {  # as `_GENERATES`
    "/v1/embeddings": (
        *("embeddings", "Embed texts or token arrays (OpenAI's form).", "Embeddings"),
        openapi_schemas.embeddings,
    ),
    "/pooling": (
        *("pooling", "Embed texts, or score their classes (vLLM's form).", "Pooling"),
        openapi_schemas.pooling,
    ),
    "/embed_sparse": (
        *("embedSparse", "Embed texts sparsely (Text Embeddings Inference's form).", "Sparse"),
        openapi_schemas.sparse,
    ),
    "/v1/classify": ("classifyTexts", _CLASSES, "Classification", openapi_schemas.classes_of_texts),
    "/classify": ("classifyPlain", _CLASSES, "Classification", openapi_schemas.classes_of_texts),
    "/v1/rerank": ("rerank", f"{_RERANK} (Jina's form).", "Rerank", openapi_schemas.rerank),
    "/v2/rerank": ("rerankV2", f"{_RERANK} (Cohere's form).", "Rerank", openapi_schemas.rerank),
    "/rerank": (
        *("rerankPlain", f"{_RERANK} (also Text Embeddings Inference's form).", "Rerank"),
        openapi_schemas.rerank,
    ),
    "/v1/score": (
        "score",
        "Score texts against texts (vLLM's form).",
        "Score",
        openapi_schemas.score,
    ),
}
_EVENTS = (
    "Where `stream` is true: an event a step of the engine, `data: [DONE]` last. An answer that "
    "cannot go on ends with an event that holds an OpenAIError, and without `[DONE]`."
)
_NAMED_EVENTS = (
    "Where `stream` is true: events with names, as the API's own reference has them. An answer "
    "that cannot go on ends with an event `error`."
)
_RETRY_AFTER = {"description": "Whole seconds.", "schema": _COUNT}
_REFUSALS = {
    400: "The request is malformed or does not fit the model.",
    401: "The tenant's key is missing or unknown.",
    403: "The tenant may not use this model.",
    404: "There is no such model, version or path.",
    408: "The body did not arrive in time.",
    413: "The body is over the limit.",
    415: "The body's encoding is not taken.",
    422: "This input has ended replicas of the model; it must not be sent again.",
    429: "The tenant is over its own limits.",
    500: "The model's answer holds NaN or infinity.",
    503: "Overloaded, draining, or the model is not ready.",
    504: "The request's time limit passed before it was answered.",
    529: "Overloaded or draining.",
}
_INFERENCE = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
_OF_MESSAGES = (*_INFERENCE, 529)
_MAY_RETRY = (429, 503, 529)


def document(
    descriptions: Descriptions, server_url: str, priorities: Sequence[str] = PRIORITIES
) -> bytes:
    """The document for these models. `server_url`: where clients reach the gateway, which may be
    relative to where they have the document from (OpenAPI 3.1 §4.8.5); `priorities`:
    the gateway's, the most urgent first."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Headrace",
                "version": server_version(),
                "description": "Inference for ragged requests: many models, one even flow.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": server_url}],
            "security": [{}, {"key": []}, {"x-api-key": []}],
            "tags": [{"name": name} for name in ("inference", "models", "shared memory", "server")],
            "paths": {
                **_inference(descriptions),
                **_models(descriptions),
                **_server(),
                **_shared_memory("system"),
                **_shared_memory("cuda"),
            },
            "components": _components(priorities),
        }
    )


def _components(priorities: Sequence[str]) -> Node:
    taken = {name: _header(name, *header) for name, header in _REQUEST_HEADERS.items()}
    taken["x-priority"]["schema"] = {**STRING, "enum": list(priorities)}
    given = {
        name: {"description": text, "schema": schema}
        for name, (text, schema) in _ANSWER_HEADERS.items()
    }
    return {
        "schemas": schemas(),
        "parameters": taken,
        "headers": {**given, "retry-after": _RETRY_AFTER},
        "responses": {
            **{f"oip{status}": _refusal(status, "Error") for status in _INFERENCE},
            **{f"openai{status}": _refusal(status, "OpenAIError") for status in _INFERENCE},
            **{f"anthropic{s}": _refusal(s, "AnthropicError") for s in _OF_MESSAGES},
        },
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
    }


def _header(name: str, text: str, schema: Node) -> Node:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _refusal(status: int, schema: str) -> Node:
    refusal: Node = {
        "description": _REFUSALS[status],
        "content": {"application/json": {"schema": ref(schema)}},
    }
    if status in _MAY_RETRY:
        refusal["headers"] = {"retry-after": {"$ref": "#/components/headers/retry-after"}}
    return refusal


def _refusals(shape: str, statuses: Sequence[int]) -> Node:
    return {str(s): {"$ref": f"#/components/responses/{shape}{s}"} for s in statuses}


def _answer(schema: str, *, timed: bool = False) -> Node:
    answer: Node = {
        "description": "The answer.",
        "content": {"application/json": {"schema": ref(schema)}},
    }
    if timed:
        answer["headers"] = {n: {"$ref": f"#/components/headers/{n}"} for n in _ANSWER_HEADERS}
    return answer


def _examples(descriptions: Descriptions, make: Callable[[ModelDescription], Node | None]) -> Node:
    examples = {d.name: make(d) for d in descriptions}
    return {name: {"value": value} for name, value in examples.items() if value is not None}


def _json_body(schema: str, examples: Node) -> Node:
    media: Node = {"schema": ref(schema)}
    if examples:
        media["examples"] = examples
    return {"required": True, "content": {"application/json": media}}


def _path_parameter(name: str, known: Sequence[str]) -> Node:
    schema = {**STRING, "examples": list(known)} if known else STRING
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _model_path(descriptions: Descriptions, *, version: bool = False) -> list[Node]:
    parameters = [_path_parameter("model", [d.name for d in descriptions])]
    if version:
        parameters.append(_path_parameter("version", [d.version for d in descriptions]))
    return parameters


def _inference_operation(operation: str, summary: str, body: Node, answer: Node) -> Node:
    """An operation in the Open Inference error shape; embeddings swap theirs in."""
    return {
        "operationId": operation,
        "tags": ["inference"],
        "summary": summary,
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _REQUEST_HEADERS],
        "requestBody": body,
        "responses": {"200": answer, **_refusals("oip", _INFERENCE)},
    }


def _inference(descriptions: Descriptions) -> Node:
    plain, versioned = _model_path(descriptions), _model_path(descriptions, version=True)
    predict = _inference_operation(
        "predict",
        "Infer from rows or columns without types (TensorFlow Serving's form).",
        _json_body("PredictRequest", _examples(descriptions, openapi_schemas.predict)),
        _answer("PredictResponse", timed=True),
    )
    return {
        "/v2/models/{model}/infer": {"parameters": plain, "post": _infer(descriptions, "infer")},
        "/v2/models/{model}/versions/{version}/infer": {
            "parameters": versioned,
            "post": _infer(descriptions, "inferVersion"),
        },
        "/v1/models/{model}:predict": {"parameters": plain, "post": predict},
        "/v1/models/{model}:classify": {"parameters": plain, "post": _classify(descriptions)},
        **{path: {"post": _of_texts(path, descriptions)} for path in _OF_TEXTS},
        **{path: {"post": _generates(path, descriptions)} for path in (*_GENERATES, *_COUNTS)},
    }


def _infer(descriptions: Descriptions, operation: str) -> Node:
    """All forms of body: JSON, JSON followed by binary tensors, and Arrow streams."""
    body = _json_body("InferRequest", _examples(descriptions, openapi_schemas.infer))
    answer = _answer("InferResponse", timed=True)
    for media in ("application/octet-stream", _ARROW):
        body["content"][media] = answer["content"][media] = _BINARY
    spec = _inference_operation(
        operation, "Infer from tensors (Open Inference Protocol).", body, answer
    )
    length = _header(
        "inference-header-content-length",
        "Bytes of JSON before the binary tensors; needed by application/octet-stream only.",
        {"type": "integer", "minimum": 0},
    )
    spec["parameters"].append(length)
    given = {key: length[key] for key in ("description", "schema")}
    answer["headers"][length["name"]] = given
    return spec


def _classify(descriptions: Descriptions) -> Node:
    """JSON, one image as the body, or files of a form."""
    examples = _examples(descriptions, openapi_schemas.classify)
    body = _json_body("ClassifyRequest", examples)
    body["content"] |= dict.fromkeys(IMAGE_MEDIA, _BINARY)
    body["content"]["multipart/form-data"] = {"schema": ref("ClassifyForm")}
    spec = _inference_operation(
        "classify",
        "Labels with scores of images or texts.",
        body,
        _answer("ClassifyResponse", timed=True),
    )
    top_k: Node = {
        "name": "top_k",
        "in": "query",
        "description": "Labels wanted, where the body is no JSON; unset, the model's own number.",
        "schema": _COUNT,
    }
    spec["parameters"].append(top_k)
    return spec


def _of_texts(path: str, descriptions: Descriptions) -> Node:
    name, summary, schema, example = _OF_TEXTS[path]
    operation = _inference_operation(
        name,
        summary,
        _json_body(f"{schema}Request", _examples(descriptions, example)),
        _answer(f"{schema}Response", timed=True),
    )
    if path == "/v1/embeddings":
        answer = operation["responses"]["200"]
        for content in (operation["requestBody"]["content"], answer["content"]):
            content[_ARROW] = _BINARY
    refusals = _refusals("openai", _INFERENCE)
    operation["responses"] = {"200": operation["responses"]["200"], **refusals}
    return operation


def _generates(path: str, descriptions: Descriptions) -> Node:
    name, summary, schema, example = (_GENERATES | _COUNTS)[path]
    answer = _answer(f"{schema}Response", timed=True)
    if path in _GENERATES:
        events = _EVENTS if path.endswith("completions") else _NAMED_EVENTS
        answer["content"]["text/event-stream"] = {"schema": {**STRING, "description": events}}
    body = _json_body(f"{schema}Request", _examples(descriptions, example))
    operation = _inference_operation(name, summary, body, answer)
    anthropics = error_shapes.is_anthropics(path)
    refusals = ("anthropic", _OF_MESSAGES) if anthropics else ("openai", _INFERENCE)
    operation["responses"] = {"200": answer, **_refusals(*refusals)}
    return operation


def _get(operation: str, tag: str, summary: str, schema: str, refusals: Node) -> Node:
    return {
        "operationId": operation,
        "tags": [tag],
        "summary": summary,
        "responses": {"200": _answer(schema), **refusals},
    }


def _models(descriptions: Descriptions) -> Node:
    plain, versioned = _model_path(descriptions), _model_path(descriptions, version=True)
    missing, unready = _refusals("openai", (404, 503)), _refusals("oip", (404, 503))
    page, ready = "The model's tensors and limits.", "Is the model ready?"
    config, counts = "The model's configuration, in Triton's form.", "What the gateway counted."
    index = _get("repositoryIndex", "models", "Every declared model and its state.", "Index", {})
    index["requestBody"] = {**_json_body("IndexRequest", {}), "required": False}
    index["responses"] |= _refusals("oip", (400,))
    return {
        "/v2/models/{model}": {
            "parameters": plain,
            "get": _get("model", "models", page, "ModelMetadata", unready),
        },
        "/v2/models/{model}/versions/{version}": {
            "parameters": versioned,
            "get": _get("modelVersion", "models", page, "ModelMetadata", unready),
        },
        "/v2/models/{model}/ready": {
            "parameters": plain,
            "get": _get("modelReady", "models", ready, "ModelReady", unready),
        },
        "/v2/models/{model}/versions/{version}/ready": {
            "parameters": versioned,
            "get": _get("modelVersionReady", "models", ready, "ModelReady", unready),
        },
        "/v2/models/{model}/config": {
            "parameters": plain,
            "get": _get("modelConfig", "models", config, "ModelConfig", unready),
        },
        "/v2/models/{model}/versions/{version}/config": {
            "parameters": versioned,
            "get": _get("modelVersionConfig", "models", config, "ModelConfig", unready),
        },
        "/v2/models/{model}/stats": {
            "parameters": plain,
            "get": _get("modelStatistics", "models", counts, "StatisticsResponse", unready),
        },
        "/v2/models/{model}/versions/{version}/stats": {
            "parameters": versioned,
            "get": _get("modelVersionStatistics", "models", counts, "StatisticsResponse", unready),
        },
        "/v2/models/stats": {
            "get": _get("statistics", "models", counts, "StatisticsResponse", {}),
        },
        "/v2/repository/index": {"post": index},
        "/v1/models": {
            "get": _get("openaiModels", "models", "Ready models.", "OpenAIModels", {}),
        },
        "/v1/models/{model}": {
            "parameters": plain,
            "get": _get("openaiModel", "models", "One model.", "OpenAIModel", missing),
        },
    }


def _shared_memory(kind: str) -> Node:
    """Triton's, where `gateway.shared_memory` is on; of CUDA there is never a region."""
    refusals = _refusals("oip", (400, 401, 403, 404, 408, 413, 429, 503))
    begin, region = f"/v2/{kind}sharedmemory", [_path_parameter("region", ())]

    def page(operation: str, summary: str, answer: str = "Done") -> Node:
        return _get(f"{kind}{operation}", "shared memory", summary, answer, refusals)

    add = page("Register", "Register a region, which tensors may then name.")
    add["requestBody"] = _json_body("RegionRequest", {})
    one, forget = page("Region", "One region.", "Regions"), page("Unregister", "Forget a region.")
    return {
        f"{begin}/status": {"get": page("Regions", "The tenant's regions.", "Regions")},
        f"{begin}/unregister": {"post": page("UnregisterAll", "Forget all regions.")},
        f"{begin}/region/{{region}}/status": {"parameters": region, "get": one},
        f"{begin}/region/{{region}}/register": {"parameters": region, "post": add},
        f"{begin}/region/{{region}}/unregister": {"parameters": region, "post": forget},
    }


def _server() -> Node:
    unready = {"503": {**_answer("Ready"), "description": "Not yet, and what it waits for."}}
    live, ready = "Is the gateway alive?", "Is every model declared at the start ready?"
    return {
        "/v2": {"get": _get("server", "server", "Name and extensions.", "ServerMetadata", {})},
        "/v2/health/live": {"get": _get("live", "server", live, "Live", {})},
        "/v2/health/ready": {"get": _get("ready", "server", ready, "Ready", unready)},
        "/healthz": {"get": _get("healthz", "server", live, "Live", {})},
        "/readyz": {"get": _get("readyz", "server", ready, "Ready", unready)},
        "/metrics": {"get": _text("metrics", "Metrics for Prometheus.", "text/plain")},
        "/openapi.json": {"get": _text("openapi", "This document.", "application/json")},
        "/docs": {"get": _text("docs", "This document, to read.", "text/html")},
    }


def _text(operation: str, summary: str, media: str) -> Node:
    content = {media: {"schema": {} if media == "application/json" else STRING}}
    return {
        "operationId": operation,
        "tags": ["server"],
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}},
    }
