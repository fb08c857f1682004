"""Reranking and scoring, in the forms of Cohere, Jina, vLLM and Text Embeddings Inference."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import Classes, ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.codecs import PairsCodec
from deployments.gateway.http.protocols import rerank
from deployments.gateway.rows import RowAnswer
from deployments.preprocess.pairs import PairTemplate
from runtimes.types import TensorSpec

BERT = PairTemplate(1, 1, (101,), (102,), (102,), True)
SCORE = Classes("logits", ("score",), 1, 1.0, 0.0, False, "sigmoid")
QUERY = {"model": "m", "query": "who?"}
NAMES = ("input_ids", "token_type_ids")


@pytest.fixture
def ranker(description) -> ModelDescription:
    """Takes pairs of at most 12 tokens."""
    return replace(
        description(name="m"),
        task="rerank", classes=SCORE, max_length=12, lengths_input="input_ids",
        inputs=tuple(TensorSpec(name, "INT64", (-1, -1)) for name in NAMES),
        outputs=(TensorSpec("logits", "FP32", (-1, 1)),), optional_inputs=NAMES[1:],
    )  # fmt: skip


def decoded(returns: bool = False, **fields: Any) -> rerank.PairsCall:
    return rerank.decode(json.dumps({**QUERY, **fields}).encode(), returns)


def scored(**fields: Any) -> rerank.PairsCall:
    return rerank.decode_score(json.dumps({"model": "m", **fields}).encode())


def answered(call: rerank.PairsCall, logits: list[float], d: ModelDescription) -> Any:
    codec = PairsCodec("rerank", rerank.decode_score)
    tokens = [np.array([101, 7, 102])] * (len(call.queries) + len(call.documents))
    rows = codec.split(call, tokens, d, SimpleNamespace(pairs=BERT))
    outputs = [{"logits": ("FP32", np.array([each], np.float32))} for each in logits]
    answers = tuple(RowAnswer(outputs=each) for each in outputs)
    whole = codec.encode(call, rows, answers, d).body
    large, parts, more = codec.pieces(call, rows, answers, d), b"", True
    while more:
        part, more = large.take()
        parts += part
    one, other = json.loads(whole), json.loads(parts)
    for each in (one, other) if isinstance(one, dict) else ():
        del each["id"]
    assert one == other
    return one


def test_the_best_come_first_and_equal_scores_by_index(ranker):
    call = decoded(documents=["a", {"text": "b"}, "c", "d"], top_n=3)
    found = answered(call, [0.0, 2.0, -1.0, 2.0], ranker)
    assert [(each["index"], round(each["relevance_score"], 3)) for each in found["results"]] == [
        (1, 0.881), (3, 0.881), (0, 0.5),
    ]  # fmt: skip
    assert found["usage"] == {"prompt_tokens": 20, "total_tokens": 20}
    assert found["meta"]["api_version"] == {"version": "2"}


def test_documents_come_back_where_they_are_asked_for_or_usual(ranker):
    for call in (
        decoded(documents=["a"], returns=True),
        decoded(documents=["a"], return_documents=True),
    ):
        (result,) = answered(call, [0.0], ranker)["results"]
        assert result["document"] == {"text": "a"}
    call = decoded(documents=["a"], returns=True, return_documents=False)
    assert "document" not in answered(call, [0.0], ranker)["results"][0]


def test_scores_before_the_activation(ranker):
    call = decoded(documents=["a"], use_activation=False)
    assert answered(call, [-3.5], ranker)["results"][0]["relevance_score"] == -3.5


def test_texts_are_answered_in_their_own_form(ranker):
    call = decoded(texts=["a", "b"], raw_scores=True, return_text=True)
    assert answered(call, [1.0, 4.0], ranker) == [
        {"index": 1, "score": 4.0, "text": "b"}, {"index": 0, "score": 1.0, "text": "a"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")]
)
@pytest.mark.parametrize("first", ["one", ["one"], ["one", "two"]])
def test_scores_keep_the_requests_order(ranker, names, first):
    found = answered(
        scored(**dict(zip(names, (first, ["a", "b"]), strict=True))), [0.0, 9.0], ranker
    )
    assert [each["index"] for each in found["data"]] == [0, 1]
    assert found["data"][0] == {"index": 0, "object": "score", "score": 0.5}


def test_each_query_meets_its_own_document(ranker):
    tokens = [np.array([101, at, 102]) for at in (1, 2, 8, 9)]
    made = rerank.columns(scored(text_1=["p", "q"], text_2=["x", "y"]), tokens, ranker, BERT)
    assert [row.tolist() for row in made["input_ids"]] == [
        [101, 1, 102, 8, 102],
        [101, 2, 102, 9, 102],
    ]
    assert made["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1]


def test_a_model_without_token_types_gets_none(ranker):
    plain = replace(ranker, inputs=ranker.inputs[:1])
    tokens = [np.array([101, 1, 102])] * 2
    assert rerank.columns(decoded(documents=["a"]), tokens, plain, BERT).keys() == {"input_ids"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "documents"),
        ({"documents": []}, "documents"),
        ({"texts": []}, "texts"),
        ({"documents": ["a"], "texts": ["a"]}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": [3]}, "documents"),
        ({"documents": ["a"], "query": ""}, "query"),
        ({"documents": ["a"], "top_n": -1}, "top_n"),
        ({"documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
def test_what_is_wrong_with_a_reranking_is_named(fields, param):
    with pytest.raises(BadRequest) as refused:
        decoded(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "must have text_1 and text_2"),
        ({"text_1": "a"}, "must have text_1 and text_2"),
        ({"text_1": "a", "text_2": "b", "data_1": "a", "data_2": "b"}, "must have text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1 has 2 texts and text_2 3"),
        ({"queries": [], "documents": ["a"]}, "queries has 0 entries"),
    ],
)
def test_what_is_wrong_with_a_scoring_is_named(fields, said):
    with pytest.raises(BadRequest, match=said):
        scored(**fields)


def test_a_model_of_another_task_is_named(description):
    with pytest.raises(BadRequest, match="ranks no pairs; its task is"):
        rerank.columns(decoded(documents=["a"]), [np.array([1])] * 2, description(name="m"), None)
