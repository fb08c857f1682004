from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deployments.contract.description import Generating, ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import metadata
from deployments.gateway.http.protocols.metadata import ModelState
from deployments.gateway.tenancy.tenants import PageReader

Describe = Callable[..., ModelDescription]
STATES = [ModelState("a", "1", True), ModelState("b", "", False, "warming")]


def test_server_names_the_binary_extension() -> None:
    body = json.loads(metadata.server_metadata().body)
    assert body["name"] == "headrace"
    assert "binary_tensor_data" in body["extensions"]


def test_model_names_its_tensors_and_what_may_be_left_out(encoder: Describe) -> None:
    body = json.loads(metadata.model_metadata(encoder()).body)
    assert (body["name"], body["versions"], body["platform"]) == ("encoder", ["1"], "synthetic")
    assert body["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    assert [tensor["name"] for tensor in body["outputs"]] == ["hidden", "pooled"]
    assert body["parameters"]["optional_inputs"] == "mask,types"


def test_index_lists_every_declared_model_with_its_reason() -> None:
    assert json.loads(metadata.repository_index(STATES).body) == [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "b", "version": "", "state": "UNAVAILABLE", "reason": "warming"},
    ]


def test_index_filters_ready_models() -> None:
    body = json.loads(metadata.repository_index(STATES, only_ready=True).body)
    assert [model["name"] for model in body] == ["a"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"", False), (b"{}", False), (b'{"ready":false}', False), (b'{"ready": true, "x": 1}', True)],
)
def test_index_request_says_whether_only_ready_ones_count(body: bytes, expected: bool) -> None:
    assert metadata.ready_only(body) is expected


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"ready": 1}', b"\xff"])
def test_index_request_of_another_kind_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        metadata.ready_only(body)


def test_openai_lists_models_and_shows_one(description: Describe) -> None:
    begun = description(generation=1_790_000_000_123)
    one = json.loads(metadata.openai_model(begun).body)
    assert one == {
        "id": "device", "object": "model", "created": 1_790_000_000, "owned_by": "headrace"
    }  # fmt: skip
    assert json.loads(metadata.openai_models([begun], {}, lambda *_: True).body) == {
        "object": "list",
        "data": [one],
    }


def test_openais_list_has_the_adapters_that_its_reader_may_use(description: Describe) -> None:
    engine = Generating(100, 400, 8, adapters=("sql", "law"))
    page = metadata.openai_models(
        [description(name="chat", generating=engine)],
        {},
        PageReader(models=frozenset({"chat:law"})).may_use,
    )
    base, law = json.loads(page.body)["data"]
    assert (base["id"], law["id"], law["parent"]) == ("chat", "chat:law", "chat")
    assert "parent" not in base
    every = metadata.openai_models(
        [description(name="chat", generating=engine)], {}, PageReader().may_use
    )
    assert [m["id"] for m in json.loads(every.body)["data"]] == ["chat", "chat:sql", "chat:law"]


def test_readiness_names_what_it_waits_for() -> None:
    assert json.loads(metadata.server_ready(True, STATES[:1]).body) == {"ready": True}
    waiting = json.loads(metadata.server_ready(False, STATES).body)
    assert waiting == {"ready": False, "waiting": {"b": "warming"}}
    assert json.loads(metadata.live().body) == {"live": True}
    assert json.loads(metadata.model_ready("a", False).body) == {"name": "a", "ready": False}
