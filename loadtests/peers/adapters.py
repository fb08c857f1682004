"""An adapter for each server: how to write its requests and read its answers.

A request has one row of ids or one text, in the JSON form that is usual for the server; all servers
get the same ids and texts. Answers are parsed only where a bench checks that a server computes the
right values, not while it measures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Item = Sequence[int] | str


@dataclass(frozen=True, slots=True)
class PeerAdapter:
    """A server's form of requests and answers."""

    path: str
    body: Callable[[Item], Any]  # a request's JSON for one item
    answer: Callable[[Any], Any]  # the sum or the embedding in an answer's JSON

    def encode(self, item: Item) -> bytes:
        return json.dumps(self.body(item), separators=(",", ":")).encode()

    def decode(self, content: bytes) -> Any:
        return self.answer(json.loads(content))


def _item(item: Item) -> dict[str, Any]:
    return {"item": item}


def _items(item: Item) -> dict[str, Any]:
    return {"items": [item]}


def _ids_tensor(item: Item) -> dict[str, Any]:
    tensor = {"name": "ids", "shape": [1, len(item)], "datatype": "INT64", "data": item}
    return {"inputs": [tensor]}


def _text_tensor(item: Item) -> dict[str, Any]:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [item]}
    return {"inputs": [tensor]}


def _bytes_row(item: Item) -> dict[str, Any]:
    """A request with the row as one BYTES element: ids as their JSON, a text unchanged."""
    text = item if isinstance(item, str) else json.dumps(item, separators=(",", ":"))
    return {"inputs": [{"name": "item", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def _openai(item: Item) -> dict[str, Any]:
    return {"model": "minilm", "input": item}


def _of_answer(found: Any) -> Any:
    return found["answer"]


def _first(found: Any) -> Any:
    return found[0]


def _tensor_data(found: Any) -> Any:
    data = found["outputs"][0]["data"]
    return data[0] if len(data) == 1 else data


def _openai_embedding(found: Any) -> Any:
    return found["data"][0]["embedding"]


RAY_SERVE = PeerAdapter("/", _item, _of_answer)
LITSERVE = PeerAdapter("/predict", _item, _of_answer)
BENTOML = PeerAdapter("/infer", _items, _first)
MLSERVER = PeerAdapter("/v2/models/model/infer", _bytes_row, _tensor_data)
TENSORS = PeerAdapter("/v2/models/device/infer", _ids_tensor, _tensor_data)
TEXT_TENSORS = PeerAdapter("/v2/models/minilm/infer", _text_tensor, _tensor_data)
EMBEDDINGS = PeerAdapter("/v1/embeddings", _openai, _openai_embedding)
