"""Good requests through the whole gateway: every protocol, batching across callers, what an answer
carries. The stand is empty after each."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runtimes import Encoder, Moody, Shout, Sparse
from in_process import Answer, Stand, ask, standing

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}


def ids(rows: list[list[int]], **more: Any) -> dict[str, Any]:
    tensor = {"name": "ids", "datatype": "INT64", "shape": [len(rows), len(rows[0])], "data": rows}
    return {"inputs": [tensor], **more}


def outputs(body: bytes) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(body)["outputs"]}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    embedding = {**SYNTHETIC, "task": "embed"}
    patient = {"allow_non_finite": True, "slo": {"latency_ms": 20_000}}
    models = {"device": SYNTHETIC, "encoder": embedding, "shout": SYNTHETIC}
    models |= {"splade": embedding | patient}
    fakes = {"encoder": Encoder(), "shout": Shout(), "splade": Sparse()}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        yield stand


async def infer(stand: Stand, model: str, call: dict[str, Any]) -> Any:
    body = json.dumps(call).encode()
    answer = await ask(stand.app, "POST", f"/v2/models/{model}/infer", body=body)
    assert answer.status == 200, answer.body
    return answer


async def test_infer_answers_every_row_in_order(stand: Stand) -> None:
    answer = await infer(stand, "device", ids([[1, 2], [3, 4], [5, 6]], id="abc"))
    body = json.loads(answer.body)
    assert body["id"] == "abc"
    assert body["outputs"][0] == {
        "name": "sum",
        "shape": [3],
        "datatype": "FP32",
        "data": [3, 7, 11],
    }


async def test_predict_answers_rows_of_any_length(stand: Stand) -> None:
    body = json.dumps({"instances": [[1], [1, 2], [1, 2, 3]]}).encode()
    answer = await ask(stand.app, "POST", "/v1/models/device:predict", body=body)
    assert json.loads(answer.body) == {"predictions": [1.0, 3.0, 6.0]}


async def test_embeddings_of_a_hundred_inputs_keep_their_order_across_batches(stand: Stand) -> None:
    given = [[n, 1] for n in range(100)]
    body = json.dumps({"model": "encoder", "input": given}).encode()
    answer = await ask(stand.app, "POST", "/v1/embeddings", body=body)
    data = json.loads(answer.body)["data"]
    assert [each["embedding"][0] for each in data] == [n + 1 for n in range(100)]
    assert len(stand.channels["encoder"].calls) >= 4


async def test_pooling_gives_the_vectors_of_a_model_that_embeds(stand: Stand) -> None:
    body = {"model": "encoder", "input": [[3, 1], [1, 1]]}
    answer = await ask(stand.app, "POST", "/pooling", body=json.dumps(body).encode())
    data = json.loads(answer.body)["data"]
    assert [(each["object"], each["data"][0]) for each in data] == [("pooling", 4), ("pooling", 2)]
    refused = await ask(stand.app, "POST", "/v1/classify", body=json.dumps(body).encode())
    said = json.loads(refused.body)["error"]
    assert (refused.status, said["param"]) == (400, "model")
    assert said["message"] == "the task of model encoder is embed, not classify"
    body = {"model": "device", "input": [[3, 1]]}
    refused = await ask(stand.app, "POST", "/pooling", body=json.dumps(body).encode())
    assert b"model device neither embeds nor classifies texts" in refused.body


async def test_sparse_vectors_come_as_the_entries_that_have_weights(stand: Stand) -> None:
    async def sparse(path: str = "/embed_sparse", **body: Any) -> Any:
        return await ask(stand.app, "POST", path, body=json.dumps(body).encode())

    def entries(answer: Any) -> Any:
        return [[(e["index"], e["value"]) for e in each] for each in json.loads(answer.body)]

    for named in ({"model": "splade"}, {}):  # as clients of Text Embeddings Inference do
        answer = await sparse(inputs=[[7, 9], [0, 5, 0], [0]], **named)
        assert entries(answer) == [[(7, 0.5), (9, 1.0)], [(5, 1.0)], []]
    many = await sparse(inputs=[[n, 1, 2, 3] for n in range(1, 2049)])
    weights = {1: 1.0, 2: 1.5, 3: 2.0}
    assert entries(many) == [sorted([*weights.items(), (n, 0.5)]) for n in range(1, 2049)]
    infinite = await sparse(inputs=[*[[1, 2, 3, 4]] * 2000, [9999]])  # a large answer
    assert (infinite.status, b"answer holds NaN or infinity" in infinite.body) == (500, True)
    for body, said in (
        ({"inputs": []}, "The body: inputs: expected array of length >= 1."),
        ({"inputs": [[1]] * 2049}, "inputs has 2049 entries; it must have 1 to 2048."),
        ({"inputs": [[1], "a"]}, "The body: inputs[1]: expected array, got str."),
        ({"inputs": [[1]], "model": "encoder"}, "model encoder does not make sparse vectors"),
        ({"inputs": [[1]], "prompt_name": "query"}, "'splade' has no prompt 'query'; it has none."),
    ):
        refused = await sparse(**body)
        assert (refused.status, json.loads(refused.body)["error"]["message"]) == (400, said)
    for path in ("/v1/embeddings", "/pooling"):
        refused = await sparse(path, model="splade", input=[[1]])
        assert (refused.status, b"ask for them at /embed_sparse" in refused.body) == (400, True)


async def test_a_body_may_ask_for_a_model_by_its_alias(stand: Stand) -> None:
    stand.models.aliases = {"BAAI/bge-small-en-v1.5": "encoder"}
    body = json.dumps({"model": "BAAI/bge-small-en-v1.5", "input": [[3, 1]]}).encode()
    answer = await ask(stand.app, "POST", "/v1/embeddings", body=body)
    assert json.loads(answer.body)["data"][0]["embedding"][0] == 4
    assert stand.channels["encoder"].calls
    body = json.dumps({"model": "BAAI/bge-large", "input": [[3, 1]]}).encode()
    answer = await ask(stand.app, "POST", "/v1/embeddings", body=body)
    assert answer.status == 404
    assert "unknown model 'BAAI/bge-large'" in answer.body.decode()


async def test_ragged_outputs_are_cut_back_to_each_row(stand: Stand) -> None:
    body = json.dumps({"instances": [{"ids": [1]}, {"ids": [2, 3]}]}).encode()
    answer = await ask(stand.app, "POST", "/v1/models/encoder:predict", body=body)
    rows = json.loads(answer.body)["predictions"]
    assert [len(row["tokens"]) for row in rows] == [1, 2]


async def test_bytes_go_in_and_come_out(stand: Stand) -> None:
    text = {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "bcd"]}
    answer = await infer(stand, "shout", {"inputs": [text]})
    found = outputs(answer.body)
    assert (found["loud"]["data"], found["size"]["data"]) == (["A", "BCD"], [1, 3])


async def test_binary_tensors_go_in_and_come_out(stand: Stand) -> None:
    data = np.array([[1, 2, 3]], dtype=np.int64).tobytes()
    tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 3]}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = (b"inference-header-content-length", b"%d" % len(head))
    answer = await ask(stand.app, "POST", "/v2/models/device/infer", [length], head + data)
    assert answer.status == 200
    cut = int(answer.header(b"inference-header-content-length") or 0)
    assert np.frombuffer(answer.body[cut:], dtype=np.float32).tolist() == [6.0]


@pytest.mark.parametrize(
    ("encoding", "compress"), [(b"GZIP", gzip.compress), (b"Deflate", zlib.compress)]
)
async def test_compressed_bodies_are_accepted(
    stand: Stand, encoding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(json.dumps(ids([[1, 2]])).encode())
    headers = [(b"content-encoding", encoding)]
    answer = await ask(stand.app, "POST", "/v2/models/device/infer", headers, body)
    assert answer.status == 200


async def two_alone(stand: Stand, asked: list[Any]) -> list[asyncio.Task[Answer]]:
    """Two batches of one are under way, the others wait together."""
    calls = []
    for count, call in enumerate(asked, 1):
        calls.append(asyncio.create_task(infer(stand, "encoder", call)))
        await stand.channels["encoder"].sent(min(count, 2))
    await stand.waiting("encoder", len(asked) - 2)
    return calls


async def test_callers_with_and_without_an_optional_input_share_a_batch(stand: Stand) -> None:
    channel = stand.channels["encoder"]
    channel.hold()
    kinds = {"name": "types", "datatype": "INT64", "shape": [1, 2], "data": [7, 8]}
    without, with_kinds = ids([[1, 2]]), ids([[3, 4]])
    with_kinds["inputs"].append(kinds)
    calls = await two_alone(stand, [without, without, without, with_kinds])
    channel.let_go()
    sums = [outputs((await call).body)["sums"]["data"] for call in calls]
    assert sums == [[3, 0], [3, 0], [3, 0], [7, 15]]
    assert len(channel.calls) == 3


async def test_callers_that_want_different_outputs_share_a_batch(stand: Stand) -> None:
    channel = stand.channels["encoder"]
    channel.hold()
    pick = [{"name": "sums"}], [{"name": "tokens"}], None, [{"name": "sums"}]
    asked = [ids([[1, 2]], **({"outputs": names} if names else {})) for names in pick]
    calls = await two_alone(stand, asked)
    channel.let_go()
    names = [set(outputs((await call).body)) for call in calls]
    assert names == [{"sums"}, {"tokens"}, {"tokens", "sums"}, {"sums"}]


async def test_an_answer_says_where_its_time_went(stand: Stand) -> None:
    answer = await infer(stand, "device", ids([[1, 2], [3, 4]]))
    assert float(answer.header(b"x-queue-wait-ms") or "nan") >= 0
    assert float(answer.header(b"x-service-time-ms") or "nan") >= 0
    assert answer.header(b"x-batch-size") == b"2"
    assert answer.header(b"x-bucket") == b"16"
    assert len(answer.header(b"x-request-id") or b"") == 32


@pytest.mark.parametrize("given", [b"mine", b"x" * 128])
async def test_a_callers_request_id_comes_back(stand: Stand, given: bytes) -> None:
    answer = await ask(stand.app, "GET", "/v2", [(b"x-request-id", given)])
    assert answer.header(b"x-request-id") == given


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"\xff", b"a\tb"])
async def test_an_unprintable_or_endless_request_id_is_replaced(stand: Stand, given: bytes) -> None:
    answer = await ask(stand.app, "GET", "/v2", [(b"x-request-id", given)])
    assert len(answer.header(b"x-request-id") or b"") == 32


async def test_a_trace_goes_on_and_comes_back(stand: Stand) -> None:
    parent = b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01"
    body = json.dumps(ids([[1]])).encode()
    headers = [(b"traceparent", parent)]
    answer = await ask(stand.app, "POST", "/v2/models/device/infer", headers, body)
    ours = answer.header(b"traceparent") or b""
    assert ours.startswith(b"00-" + b"ab" * 16)
    assert ours != parent


async def test_a_version_in_the_path_is_answered_if_it_is_the_live_one(stand: Stand) -> None:
    version = stand.models.find("device").description.version
    body = json.dumps(ids([[1]])).encode()
    path = f"/v2/models/device/versions/{version}/infer"
    assert (await ask(stand.app, "POST", path, body=body)).status == 200


async def test_outcomes_batches_and_connections_are_counted(stand: Stand) -> None:
    await infer(stand, "device", ids([[1]]))
    await ask(stand.app, "POST", "/v2/models/device/infer", body=b"{")
    page = (await ask(stand.app, "GET", "/metrics")).body.decode()
    counted = [line for line in page.splitlines() if "requests_total{" in line]
    assert any('outcome="ok"' in line and 'model="device"' in line for line in counted)
    assert any('outcome="bad_request"' in line for line in counted)
    assert "connections_" in page


@pytest.mark.parametrize(
    "path",
    ["/v2", "/v2/health/live", "/v2/health/ready", "/healthz", "/readyz", "/v1/models",
     "/v1/models/device", "/v2/models/device", "/v2/models/device/ready", "/metrics",
     "/openapi.json", "/docs"],
)  # fmt: skip
async def test_head_has_the_headers_of_get_and_no_body(stand: Stand, path: str) -> None:
    got, head = await ask(stand.app, "GET", path), await ask(stand.app, "HEAD", path)
    assert (got.status, head.status, head.body) == (200, 200, b"")
    if path != "/metrics":
        assert head.header(b"content-length") == got.header(b"content-length")


async def test_lifespan_is_answered(stand: Stand) -> None:
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said: list[str] = []

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: Any) -> None:
        said.append(message["type"])

    await stand.app({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("answers", [True, False])
async def test_a_websocket_is_refused_and_no_fault_of_ours(stand: Stand, answers: bool) -> None:
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    extensions: dict[str, Any] = {"websocket.http.response": {}} if answers else {}
    scope = {"type": "websocket", "raw_path": b"/v2", "extensions": extensions}
    await stand.app(scope, receive, send)
    if answers:
        assert said[0]["status"] == 400
        assert "WebSockets" in json.loads(said[1]["body"])["error"]
    else:
        assert [message["type"] for message in said] == ["websocket.close"]


async def test_a_model_without_lengths_batches_too(tmp_path: Path) -> None:
    moody = Moody(lambda value: None)
    async with standing({"moody": SYNTHETIC}, tmp_path, runtimes={"moody": moody}) as stand:
        tensor = {"name": "x", "datatype": "INT64", "shape": [3, 1], "data": [1, 2, 3]}
        answer = await infer(stand, "moody", {"inputs": [tensor]})
        assert outputs(answer.body)["y"]["data"] == [1, 2, 3]
        assert answer.header(b"x-bucket") == b"1"
