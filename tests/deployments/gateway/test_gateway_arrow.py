"""Arrow streams through the whole gateway: inference and embeddings, in and out, and refusals."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from fake_runtimes import Encoder, FakeRuntime, Shout
from in_process import Answer, Stand, ask, standing

from deployments.gateway.http.protocols import arrow_answer, arrow_stream
from deployments.gateway.http.protocols.tensors import RowTensor
from deployments.preprocess.tokenizer import TextTokenizer
from runtimes.types import DTYPES, Batch, Limits, Ragged, Result, StageTimes, TensorSpec

ARROW = b"application/vnd.apache.arrow.stream"
TYPE = (b"content-type", ARROW)
PATIENT = {"queue": {"max_rows": 2048}, "slo": {"latency_ms": 20_000}}
SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}, **PATIENT}


class Vectors(FakeRuntime):
    """Gives each token a vector of itself, and its row the sum."""

    LIMITS = Limits(
        inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("scale", "FP32", (-1, 1))),
        outputs=(TensorSpec("tokens", "FP32", (-1, -1, 4)), TensorSpec("sum", "FP32", (-1,))),
        length_input="ids",
    )

    def run(self, batch: Batch) -> Result:
        ids, scale = batch.inputs["ids"].rows(), batch.inputs["scale"].data
        rows = [row * by for row, by in zip(ids, scale, strict=True)]
        data = np.concatenate([np.repeat(row, 4) for row in rows]).astype(np.float32)
        shapes = tuple([(len(row), 4) for row in rows])
        sums = np.array([row.sum() for row in rows], np.float32)
        outputs = {
            "tokens": Ragged("FP32", data, shapes),
            "sum": Ragged("FP32", sums, ((),) * batch.rows),
        }
        return Result(outputs, StageTimes(), int(batch.lengths.sum()))


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    embedding = {**SYNTHETIC, "task": "embed"}
    models = {"device": SYNTHETIC, "encoder": embedding, "shout": SYNTHETIC, "vectors": SYNTHETIC}
    fakes = {"encoder": Encoder(), "shout": Shout(), "vectors": Vectors()}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        yield stand


def column(name: str, datatype: str, rows: Sequence[Any]) -> RowTensor:
    return RowTensor(name, datatype, [np.asarray(row, DTYPES[datatype]) for row in rows], ())


def stream(*columns: tuple[RowTensor, bool], **metadata: str) -> bytes:
    types = [arrow_answer.column_of(each, ragged=ragged) for each, ragged in columns]
    return b"".join(arrow_answer.write([each for each, _ in columns], types, metadata, 999).parts)


def ids(*rows: Sequence[int], **metadata: str) -> bytes:
    found = [np.array(row, np.int64) for row in rows]
    return stream((column("ids", "INT64", found), True), **metadata)


def texts(*given: str | bytes) -> RowTensor:
    found = np.empty(len(given), object)
    found[:] = [each if isinstance(each, bytes) else each.encode() for each in given]
    return RowTensor("text", "BYTES", [found[at, ...] for at in range(len(given))], ())


async def post(
    stand: Stand, path: str, body: bytes, *headers: tuple[bytes, bytes], pieces: bool = False
) -> Answer:
    return await ask(stand.app, "POST", path, headers or [TYPE], body, pieces=pieces)


def table(answer: Answer) -> arrow_stream.Stream:
    assert answer.status == 200, answer.body
    assert answer.header(b"content-type") == ARROW
    return arrow_stream.read(answer.body)


INFER = "/v2/models/device/infer"


async def test_ragged_rows_are_answered_in_order_and_say_who_answered(stand: Stand) -> None:
    found = table(await post(stand, INFER, ids([1], [1, 2], [1, 2, 3], id="7")))
    assert [row.item() for row in found.split("sum")] == [1.0, 3.0, 6.0]
    assert found.metadata.keys() == {"model_name", "model_version", "id"}
    assert (found.metadata["model_name"], found.metadata["id"]) == ("device", "7")
    (_, call), *_ = stand.channels["device"].calls
    assert call.inputs["ids"].shapes == ((1,), (2,), (3,))


async def test_the_answer_is_that_of_json(stand: Stand) -> None:
    body = json.dumps({"instances": [[1], [1, 2]]}).encode()
    as_json = await ask(stand.app, "POST", "/v1/models/device:predict", body=body)
    found = table(await post(stand, INFER, ids([1], [1, 2])))
    assert [row.item() for row in found.split("sum")] == json.loads(as_json.body)["predictions"]


async def test_outputs_keep_their_rows_lengths_and_only_those_wanted_come(stand: Stand) -> None:
    rows = [np.array([5, 6], np.int64), np.array([7], np.int64)]
    scale = column("scale", "FP32", np.array([1, 2], np.float32))
    path, sent = "/v2/models/vectors/infer", ((column("ids", "INT64", rows), True), (scale, False))
    found = table(await post(stand, path, stream(*sent)))
    assert [c.name for c in found.columns] == ["tokens", "sum"]
    assert [row.tolist() for row in found.split("tokens")] == [[[5] * 4, [6] * 4], [[14] * 4]]
    assert [c.sizes for c in found.columns] == [(4,), ()]
    found = table(await post(stand, path, stream(*sent, outputs='["sum"]')))
    assert [c.name for c in found.columns] == ["sum"]


async def test_texts_are_bytes(stand: Stand) -> None:
    (spec,) = stand.models.served["shout"].description.inputs
    given = texts("ab", "c")
    given = RowTensor(spec.name, "BYTES", [row.reshape(1) for row in given.rows], ())
    for ragged in (True, False):  # lists of texts, or fixed-size ones
        found = table(await post(stand, "/v2/models/shout/infer", stream((given, ragged))))
        assert [row.tolist() for row in found.split("loud")] == [[b"AB"], [b"C"]]
        assert [row.tolist() for row in found.split("size")] == [[2], [1]]


async def test_either_side_may_be_json(stand: Stand) -> None:
    accept = (b"accept", b"application/json")
    answer = await post(stand, INFER, ids([1, 2], [3]), TYPE, accept)
    assert json.loads(answer.body)["outputs"][0]["data"] == [3.0, 3.0]
    tensor = {"name": "ids", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor], "id": "x"}).encode()
    found = table(await post(stand, INFER, body, (b"accept", ARROW)))
    assert [row.item() for row in found.split("sum")] == [3.0, 7.0]
    assert found.metadata["id"] == "x"


async def test_large_answers_come_in_pieces_and_are_the_same(stand: Stand) -> None:
    rows = [np.arange(n % 500 + 1, dtype=np.int64) for n in range(600)]
    scale = column("scale", "FP32", np.ones(600, np.float32))
    sent = stream((column("ids", "INT64", rows), True), (scale, False))
    answer = await post(stand, "/v2/models/vectors/infer", sent, pieces=True)
    found = table(answer)
    assert len(answer.body) == int(answer.header(b"content-length") or 0)
    assert len(answer.body) > 1_000_000
    for row, vectors in zip(rows, found.split("tokens"), strict=True):
        assert np.array_equal(vectors, np.repeat(row, 4).reshape(-1, 4))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "does not begin with a schema"),
        (b'{"inputs": []}', "no Arrow IPC stream that can be read"),
        (stream((column("other", "INT64", [[1]]), True)), "Unknown input 'other'"),
        (stream((column("ids", "INT32", [[1]]), True)), "Input 'ids' is INT32; 'device' takes INT"),
        (ids([1], []), "row 1 is empty"),
        (stream((column("ids", "INT64", [1, 2]), False)), "takes"),
        (ids([1], outputs="sum"), "'outputs' must be a JSON list"),
        (ids([1], outputs='["more"]'), "Unknown output 'more'"),
        (ids([0] * 600), "is 600 long"),
        (ids(*[[1]] * 2049), "2049 rows; 'device' takes at most 2048"),
    ],
)  # fmt: skip
async def test_refusals_are_json_and_say_why(stand: Stand, body: bytes, why: str) -> None:
    answer = await post(stand, INFER, body)
    assert (answer.status, answer.header(b"content-type")) == (400, b"application/json")
    assert why in json.loads(answer.body)["error"]


async def test_a_table_without_rows_or_fields_is_refused(stand: Stand) -> None:
    schema_alone = ids([1])
    size = len(arrow_answer._schema_message(arrow_stream.read(schema_alone).columns, ()))
    answer = await post(stand, INFER, schema_alone[:size])
    assert "has no rows" in json.loads(answer.body)["error"]
    none = arrow_answer._schema_message((), ())
    assert "has no fields" in json.loads((await post(stand, INFER, none)).body)["error"]


EMBED = "/v1/embeddings"


async def test_token_lists_become_a_column_of_vectors(stand: Stand) -> None:
    given = [np.array([n, 1], np.int32) for n in range(40)]
    body = stream((column("tokens", "INT32", given), True))
    answer = await ask(stand.app, "POST", "/v1/embeddings", [TYPE], body)
    assert answer.status == 400
    named = stream((column("tokens", "INT32", given), True), model="encoder")
    found = table(await post(stand, "/v1/embeddings", named))
    asked = json.dumps({"model": "encoder", "input": [row.tolist() for row in given]}).encode()
    as_json = json.loads((await ask(stand.app, "POST", "/v1/embeddings", body=asked)).body)
    vectors = [each["embedding"] for each in as_json["data"]]
    assert np.allclose(found.split("embedding"), vectors)
    assert found.columns[0].sizes == (len(vectors[0]),)
    assert found.metadata == {"model": "encoder", "prompt_tokens": "80"}


async def test_texts_become_the_vectors_that_json_gives(stand: Stand) -> None:
    vocabulary = tokenizers.models.WordLevel({"[UNK]": 0, "good": 7}, unk_token="[UNK]")
    words = tokenizers.Tokenizer(vocabulary)
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    stand.swap("encoder", tokenizer_digest="words")
    stand.models.served["encoder"].tokenizer = TextTokenizer(words.to_str().encode(), 512, False, 0)
    body = stream((texts("good bad", "bad"), False), model="encoder")
    found = table(await post(stand, "/v1/embeddings", body))
    asked = json.dumps({"model": "encoder", "input": ["good bad", "bad"]}).encode()
    headers = [(b"accept", ARROW)]
    same = table(await ask(stand.app, "POST", "/v1/embeddings", headers, asked))
    assert np.array_equal(found.split("embedding"), same.split("embedding"))
    back = await post(stand, "/v1/embeddings", body, TYPE, (b"accept", b"application/json"))
    assert np.allclose(json.loads(back.body)["data"][0]["embedding"], found.split("embedding")[0])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (stream((texts("a", ""), False), model="encoder"), "input[1] is empty"),
        (stream((texts(b"\xff"), False), model="encoder"), "input[0] is not UTF-8"),
        (stream((column("t", "INT64", [[1], [-1]]), True), model="encoder"), "input[1] has a"),
        (stream((column("t", "UINT64", [[1]]), True), model="encoder"), "must be texts (utf8)"),
        (stream((column("t", "INT64", [1]), False), model="encoder"), "must be texts (utf8)"),
        (stream((column("t", "INT64", [[1]]), True), (column("u", "INT64", [[1]]), True),
                model="encoder"), "input is one column"),
        (stream((column("t", "INT8", [[1]]), True), model="encoder", dimensions="x"), "dimensions"),
        (stream((column("t", "INT64", [[1]] * 2049), True), model="encoder"), "has 2049 entries"),
    ],
)  # fmt: skip
async def test_refusals_of_embeddings_are_openais(stand: Stand, body: bytes, why: str) -> None:
    answer = await post(stand, "/v1/embeddings", body)
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert why in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_the_example_of_the_docs_says_what_it_prints(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    page = Path(__file__).parents[3].joinpath("docs", "tensors.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    request = code[: code.index("with urllib.request.urlopen")]
    sent: dict[str, Any] = {}

    def noted(url: str, data: bytes, headers: dict[str, str]) -> None:
        sent.update(url=url, data=data, **headers)

    monkeypatch.setattr(urllib.request, "Request", noted)
    exec(request, {})
    assert sent["url"].endswith(INFER)
    kind = b"content-type", sent["content-type"].encode()
    answer = await post(stand, INFER, sent["data"], kind)
    sums = pa.ipc.open_stream(answer.body).read_all()["sum"].to_pylist()
    assert f"it prints `{sums}`" in page


@pytest.mark.parametrize("names", [["sum", "sum"], [f"o{n}" for n in range(65)]])
async def test_outputs_are_named_once_and_are_few(stand: Stand, names: list[str]) -> None:
    answer = await post(stand, INFER, ids([1, 2], outputs=json.dumps(names)))
    assert answer.status == 400, answer.body


async def test_an_arrow_answer_carries_its_outputs(stand: Stand) -> None:
    place = {"shared_memory_region": "out", "shared_memory_byte_size": 8}
    tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    asked = {"inputs": [tensor], "outputs": [{"name": "sum", "parameters": place}]}
    headers = [(b"accept", b"application/vnd.apache.arrow.stream")]
    answer = await ask(stand.app, "POST", INFER, headers, json.dumps(asked).encode())
    assert (answer.status, b"An Arrow answer carries its outputs" in answer.body) == (400, True)
