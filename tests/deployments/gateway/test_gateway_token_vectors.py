"""Texts to a vector for each token, to scores by them, and to one vector without a prompt's tokens,
through the whole gateway and torch.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import Stand, ask, standing

from tests.runtimes.test_families import modules
from tests.runtimes.test_token_vectors import (
    FILLED,
    WIDTH,
    by_hand,
    colbert,
    filled,
    maxsim,
    network,
    pylate,
    stanford,
    tokenizer,
)

WORST = 1e-5
QUERY, DOCUMENT = "the water wheel", "The River turns, the mill."
# By its tokeniser: [CLS] [Q] … [SEP], filled up; [CLS] [D] … [SEP].
QUERY_IDS = filled(2, 5, 11, 9, 8, 3)
DOCUMENT_IDS = [2, 6, 11, 7, 10, 29, 11, 13, 31, 3]
KEPT = [0, 1, 2, 3, 4, 6, 7, 9]  # without the comma and the point


async def post(stand: Stand, path: str, **body: Any) -> tuple[int, Any]:
    answer = await ask(stand.app, "POST", path, body=json.dumps(body).encode(), pieces=True)
    return answer.status, json.loads(answer.body)


@pytest.fixture(params=[colbert, pylate, stanford])
async def served(request: Any, tmp_path: Path) -> AsyncIterator[tuple[Stand, Path, Any]]:
    made = request.param(tmp_path / "m")
    common = {"runtime": "torch", "source": str(tmp_path / "m")}
    models = {"vectors": common | {"task": "embed"}, "ranks": common | {"task": "rerank"}}
    async with standing(models, tmp_path) as stand:
        yield stand, tmp_path / "m", made


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    colbert(tmp_path / "m")
    patient = {"slo": {"latency_ms": 60_000}}
    common = {"runtime": "torch", "source": str(tmp_path / "m"), **patient}
    cuts = {"lengths": {"max": 56, "truncate": True}}
    models = {
        **{"vectors": common | {"task": "embed"}, "ranks": common | {"task": "rerank"}},
        **{"cuts": common | cuts | {"task": "embed"}, "short": common | cuts | {"task": "rerank"}},
    }
    async with standing(models, tmp_path) as stand:
        yield stand


async def test_texts_become_queries_and_documents_as_their_folder_says(served: Any) -> None:
    stand, path, made = served
    for kind, text, ids, kept in (
        ({"input_type": "query"}, QUERY, QUERY_IDS, slice(None)),
        ({"prompt_name": "query"}, QUERY, QUERY_IDS, slice(None)),
        ({"input_type": "document", "task": "token_embed"}, DOCUMENT, DOCUMENT_IDS, KEPT),
        ({}, DOCUMENT, DOCUMENT_IDS, KEPT),
        ({"input_type": "clustering"}, DOCUMENT, DOCUMENT_IDS, KEPT),
    ):
        status, answer = await post(stand, "/pooling", model="vectors", input=text, **kind)
        assert status == 200
        wanted = by_hand(path, made, ids, attend=False).numpy()[kept]
        np.testing.assert_allclose(answer["data"][0]["data"], wanted, atol=WORST)
        assert answer["usage"]["prompt_tokens"] == len(ids)


async def test_documents_are_ranked_by_their_tokens(served: Any) -> None:
    stand, path, made = served
    documents = ["stone", DOCUMENT]
    status, answer = await post(
        stand, "/v2/rerank", model="ranks", query=QUERY, documents=documents
    )
    query = by_hand(path, made, QUERY_IDS, attend=False)
    whole = by_hand(path, made, DOCUMENT_IDS, attend=False)[KEPT]
    wanted = [maxsim(query, by_hand(path, made, [2, 6, 12, 3], attend=False)), maxsim(query, whole)]
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert status == 200
    assert [found[0], found[1]] == pytest.approx(wanted, abs=WORST)
    assert answer["results"][0]["index"] == int(np.argmax(wanted))
    tokens = 2 * len(QUERY_IDS) + 4 + len(DOCUMENT_IDS)
    assert answer["usage"]["prompt_tokens"] == tokens
    _, scored = await post(stand, "/v1/score", model="ranks", text_1=QUERY, text_2=documents)
    assert [each["score"] for each in scored["data"]] == [found[0], found[1]]


async def test_vectors_come_as_base64_and_in_large_answers(stand: Stand) -> None:
    whole = {"model": "vectors", "input": [DOCUMENT, "stone"]}
    _, plain = await post(stand, "/pooling", **whole)
    _, packed = await post(stand, "/pooling", **whole, encoding_format="base64")
    for one, other in zip(plain["data"], packed["data"], strict=True):
        vectors = np.frombuffer(b64decode(other["data"]), "<f4").reshape(-1, WIDTH)
        np.testing.assert_allclose(vectors, one["data"], atol=1e-7)
    many = whole | {"input": [DOCUMENT] * 300}  # half a megabyte
    status, answer = await post(stand, "/pooling", **many)
    assert (status, len(answer["data"])) == (200, 300)
    np.testing.assert_allclose(answer["data"][299]["data"], plain["data"][0]["data"], atol=WORST)
    _, answer = await post(stand, "/pooling", **many, encoding_format="base64")
    last, first = (b64decode(each["data"][0]["data"]) for each in (answer, packed))
    np.testing.assert_allclose(np.frombuffer(last, "<f4"), np.frombuffer(first, "<f4"), atol=WORST)


async def test_ids_are_rows_as_they_are(stand: Stand) -> None:
    _, texts = await post(stand, "/pooling", model="vectors", input=QUERY, input_type="query")
    _, ids = await post(stand, "/pooling", model="vectors", input=QUERY_IDS, input_type="query")
    assert texts["data"] == ids["data"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/v1/embeddings",
            {"input": "stone"},
            "makes a vector for each token; ask for them at /po",
        ),
        (
            "/classify",
            {"input": "stone"},
            "makes a vector for each token; ask for them at /pooling",
        ),
        ("/pooling", {"input": "stone", "task": "embed"}, "is token_embed, not embed"),
        ("/pooling", {"input": "stone", "dimensions": 8}, f"gives {WIDTH} dimensions and cannot"),
        ("/embed_sparse", {"inputs": "stone"}, "does not make sparse vectors"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "ranks no pairs; its task is embed"),
        (
            "/pooling",
            {"input": "river " * FILLED, "input_type": "query"},
            f"a query has {FILLED + 3} tokens; this model reads {FILLED} of one",
        ),
        ("/pooling", {"input": "river " * 40}, "a document has 43 tokens; this model reads 40"),
    ],
)
async def test_what_a_model_of_token_vectors_does_not_do_is_said(
    stand: Stand, path: str, body: dict[str, Any], said: str
) -> None:
    status, answer = await post(stand, path, model="vectors", **body)
    assert status == 400
    assert said in answer["error"]["message"]


async def test_texts_are_cut_where_settings_say_and_documents_to_be_ranked_always(
    stand: Stand,
) -> None:
    for kind, length in (("query", FILLED), ("document", 40)):
        long = {"model": "cuts", "input": "river " * 50, "input_type": kind}
        status, answer = await post(stand, "/pooling", **long)
        assert (status, answer["usage"]["prompt_tokens"]) == (200, length)
    ranked = {"documents": ["river " * 60], "query": QUERY}
    status, answer = await post(stand, "/rerank", model="ranks", **ranked)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, FILLED + 40)
    status, answer = await post(stand, "/rerank", model="ranks", **ranked, max_tokens_per_doc=4)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, FILLED + 4 + 2)
    ranked["query"] = "river " * 50
    status, answer = await post(stand, "/rerank", model="ranks", **ranked)
    assert (status, answer["error"]["param"]) == (400, "query")
    status, answer = await post(stand, "/rerank", model="short", **ranked)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, FILLED + 40)


async def test_the_tokens_of_a_texts_prompt_are_left_out_where_the_folder_says(
    tmp_path: Path,
) -> None:
    tokenizer(tmp_path / "m")
    made = network(tmp_path / "m")
    modules(tmp_path / "m", "mean", prompts=False)
    model = {"runtime": "torch", "source": str(tmp_path / "m"), "task": "embed"}

    def mean(ids: list[int], start: int) -> Any:
        with torch.no_grad():
            return made(torch.tensor([ids])).last_hidden_state[0, start:].mean(0).numpy()

    async with standing({"m": model}, tmp_path) as stand:
        text = stand.models.served["m"].tokenizer.encode(["wheel"])[0].tolist()
        whole = stand.models.served["m"].tokenizer.encode(["the river: wheel"])[0].tolist()
        assert len(whole) == len(text) + 3
        for more, wanted in (
            ({}, mean(text, 0)),
            ({"prompt_name": "query"}, mean(whole, 4)),  # its three tokens, and [CLS]
            ({"input_type": "query"}, mean(whole, 4)),
        ):
            status, answer = await post(stand, "/v1/embeddings", model="m", input="wheel", **more)
            assert status == 200
            np.testing.assert_allclose(answer["data"][0]["embedding"], wanted, atol=WORST)
