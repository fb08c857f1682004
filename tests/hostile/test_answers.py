"""Small requests for large answers: rows times width times labels, in every protocol.

Each is refused before anything runs, with what would fit, or answered: in pieces, and in no more
memory than its outputs take and a few pieces.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generating import CHAT, COMPLETIONS, add
from in_process import standing
from wide_models import MAX_LENGTH, MAX_ROWS, Wide, asked, wide_stand

from tests.deployments.conftest import described

ROWS = 2048  # of texts; tensors may have as many as wait
MAX_GROWN_BYTES = 100_000_000
LARGEST_PART = 4 << 20
INFER, PREDICT = "/v2/models/m/infer", "/v1/models/m:predict"


def embeddings(rows: int = ROWS, **more: Any) -> tuple[str, Any]:
    return "/v1/embeddings", {"model": "m", "input": ["a"] * rows, **more}


def classify(rows: int = ROWS, top_k: int = 1_000_000) -> tuple[str, Any]:
    return "/v1/models/m:classify", {"instances": ["a"] * rows, "top_k": top_k}


def infer(rows: int, length: int = 1, **more: Any) -> tuple[str, Any]:
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": [rows, length]}
    return INFER, {"inputs": [{**tensor, "data": [0] * (rows * length)}], **more}


def predict(*lengths: int) -> tuple[str, Any]:
    return PREDICT, {"instances": [[0] * length for length in lengths]}


BINARY = {"parameters": {"binary_data_output": True}}
TENSORS = {"task": "tensors"}
EMBEDS = {"task": "embed"}

# Width, what kind of model, the request.
ANSWERED: dict[str, tuple[int, dict[str, Any], tuple[str, Any]]] = {
    "embeddings": (4096, EMBEDS, embeddings()),
    "embeddings in base64": (4096, EMBEDS, embeddings(encoding_format="base64")),
    "embeddings at the bound": (8192, EMBEDS, embeddings(encoding_format="base64")),
    "all of 500 labels": (500, {"labels": 500}, classify()),
    "few of many labels": (8192, {"labels": 8192}, classify(top_k=1)),
    "tensors": (4096, TENSORS, infer(MAX_ROWS)),
    "binary tensors": (4096, TENSORS, infer(MAX_ROWS, **BINARY)),
    "rows": (4096, TENSORS, predict(*[1] * MAX_ROWS)),
    "columns": (4096, TENSORS, (PREDICT, {"inputs": [[0]] * MAX_ROWS})),
    # The replica is in this process too, and has the row three times.
    "a row": (8192, {"ragged": True}, predict(MAX_LENGTH)),
    "rows of one token": (4096, {"ragged": True}, infer(MAX_ROWS, **BINARY)),
}
REFUSED: dict[str, tuple[int, dict[str, Any], tuple[str, Any], str]] = {
    "embeddings": (16_384, EMBEDS, embeddings(), "at most 1024 such rows"),
    "all of 4,000 labels": (4000, {"labels": 4000}, classify(), "fewer labels (top_k)"),
    "one of 16,384 labels": (16_384, {"labels": 16_384}, classify(top_k=1), "at most 1024 such"),
    "tensors": (8192, TENSORS, infer(MAX_ROWS), "fewer outputs"),
    "rows": (8192, TENSORS, predict(*[1] * MAX_ROWS), "at most 2048 such rows"),
    "long rows": (768, {"ragged": True}, infer(64, MAX_LENGTH), "at most 42 such rows"),
    "a row": (65_536, {"ragged": True}, predict(MAX_LENGTH), "send a shorter row"),
}  # fmt: skip


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


def model_of(width: int, kind: dict[str, Any]) -> tuple[Wide, dict[str, Any]]:
    runtime = Wide(width, ragged=kind.get("ragged", False), declares=kind.get("declares", True))
    if count := kind.get("labels"):
        return runtime, {"task": "classify", "labels": [f"label-{at:05d}" for at in range(count)]}
    return runtime, {"task": kind.get("task", "tensors")}


@pytest.mark.parametrize("name", ANSWERED)
async def test_a_large_answer_comes_in_pieces_and_takes_what_its_outputs_take(
    tmp_path: Path, traced: None, name: str
) -> None:
    width, kind, (path, body) = ANSWERED[name]
    runtime, options = model_of(width, kind)
    async with wide_stand(runtime, tmp_path, **options) as stand:
        raw = json.dumps(body).encode()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        got = await asked(stand.app, path, raw)
        grown = tracemalloc.get_traced_memory()[1] - before
        assert got.status == 200, got.beginning
        assert max(got.parts) <= LARGEST_PART
        assert grown < MAX_GROWN_BYTES
        services = stand.app._pipeline._services
        assert services.limits.room.held_bytes == services._under_way.used == 0


@pytest.mark.parametrize("name", REFUSED)
async def test_a_larger_one_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    width, kind, (path, body), says = REFUSED[name]
    runtime, options = model_of(width, kind)
    async with wide_stand(runtime, tmp_path, **options) as stand:
        got = await asked(stand.app, path, json.dumps(body).encode())
        assert (got.status, runtime.runs) == (400, 0)
        assert says in got.beginning.decode()
        assert got.size < 1000


async def test_a_width_that_only_the_answer_tells_is_bounded_when_it_is_there(
    tmp_path: Path,
) -> None:
    runtime, options = model_of(16_384, {"declares": False})
    async with wide_stand(runtime, tmp_path, **options) as stand:
        got = await asked(stand.app, *_encoded(infer(2048)))
        assert got.status == 400
        assert b"at most 1024 such rows" in got.beginning
        assert (await asked(stand.app, *_encoded(infer(64)))).status == 200


CHAT_OF_MANY = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "n": 128}
MAX_LOGPROBS = {"logprobs": True, "top_logprobs": 20}
COMPLETION = {"model": "chat", "prompt": [[1] * 30] * 12}
GENERATED: dict[str, tuple[str, dict[str, Any]]] = {
    "sequences × tokens × log-probabilities": (
        CHAT, {**CHAT_OF_MANY, **MAX_LOGPROBS, "max_tokens": 90}
    ),
    "of the prompts' echo": (COMPLETIONS, {**COMPLETION, "n": 10, "echo": True, "logprobs": 20}),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
async def test_a_generated_answer_too_large_for_one_piece_is_refused_before_it_is_queued(
    tmp_path: Path, name: str
) -> None:
    path, body = GENERATED[name]
    async with standing({}, tmp_path) as stand:
        engines = add(stand, described)
        got = await asked(stand.app, path, json.dumps(body).encode())
        assert (got.status, engines.begun) == (400, [])
        assert b"log-probabilities" in got.beginning


def _encoded(request: tuple[str, Any]) -> tuple[str, bytes]:
    return request[0], json.dumps(request[1]).encode()
