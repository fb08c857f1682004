"""Bad requests through the whole gateway: each is a 4xx in its protocol's shape that says what is
wrong, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_runtimes import Encoder, Shout
from in_process import Answer, Stand, ask, standing

from deployments.gateway.http.body import Inflation
from deployments.gateway.tenancy.tenants import hash_key

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 64}}
INFER = "/v2/models/device/infer"
GATEWAY = {"limits": {"max_body_bytes": 4096, "body_timeout_s": 0.01}}
GOOD = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}'
VAST = b"9" * 5000


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    models = {"device": SYNTHETIC, "encoder": {**SYNTHETIC, "task": "embed"}, "shout": SYNTHETIC}
    fakes = {"encoder": Encoder(), "shout": Shout()}
    async with standing(models, tmp_path, gateway=GATEWAY, runtimes=fakes) as stand:
        yield stand


def oip_message(answer: Answer) -> str:
    error = json.loads(answer.body)
    assert list(error) == ["error"]
    assert isinstance(error["error"], str)
    return str(error["error"])


def openai_error(answer: Answer) -> dict[str, Any]:
    error = json.loads(answer.body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return dict(error)


def tensor(**changes: Any) -> bytes:
    fields = {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2], **changes}
    return json.dumps({"inputs": [{k: v for k, v in fields.items() if v is not None}]}).encode()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "malformed"),
        (b"[]", "object"),
        (b'{"inputs": []}', "inputs"),
        (b"\xff\xfe", "malformed"),
        (b'{"inputs": [{"name": "\xff"}]}', "UTF-8"),
        (b'{"parameters": {"a":' + b"[" * 4000, "nested"),
        (tensor(data=[1, float("nan")]), "NaN"),
        (tensor(data=[1, float("inf")]), "Infinity"),
        (tensor(data=["a", "b"]), "int"),
        (tensor(data=[1.5, 2.5]), "int"),
        (tensor(data=[1]), "elements"),
        (tensor(data=None), "data"),
        (tensor(data=[2**63, 1]), "range"),
        (tensor(shape=[1, 3]), "elements"),
        (tensor(shape=[-1, 2]), "shape"),
        (tensor(shape=[0, 2], data=[]), "shape"),
        (tensor(shape=[2**31 - 1, 2**31 - 1]), "queue.max_rows"),
        (tensor(shape=[1, 2**31 - 1]), "elements"),
        (tensor(shape=[2**80, 1]), "shape"),
        (tensor(shape=[2]), "shape"),
        (tensor(shape=[]), "shape"),
        (tensor(shape="wide"), "shape"),
        (tensor(datatype="INT32"), "INT64"),
        (tensor(datatype="COMPLEX"), "COMPLEX"),
        (tensor(name="nope"), "Unknown input 'nope'"),
        (tensor(name=7), "name"),
        (tensor(shape=[1, 65], data=[1] * 65), "65"),
        (b'{"inputs": [' + b",".join([tensor()[12:-2]] * 2) + b"]}", "more than once"),
        (GOOD[:-1] + b', "outputs": [{"name": "nope"}]}', "Unknown output 'nope'"),
        (GOOD[:-1] + b', "outputs": [{"name": "sum"}, {"name": "sum"}]}', "more than once"),
    ],
)
async def test_a_bad_infer_body_is_400_and_says_what_is_wrong(
    stand: Stand, body: bytes, says: str
) -> None:
    answer = await ask(stand.app, "POST", INFER, body=body)
    assert answer.status == 400
    assert says in oip_message(answer)


@pytest.mark.parametrize("length", [b"0", b"-1", b"x", b"99999", VAST, b"\xb2"])
async def test_a_wrong_length_of_the_json_header_is_400(stand: Stand, length: bytes) -> None:
    headers = [(b"inference-header-content-length", length)]
    answer = await ask(stand.app, "POST", INFER, headers, GOOD)
    assert (answer.status, bool(oip_message(answer))) == (400, True)


@pytest.mark.parametrize(("size", "sent"), [(15, 15), (17, 17), (16, 15), (16, 17), (-8, 16)])
async def test_binary_sizes_that_do_not_add_up_are_400(stand: Stand, size: int, sent: int) -> None:
    head = tensor(data=None, parameters={"binary_data_size": size})
    headers = [(b"inference-header-content-length", b"%d" % len(head))]
    answer = await ask(stand.app, "POST", INFER, headers, head + bytes(sent))
    assert (answer.status, bool(oip_message(answer))) == (400, True)


@pytest.mark.parametrize(
    "body",
    [b"{", b"{}", b'{"instances": []}', b'{"instances": [[]]}', b'{"instances": [[1], "a"]}',
     b'{"instances": [[[1]]]}', b'{"inputs": {}}', b'{"instances": [[1]], "inputs": [[1]]}'],
)  # fmt: skip
async def test_a_bad_predict_body_is_400(stand: Stand, body: bytes) -> None:
    answer = await ask(stand.app, "POST", "/v1/models/device:predict", body=body)
    assert (answer.status, bool(oip_message(answer))) == (400, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"{}", None),
        (b'{"model": "encoder", "input": []}', "input"),
        (b'{"model": "encoder", "input": [[]]}', "input"),
        (b'{"model": "encoder", "input": [1, "a"]}', "input"),
        (b'{"model": "encoder", "input": [-1]}', "input"),
        (b'{"model": "encoder", "input": "text"}', None),
        (b'{"model": "encoder", "input": [1], "dimensions": 3}', "dimensions"),
        (b'{"model": "encoder", "input": [1], "encoding_format": "xml"}', "encoding_format"),
        (b'{"model": "device", "input": [1]}', "model"),
        (b'{"model": "\\ud800", "input": [1]}', None),
    ],
)
async def test_a_bad_embeddings_body_is_400_in_openais_shape(
    stand: Stand, body: bytes, param: str | None
) -> None:
    answer = await ask(stand.app, "POST", "/v1/embeddings", body=body)
    error = openai_error(answer)
    assert answer.status == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def _binary(rows: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    given: dict[str, Any] = {"name": "ids", "datatype": "INT64", "shape": [rows, 1]}
    given["parameters"] = {"binary_data_size": rows * 8}
    header = json.dumps({"inputs": [given]}).encode()
    return [(b"inference-header-content-length", b"%d" % len(header))], header + bytes(rows * 8)


@pytest.mark.parametrize(("rows", "status"), [(4, 200), (5, 400)])
async def test_more_rows_than_may_wait_are_refused_before_there_is_an_object_a_row(
    tmp_path: Path, rows: int, status: int
) -> None:
    model = {**SYNTHETIC, "queue": {"max_rows": 4}}
    async with standing({"device": model}, tmp_path) as stand:
        ids = [[1]] * rows
        bodies = {
            INFER: [tensor(shape=[rows, 1], data=ids)],
            "/v1/models/device:predict": [
                json.dumps({"instances": ids}).encode(),
                json.dumps({"inputs": ids}).encode(),
            ],
        }
        answers = [
            await ask(stand.app, "POST", path, body=body)
            for path, each in bodies.items()
            for body in each
        ]
        answers.append(await ask(stand.app, "POST", INFER, *_binary(rows)))
        assert [answer.status for answer in answers] == [status] * 4
        assert status == 200 or all("queue.max_rows" in oip_message(a) for a in answers)


async def test_rows_are_counted_before_their_data_is_read(stand: Stand) -> None:
    answer = await ask(stand.app, "POST", INFER, body=tensor(shape=[2049, 1], data=["no number"]))
    assert (answer.status, "queue.max_rows" in oip_message(answer)) == (400, True)


async def test_a_small_gzip_body_is_inflated_off_the_loop(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def measure(inflation: Inflation) -> None:
        threads.append(threading.current_thread().name)
        real(inflation)

    real = Inflation.measure
    monkeypatch.setattr(Inflation, "measure", measure)
    zipped = [(b"content-encoding", b"gzip")]
    answer = await ask(stand.app, "POST", INFER, zipped, gzip.compress(GOOD))
    assert answer.status == 200
    assert [name.rpartition("-")[0] for name in threads] == ["preprocess"]


async def test_an_unknown_model_is_404_in_each_protocols_shape(stand: Stand) -> None:
    body = b'{"model": "nope", "input": [1]}'
    answer = await ask(stand.app, "POST", "/v1/embeddings", body=body)
    assert (answer.status, openai_error(answer)["code"]) == (404, "model_not_found")
    for path in ("/v2/models/nope/infer", "/v1/models/nope:predict"):
        answer = await ask(stand.app, "POST", path, body=GOOD)
        assert (answer.status, "nope" in oip_message(answer)) == (404, True)


async def test_another_version_is_404(stand: Stand) -> None:
    answer = await ask(stand.app, "POST", "/v2/models/device/versions/0/infer", body=GOOD)
    assert (answer.status, "version" in oip_message(answer)) == (404, True)


async def test_a_model_that_is_declared_and_not_ready_is_503_with_retry_after(
    stand: Stand,
) -> None:
    stand.models._declared |= {"later"}
    for path in ("/v2/models/later/infer", "/v1/models/later:predict"):
        answer = await ask(stand.app, "POST", path, body=GOOD)
        assert (answer.status, answer.header(b"retry-after")) == (503, b"2")


@pytest.mark.parametrize(
    ("path", "openai"),
    [
        ("/", False),
        ("/v2/", False),
        ("/v2/models", False),
        ("/v2/models/", False),
        ("/v2/models/device/nope", False),
        ("/v2/models/device/versions//infer", False),
        ("/v1", True),
        ("/v1x", False),
        ("/v1/models/device:nope", True),
        ("/v1/models/device:predict/more", True),
        ("/v1/models/a/b:predict", False),
        ("/v1/models/a/b%3Aclassify", False),
        ("/v1/nope", True),
        ("/v1/models/", True),
        ("/v1/models/a/b", True),
        ("/\ufffd\u2028", False),
    ],
)
async def test_an_unknown_path_is_404_in_the_shape_of_its_protocol(
    stand: Stand, path: str, openai: bool
) -> None:
    answer = await ask(stand.app, "GET", path)
    assert answer.status == 404
    assert openai_error(answer) if openai else oip_message(answer)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", INFER, b"POST"),
        ("HEAD", INFER, b"POST"),
        ("OPTIONS", INFER, b"POST"),
        ("PUT", "/v1/embeddings", b"POST"),
        ("POST", "/v2", b"GET, HEAD"),
        ("DELETE", "/v2/models/device", b"GET, HEAD"),
        ("GET", "/v2/repository/index", b"POST"),
        ("BREW", "/docs", b"GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_and_names_the_right_ones(
    stand: Stand, method: str, path: str, allow: bytes
) -> None:
    answer = await ask(stand.app, method, path, body=GOOD)
    assert (answer.status, answer.header(b"allow")) == (405, allow)
    assert (answer.body == b"") == (method == "HEAD")


@pytest.mark.parametrize("origin", [b"https://page.example", b"http://localhost:8000"])
async def test_a_browsers_preflight_is_told_that_there_is_no_cors(
    stand: Stand, origin: bytes
) -> None:
    asked = [(b"host", b"localhost:8000"), (b"origin", origin),
             (b"access-control-request-method", b"POST")]  # fmt: skip
    answer = await ask(stand.app, "OPTIONS", "/v1/chat/completions", asked)
    assert answer.status in (403, 405)
    assert "gateway.cors.origins" in openai_error(answer)["message"]
    assert answer.header(b"access-control-allow-origin") is None


@pytest.mark.parametrize("name", [b"x-timeout-ms", b"x-request-timeout-seconds"])
@pytest.mark.parametrize("value", [b"nan", b"-1", b"0", b"abc", b"", b"inf", b"1e99", b"1_0", VAST])
async def test_a_timeout_that_makes_no_sense_is_400_before_the_body_is_read(
    stand: Stand, name: bytes, value: bytes
) -> None:
    answer = await ask(stand.app, "POST", INFER, [(name, value)], [None])
    assert (answer.status, name.decode() in oip_message(answer)) == (400, True)


async def test_a_priority_nobody_knows_is_400(stand: Stand) -> None:
    answer = await ask(stand.app, "POST", INFER, [(b"x-priority", b"top")], GOOD)
    assert (answer.status, "x-priority" in oip_message(answer)) == (400, True)


async def test_keys_decide_who_may_ask(tmp_path: Path) -> None:
    tenants = {"acme": {"keys": [hash_key(b"hr_right")], "models": ["device"], "max_length": 1}}
    models = {"device": SYNTHETIC, "other": SYNTHETIC}
    async with standing(models, tmp_path, tenants=tenants) as stand:
        right = (b"authorization", b"Bearer hr_right")
        for wrong in ([], [(b"authorization", b"Bearer nope")], [(b"authorization", b"\xff")]):
            answer = await ask(stand.app, "POST", INFER, wrong, GOOD)
            assert (answer.status, bool(oip_message(answer))) == (401, True)
        said = []
        for name in ("other", "undeclared"):  # what there is for others is not told
            answer = await ask(stand.app, "POST", f"/v2/models/{name}/infer", [right], GOOD)
            assert answer.status == 404
            said.append(oip_message(answer).replace(name, "it"))
        assert said[0] == said[1]
        answer = await ask(stand.app, "POST", INFER, [right], GOOD)
        assert (answer.status, "max_length" in oip_message(answer)) == (400, True)
        short = GOOD.replace(b"[1, 2]", b"[1, 1]", 1).replace(b"[1, 2]", b"[1]", 1)
        assert (await ask(stand.app, "POST", INFER, [right], short)).status == 200


# ---- bodies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "status"), [(4096, 400), (4097, 413)])
async def test_a_body_over_the_limit_is_413(stand: Stand, size: int, status: int) -> None:
    answer = await ask(stand.app, "POST", INFER, body=b"x" * size)
    assert answer.status == status


async def test_a_large_body_that_is_refused_unread_closes_the_connection(stand: Stand) -> None:
    headers = [(b"content-length", b"70000")]
    answer = await ask(stand.app, "POST", INFER, headers, [None])
    assert (answer.status, answer.header(b"connection")) == (413, b"close")
    headers = [(b"content-length", b"100"), (b"x-priority", b"top")]
    answer = await ask(stand.app, "POST", INFER, headers, [None])
    assert (answer.status, answer.header(b"connection")) == (400, None)


async def test_chunks_make_one_body(stand: Stand) -> None:
    pieces: list[bytes | None] = [GOOD[at : at + 7] for at in range(0, len(GOOD), 7)]
    assert (await ask(stand.app, "POST", INFER, body=[*pieces, b""])).status == 200


@pytest.mark.parametrize("encoding", [b"br", b"gzip, gzip", b"\xff"])
async def test_an_unknown_encoding_is_415(stand: Stand, encoding: bytes) -> None:
    answer = await ask(stand.app, "POST", INFER, [(b"content-encoding", encoding)], GOOD)
    assert (answer.status, "gzip" in oip_message(answer)) == (415, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not gzip", 400),
        (gzip.compress(GOOD, mtime=0)[:-9], 400),
        (gzip.compress(GOOD, mtime=0) * 2, 400),
        (zlib.compress(GOOD), 400),
        (gzip.compress(b" " * (4 * 4096 + 1), mtime=0), 413),
        (gzip.compress(b" " * 2_000_000, mtime=0), 413),
    ],
)
async def test_gzip_is_bounded_and_must_be_whole(stand: Stand, body: bytes, status: int) -> None:
    answer = await ask(stand.app, "POST", INFER, [(b"content-encoding", b"gzip")], body)
    assert (answer.status, bool(oip_message(answer))) == (status, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not deflate", 400),
        (zlib.compress(GOOD)[:-3], 400),
        (zlib.compress(GOOD) + b"x", 400),
        (gzip.compress(GOOD, mtime=0), 400),
        (zlib.compress(b" " * (4 * 4096 + 1)), 413),
        (zlib.compress(b" " * 2_000_000), 413),
    ],
)
async def test_deflate_is_bounded_and_must_be_whole(stand: Stand, body: bytes, status: int) -> None:
    answer = await ask(stand.app, "POST", INFER, [(b"content-encoding", b"deflate")], body)
    assert answer.status == status
    assert status != 400 or "deflate" in oip_message(answer)


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/v2/trace/setting", "gateway.tracing"),
        ("POST", "/v2/models/device/trace/setting", "gateway.tracing"),
        ("GET", "/v2/logging", "gateway.log"),
        ("POST", "/v2/repository/models/device/load", "headrace apply"),
        ("POST", "/v2/repository/models/device/unload", "headrace apply"),
        ("GET", "/v2/loggings", "GET /docs lists the API"),
    ],
)
async def test_tritons_calls_that_change_a_server_are_told_who_does(
    stand: Stand, method: str, path: str, said: str
) -> None:
    answer = await ask(stand.app, method, path)
    assert (answer.status, said in oip_message(answer)) == (404, True)


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 200), (b'{"ready": true}', 200), (b"{", 400), (b"x" * 4097, 413)]
)
async def test_the_repository_index_takes_a_small_json_body(
    stand: Stand, body: bytes, status: int
) -> None:
    assert (await ask(stand.app, "POST", "/v2/repository/index", body=body)).status == status


async def test_a_page_of_an_unknown_model_is_404(stand: Stand) -> None:
    for path in ("/v2/models/nope", "/v2/models/nope/ready", "/v1/models/nope"):
        assert (await ask(stand.app, "GET", path)).status == 404


async def test_a_fault_of_ours_is_500_and_counted_as_one(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("deployments.gateway.http.codecs.InferCodec.split", broken)
    answer = await ask(stand.app, "POST", INFER, body=GOOD)
    assert (answer.status, "request id" in oip_message(answer)) == (500, True)
    page = (await ask(stand.app, "GET", "/metrics")).body.decode()
    assert any('outcome="error"' in line for line in page.splitlines())
