"""Reranking through the whole gateway: one row a document, and the model that is meant."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from fake_runtimes import FakeRuntime
from in_process import Stand, ask, standing

from deployments.gateway.tenancy.tenants import hash_key
from deployments.preprocess import pairs
from deployments.preprocess.tokenizer import TextTokenizer
from runtimes.types import Batch, Limits, Ragged, Result, StageTimes, TensorSpec

WORDS = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "good": 3, "bad": 4}


class Counter(FakeRuntime):
    """Scores a pair by how often it says good."""

    LIMITS = Limits(
        inputs=(TensorSpec("input_ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec("logits", "FP32", (-1, 1)),),
        length_input="input_ids",
    )

    def run(self, batch: Batch) -> Result:
        ends = np.cumsum(batch.lengths)[:-1]
        rows = np.split(batch.inputs["input_ids"].data, ends)
        scores = np.array([(row == WORDS["good"]).sum() for row in rows], np.float32)
        outputs = {"logits": Ragged("FP32", scores, ((1,),) * batch.rows)}
        return Result(outputs, StageTimes(), int(batch.lengths.sum()))


def tokenizer_json() -> bytes:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer.to_str().encode()


TENANTS = {
    "one": {"keys": [{"id": "one", "hash": hash_key("hr_one")}], "models": ["first"]},
    "both": {"keys": [{"id": "both", "hash": hash_key("hr_both")}]},
}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    ranks = {"runtime": "synthetic", "task": "classify", "classify": {"labels": ["score"]}}
    models = {"first": ranks, "second": ranks, "other": {"runtime": "synthetic"}}
    runtimes = {"first": Counter(), "second": Counter()}
    async with standing(models, tmp_path, runtimes=runtimes, tenants=TENANTS) as stand:
        for name in ("first", "second"):
            stand.swap(name, task="rerank", tokenizer_digest="words")
            made = TextTokenizer(tokenizer_json(), 512, True, 0)
            made.pairs = pairs.template(tokenizer_json())
            stand.models.served[name].tokenizer = made
        yield stand


async def post(stand: Stand, key: str, body: Any, path: str = "/rerank") -> tuple[int, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    answer = await ask(stand.app, "POST", path, headers, json.dumps(body).encode())
    return answer.status, json.loads(answer.body)


TEXTS = ["bad", "good good", "good"]


@pytest.mark.parametrize("named", [{}, {"model": "first"}])
async def test_texts_without_a_model_mean_the_only_one_that_the_caller_may_use(
    stand: Stand, named: Any
) -> None:
    status, found = await post(
        stand, "hr_one", {**named, "query": "bad", "texts": TEXTS, "raw_scores": True}
    )
    assert (status, found) == (
        200, [{"index": 1, "score": 2.0}, {"index": 2, "score": 1.0}, {"index": 0, "score": 0.0}],
    )  # fmt: skip


async def test_where_several_could_be_meant_the_body_must_name_one(stand: Stand) -> None:
    status, found = await post(stand, "hr_both", {"query": "bad", "texts": TEXTS})
    said = found["error"]
    assert (status, said["param"]) == (400, "model")
    assert said["message"] == ("the body must name a model; those for rerank are first, second")
    status, found = await post(
        stand, "hr_both", {"query": "bad", "texts": TEXTS, "model": "second"}
    )
    assert (status, found[0]["index"]) == (200, 1)


async def test_a_model_that_is_not_ready_counts_among_those_that_could_be_meant(
    stand: Stand,
) -> None:
    body = {"query": "bad", "texts": TEXTS}
    stand.models._declared = frozenset({"first", "later"})
    stand.models._tasks = {"later": "rerank"}
    status, found = await post(stand, "hr_both", body)
    assert (status, found["error"]["message"]) == (
        400, "the body must name a model; those for rerank are first, later",
    )  # fmt: skip
    stand.models._tasks = {}
    status, found = await post(stand, "hr_both", body)
    assert (status, found["error"]["code"]) == (503, "model_not_ready")
    stand.models._declared, stand.models._tasks = frozenset({"later"}), {"later": "rerank"}
    status, found = await post(stand, "hr_both", body)
    assert status == 503
    assert "model later is declared but not ready yet" in found["error"]["message"]


async def test_documents_need_a_model(stand: Stand) -> None:
    status, found = await post(stand, "hr_one", {"query": "bad", "documents": TEXTS})
    assert (status, found["error"]["param"]) == (400, "model")
    status, found = await post(stand, "hr_one", {"model": "", "input": "a"}, "/v1/embeddings")
    assert (status, found["error"]["message"]) == (400, "the body must name a model")


LONG = "a" * ((1 << 20) + 1)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/rerank", {"query": "good", "texts": ["bad", LONG]}, "texts[1]"),
        ("/v1/rerank", {"query": "good", "documents": ["bad", {"text": LONG}]}, "documents[1]"),
        ("/v2/rerank", {"query": LONG, "documents": ["bad"]}, "query"),
        ("/v1/score", {"text_1": "good", "text_2": ["bad", LONG]}, "text_2[1]"),
        ("/v1/score", {"text_1": "good", "text_2": LONG}, "text_2"),
        ("/v1/score", {"queries": ["good", LONG], "documents": ["a", "b"]}, "queries[1]"),
        ("/v1/score", {"data_1": LONG, "data_2": ["a", "b"]}, "data_1"),
    ],
)
async def test_a_text_too_long_has_the_name_that_it_has_in_the_body(
    stand: Stand, path: str, body: Any, name: str
) -> None:
    status, found = await post(stand, "hr_one", {"model": "first", **body}, path)
    said = found["error"]
    assert (status, said["param"]) == (400, name.split("[")[0])
    assert said["message"].startswith(f"{name} has {len(LONG)} characters;")
