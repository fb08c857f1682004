"""A request each model would take, made from its own page: for the OpenAPI document and `curl`.

One row, four long where the length is free; optional inputs and the mask are left out. A model
whose needed inputs have no JSON form (FP16, BF16) or more values than anybody reads (an image) gets
no example. The values mean nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols.tensors import HALVES
from runtimes.types import DTYPES, TensorSpec

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
    if d.classes is None:
        return None
    if d.image is not None:
        return {"instances": [{"b64": _PNG}], "top_k": 3}
    return {"instances": ["a short text"]} if d.tokenizer_digest else None


def embeddings(d: ModelDescription) -> dict[str, Any] | None:
    """An embeddings request, None for a model that gives no embeddings."""
    if not d.embed_output:
        return None
    given: Any = ["a short text", "and another"] if d.tokenizer_digest else [[1, 2, 3], [4]]
    return {"model": d.name, "input": given}


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
