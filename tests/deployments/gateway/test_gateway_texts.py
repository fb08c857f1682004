"""Texts through the whole gateway to labels: tokenised off the loop, one row a text."""

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

from deployments.preprocess.tokenizer import TextTokenizer
from runtimes.types import Batch, Limits, Ragged, Result, StageTimes, TensorSpec

WORDS = {"[UNK]": 0, "good": 1, "bad": 2}


class Judge(FakeRuntime):
    """Counts good and bad words."""

    LIMITS = Limits(
        inputs=(TensorSpec("input_ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec("logits", "FP32", (-1, 2)),),
        length_input="input_ids",
    )

    def run(self, batch: Batch) -> Result:
        ends = np.cumsum(batch.lengths)[:-1]
        rows = np.split(batch.inputs["input_ids"].data, ends)
        logits = np.array([[(row == 2).sum(), (row == 1).sum()] for row in rows], np.float32)
        outputs = {"logits": Ragged("FP32", logits.reshape(-1), ((2,),) * batch.rows)}
        return Result(outputs, StageTimes(), int(batch.lengths.sum()))


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    models = {
        "judge": {
            "runtime": "synthetic",
            "task": "classify",
            "classify": {"labels": ["negative", "positive"], "top_k": 1},
        }
    }
    async with standing(models, tmp_path, runtimes={"judge": Judge()}) as stand:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        stand.swap("judge", tokenizer_digest="words")
        stand.models.served["judge"].tokenizer = TextTokenizer(
            tokenizer.to_str().encode(), 512, False, 0
        )
        yield stand


async def post(stand: Stand, body: Any) -> tuple[int, Any]:
    raw = json.dumps(body).encode()
    answer = await ask(stand.app, "POST", "/v1/models/judge:classify", body=raw)
    return answer.status, json.loads(answer.body)


async def test_each_text_gets_its_label(stand: Stand) -> None:
    texts = ["good good film", {"text": "a bad bad bad end"}, "good"]
    status, body = await post(stand, {"instances": texts})
    assert status == 200
    found = [each["labels"][0] for each in body["predictions"]]
    assert [each["label"] for each in found] == ["positive", "negative", "positive"]
    assert found[0]["score"] == pytest.approx(1 / (1 + np.exp(-2)))


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
async def test_texts_and_tokens_get_every_classes_score(stand: Stand, path: str) -> None:
    positive, negative = 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))
    for given in (["good good", "bad bad bad good"], [[1, 1], [2, 2, 2, 1]]):
        body = json.dumps({"model": "judge", "input": given}).encode()
        answer = await ask(stand.app, "POST", path, body=body)
        found = json.loads(answer.body)
        assert [(each["index"], each["label"]) for each in found["data"]] == [
            (0, "positive"), (1, "negative"),
        ]  # fmt: skip
        assert found["data"][0]["probs"] == pytest.approx([negative, positive])
        assert found["data"][1]["probs"] == pytest.approx([positive, negative])
        assert {each["num_classes"] for each in found["data"]} == {2}
        assert found["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


async def test_pooling_gives_the_scores_of_a_model_that_classifies(stand: Stand) -> None:
    body = {"model": "judge", "input": "good good", "task": "classify"}
    answer = await ask(stand.app, "POST", "/pooling", body=json.dumps(body).encode())
    (only,) = json.loads(answer.body)["data"]
    assert (only["object"], only["index"]) == ("pooling", 0)
    assert only["data"] == pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))])
    for task in ("embed", "token_embed"):
        raw = json.dumps({**body, "task": task}).encode()
        refused = await ask(stand.app, "POST", "/pooling", body=raw)
        said = json.loads(refused.body)["error"]
        assert (refused.status, said["param"]) == (400, "task")
        assert said["message"] == f"the task of model judge is classify, not {task}"


async def test_a_model_that_classifies_makes_no_embeddings(stand: Stand) -> None:
    raw = json.dumps({"model": "judge", "input": "good"}).encode()
    refused = await ask(stand.app, "POST", "/v1/embeddings", body=raw)
    assert refused.status == 400
    assert b"model judge does not make embeddings" in refused.body


async def test_a_model_of_texts_takes_no_images(stand: Stand) -> None:
    status, body = await post(stand, {"instances": [{"b64": "AAAA"}]})
    assert (status, body["error"]) == (400, "model judge takes no images")


async def test_a_text_too_long_is_named_by_its_place(stand: Stand) -> None:
    status, body = await post(stand, {"instances": ["good", "good " * 600]})
    assert status == 400
    assert body["error"].startswith("instances[1] has 600 tokens;")
    for path in ("/classify", "/pooling"):
        raw = json.dumps({"model": "judge", "input": ["good", "good " * 600]}).encode()
        refused = await ask(stand.app, "POST", path, body=raw)
        said = json.loads(refused.body)["error"]
        assert (refused.status, said["param"]) == (400, "input")
        assert said["message"].startswith("input[1] has 600 tokens;")
