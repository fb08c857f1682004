from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import EmbeddingChoices, ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import embeddings
from deployments.gateway.http.protocols.embeddings import MAX_INPUTS
from deployments.gateway.http.protocols.tensors import EmbeddingsCall

Describe = Callable[..., ModelDescription]


def decode(given: Any, **more: Any) -> EmbeddingsCall:
    body = {"model": "m", "input": given, **more}
    return embeddings.decode(json.dumps(body, indent=1).encode())


@pytest.mark.parametrize(
    ("given", "texts", "tokens"),
    [
        ("a", ["a"], None),
        (["a", "b"], ["a", "b"], None),
        ([1, 2], None, [[1, 2]]),
        ([[1], [2, 3]], None, [[1], [2, 3]]),
    ],
)
def test_each_form_of_input_is_read(given: Any, texts: Any, tokens: Any) -> None:
    call = decode(given)
    assert (call.texts, call.tokens) == (texts, tokens)
    assert (call.model, call.base64, call.dimensions) == ("m", False, None)


@pytest.mark.parametrize(
    "given",
    [
        "",
        [],
        [""],
        ["a", ""],
        [[]],
        [[1], []],
        [1, "a"],
        ["a", 1],
        [1.5],
        [-1],
        [True],
        {},
        None,
        3,
    ],
)
def test_input_that_is_empty_or_mixed_is_refused_by_parameter(given: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(given)
    assert caught.value.param == "input"


@pytest.mark.parametrize("count", [1, 2, MAX_INPUTS])
def test_inputs_up_to_the_limit_are_taken(count: int) -> None:
    assert decode(["a"] * count).texts == ["a"] * count


@pytest.mark.parametrize("one", ["a", [1]])
def test_inputs_over_the_limit_are_refused(one: Any) -> None:
    with pytest.raises(BadRequest, match="1 to 2048"):
        decode([one] * (MAX_INPUTS + 1))


def test_long_lists_are_counted_before_their_entries_are_read() -> None:
    with pytest.raises(BadRequest, match="1 to 2048"):
        decode([["no token"]] * (MAX_INPUTS + 1))
    with pytest.raises(BadRequest, match="expected"):
        decode([["no token"]] * MAX_INPUTS)


@pytest.mark.parametrize(("form", "expected"), [("float", False), ("base64", True), (None, False)])
def test_encoding_format_is_read(form: str | None, expected: bool) -> None:
    assert decode("a", encoding_format=form, user="ignored").base64 is expected


@pytest.mark.parametrize(
    ("field", "value"), [("encoding_format", "hex"), ("dimensions", 0), ("model", None)]
)
def test_field_of_the_wrong_kind_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode("a", **{field: value})
    assert caught.value.param == field


def test_dimensions_are_right_only_as_the_models_own(
    encoder: Callable[..., ModelDescription],
) -> None:
    embeddings.check_dimensions(decode("a"), encoder())
    embeddings.check_dimensions(decode("a", dimensions=2), encoder())
    with pytest.raises(BadRequest, match="gives 2 dimensions") as caught:
        embeddings.check_dimensions(decode("a", dimensions=3), encoder())
    assert caught.value.param == "dimensions"


CHOICES = EmbeddingChoices(
    {"query": "Q: ", "passage": "P: ", "sts": "S: "}, "sts", dimensions=(1, 2), default_dimensions=3
)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"prompt_name": "query"}, "Q: a"),
        ({"prompt_name": "passage", "input_type": "query"}, "P: a"),
        ({"input_type": "search_query"}, "Q: a"),
        ({"input_type": "query"}, "Q: a"),
        ({"input_type": "search_document"}, "P: a"),
        ({"input_type": "document"}, "P: a"),
        ({"input_type": "sts"}, "S: a"),
        ({"input_type": "clustering"}, "S: a"),
        ({}, "S: a"),
    ],
)
def test_a_prompt_goes_before_each_text(encoder: Describe, asked: Any, sent: str) -> None:
    d = encoder(embedding=CHOICES)
    assert embeddings.prompted(decode(["a"], **asked), d) == [sent]


def test_without_prompts_texts_stay_as_they_are(encoder: Describe) -> None:
    for choices in (None, EmbeddingChoices(), EmbeddingChoices({"query": ""}, "query")):
        call = decode(["a"], input_type="query")
        assert embeddings.prompted(call, encoder(embedding=choices)) == ["a"]


@pytest.mark.parametrize(
    ("given", "choices", "words"),
    [
        ("a", CHOICES, "has no prompt 'x'; it has query, passage, sts"),
        ("a", EmbeddingChoices(), "has no prompt 'x'; it has none"),
        ([1], EmbeddingChoices({"x": "X"}), "before a text, not before ids"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(
    encoder: Describe, given: Any, choices: EmbeddingChoices, words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        embeddings.prompted(decode(given, prompt_name="x"), encoder(embedding=choices))
    assert caught.value.param == "prompt_name"


@pytest.mark.parametrize(
    ("asked", "vector", "expected"),
    [
        (2, [0.6, 0.0, 0.0, 0.8], [1.0, 0.0]),
        (2, [3.0, 4.0, 0.0, 5.0], [3.0, 4.0]),
        (1, [0.0, 1.0, 0.0, 0.0], [0.0]),
        (None, [0.0, 3.0, 0.0, 9.0], [0.0, 3.0, 0.0]),
        (4, [0.6, 0.0, 0.0, 0.8], [0.6, 0.0, 0.0, 0.8]),
    ],
)
def test_fewer_dimensions_are_the_first_and_of_length_1_where_all_are(
    encoder: Describe, asked: int | None, vector: list[float], expected: list[float]
) -> None:
    d, call = encoder(embed_width=4, embedding=CHOICES), decode("a", dimensions=asked)
    embeddings.check_dimensions(call, d)
    found = embeddings.cut(call, d, np.array([vector], np.float32))
    assert found[0].tolist() == pytest.approx(expected)


def test_dimensions_that_a_model_was_not_trained_for_are_refused(encoder: Describe) -> None:
    d = encoder(embed_width=4, embedding=EmbeddingChoices(dimensions=(1, 2)))
    with pytest.raises(BadRequest, match="gives 1, 2, 4 dimensions and cannot give 3; ask for one"):
        embeddings.check_dimensions(decode("a", dimensions=3), d)


def test_answer_lists_vectors_in_order() -> None:
    vectors = np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)
    encoded = embeddings.encode(vectors, 7, "m", "embedding", base64=False)
    assert json.loads(encoded.body) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.1, 0.2]},
            {"object": "embedding", "index": 1, "embedding": [0.3, 0.4]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_base64_is_little_endian_float32() -> None:
    vectors = np.array([[0.1, -2.5]], dtype=np.float32)
    encoded = embeddings.encode(vectors, 1, "m", "embedding", base64=True)
    raw = base64.b64decode(json.loads(encoded.body)["data"][0]["embedding"])
    assert np.frombuffer(raw, dtype="<f4").tolist() == vectors[0].tolist()
