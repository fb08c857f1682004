"""JSON Schemas (2020-12) of every body that goes in or out, for the OpenAPI document.

They say what the decoders of this package take and its encoders write; the tests hold each example
of the document against them and against the decoders. No model stands here.

Source: Open Inference Protocol; TensorFlow Serving's predict; OpenAI's API reference.
"""

from __future__ import annotations

from typing import Any

from deployments.gateway.http.protocols.classify import MAX_INSTANCES
from deployments.gateway.http.protocols.openai_embeddings import MAX_INPUTS
from deployments.gateway.http.protocols.tensors import MAX_DIM, MAX_RANK
from runtimes.datatypes import DTYPES

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def record(required: tuple[str, ...], **properties: Schema) -> Schema:
    """An object; other keys than these are ignored."""
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def schemas() -> dict[str, Schema]:
    """`components.schemas`."""
    return {**_open_inference(), **_metadata(), **_predict(), **_classify(), **_openai()}


def _open_inference() -> dict[str, Schema]:
    datatype: Schema = {"type": "string", "enum": list(DTYPES)}
    data: Schema = {
        "type": "array",
        "description": "Flat in row-major order, or nested as the shape is.",
    }
    axis: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_DIM}
    shape = array(axis, minItems=1, maxItems=MAX_RANK)
    parameters: Schema = {"type": "object"}
    requested = record(("name",), name=STRING, parameters=parameters)
    tensor = record(
        ("name", "shape", "datatype"),
        name=STRING,
        shape=shape,
        datatype=datatype,
        parameters=parameters,
        data=data,
    )
    return {
        "Tensor": tensor,
        "InferRequest": record(
            ("inputs",),
            id=STRING,
            parameters=parameters,
            inputs=array(ref("Tensor"), minItems=1),
            outputs=array(requested),
        ),
        "InferResponse": record(
            ("model_name", "model_version", "outputs"),
            model_name=STRING,
            model_version=STRING,
            id=STRING,
            parameters=parameters,
            outputs=array(ref("Tensor")),
        ),
        "Error": record(("error",), error=STRING),
    }


def _metadata() -> dict[str, Schema]:
    spec = record(("name", "datatype", "shape"), name=STRING, datatype=STRING, shape=array(NUMBER))
    states: Schema = {"type": "string", "enum": ["READY", "UNAVAILABLE"]}
    return {
        "ServerMetadata": record(
            ("name", "version", "extensions"),
            name=STRING,
            version=STRING,
            extensions=array(STRING),
        ),
        "ModelMetadata": record(
            ("name", "versions", "platform", "inputs", "outputs"),
            name=STRING,
            versions=array(STRING),
            platform=STRING,
            inputs=array(spec),
            outputs=array(spec),
            parameters={"type": "object"},
        ),
        "IndexRequest": record((), ready=BOOLEAN),
        "Index": array(
            record(
                ("name", "state", "reason"),
                name=STRING,
                version=STRING,
                state=states,
                reason=STRING,
            )
        ),
        "Live": record(("live",), live=BOOLEAN),
        "Ready": record(("ready",), ready=BOOLEAN, waiting={"type": "object"}),
        "ModelReady": record(("name", "ready"), name=STRING, ready=BOOLEAN),
    }


def _predict() -> dict[str, Schema]:
    rows: Schema = {"type": "array", "minItems": 1, "description": "Rows may differ in length."}
    return {
        "PredictRequest": {
            "type": "object",
            "properties": {"instances": rows, "inputs": {}, "signature_name": STRING},
            "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
        },
        "PredictResponse": {
            "type": "object",
            "properties": {"predictions": {"type": "array"}, "outputs": {}},
            "oneOf": [{"required": ["predictions"]}, {"required": ["outputs"]}],
        },
    }


def _classify() -> dict[str, Schema]:
    text: Schema = {"type": "string", "minLength": 1}
    image = record(("b64",), b64={"type": "string", "contentEncoding": "base64"})
    top_k: Schema = {"type": "integer", "minimum": 1}
    many = {"minItems": 1, "maxItems": MAX_INSTANCES}
    label = record(("label", "score"), label=STRING, score={"type": "number"})
    guess = {**label, "description": "Where it abstains: what it would have said."}
    file: Schema = {"type": "string", "format": "binary"}
    return {
        "ClassifyRequest": record(
            ("instances",),
            instances={
                "anyOf": [
                    array(image, **many),
                    array({"anyOf": [text, record(("text",), text=text)]}, **many),
                ],
                "description": "JPEG or PNG files, or texts.",
            },
            top_k=top_k,
        ),
        "ClassifyForm": record((), top_k=top_k, image=array(file, minItems=1)),
        "ClassifyResponse": record(
            ("model", "version", "predictions"),
            model=STRING,
            version=STRING,
            predictions=array(
                record(
                    ("labels", "abstained"),
                    labels=array(ref("Label")),
                    abstained=BOOLEAN,
                    best_guess=guess,
                )
            ),
        ),
        "Label": label,
    }


def _openai() -> dict[str, Schema]:
    text: Schema = {"type": "string", "minLength": 1}
    tokens = array({"type": "integer", "minimum": 0}, minItems=1)
    many = {"minItems": 1, "maxItems": MAX_INPUTS}
    number_or_text: Schema = {"oneOf": [array({"type": "number"}), STRING]}
    usage = record(("prompt_tokens", "total_tokens"), prompt_tokens=NUMBER, total_tokens=NUMBER)
    entry = record(
        ("object", "index", "embedding"), object=STRING, index=NUMBER, embedding=number_or_text
    )
    detail = record(
        ("message", "type", "param", "code"),
        message=STRING,
        type=STRING,
        param={"type": ["string", "null"]},
        code=STRING,
    )
    model = record(
        ("id", "object", "created", "owned_by"),
        id=STRING,
        object=STRING,
        created=NUMBER,
        owned_by=STRING,
    )
    return {
        "EmbeddingsRequest": record(
            ("model", "input"),
            model=STRING,
            input={"anyOf": [text, array(text, **many), tokens, array(tokens, **many)]},
            encoding_format={"type": "string", "enum": ["float", "base64"]},
            dimensions={"type": "integer", "minimum": 1},
            user=STRING,
        ),
        "EmbeddingsResponse": record(
            ("object", "data", "model", "usage"),
            object=STRING,
            data=array(entry),
            model=STRING,
            usage=usage,
        ),
        "OpenAIModel": model,
        "OpenAIModels": record(("object", "data"), object=STRING, data=array(ref("OpenAIModel"))),
        "OpenAIError": record(("error",), error=detail),
    }
