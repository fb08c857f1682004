"""What the gateway answers, over HTTP, to good and bad requests of every protocol.

The whole gateway in one process. What differs from run to run (ids, times) is masked; everything
else stands as it was sent, the OpenAPI document included.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "deployments"))

from fake_runtimes import Encoder, Shout
from in_process import Answer, Stand, ask

from deployments.gateway.tenancy.tenants import hash_key

SYNTHETIC: dict[str, Any] = {
    "runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 32},
    "queue": {"max_rows": 64},
}  # fmt: skip
MODELS = {
    "device": SYNTHETIC,
    "encoder": {**SYNTHETIC, "task": "embed"},
    "shout": SYNTHETIC,
    "kept": {**SYNTHETIC, "cache": {"max_bytes": 1_000_000}},
}
KEY = "a-key"
TENANTS = {
    "acme": {"keys": ["sha256:" + "0" * 64], "max_length": 4},
    "slow": {"rate": {"requests_per_s": 0.01, "burst_s": 100}},
    "default": {},
}
GATEWAY = {"limits": {"max_body_bytes": 4096, "body_timeout_s": 0.05}}
PATHS = """
/v2 /v2/health/live /v2/health/ready /v2/models/device /v2/models/device/ready
/v2/models/device/config /v2/models/device/versions/7 /v2/models/nope /v2/models/nope/ready
/v1/models /v1/models/device /v1/models/nope /healthz /readyz /openapi.json /docs /metrics
/nowhere /v2/models/device/infer /v1/embeddings
"""
MASKED = re.compile(
    rb"^(x-request-id|x-queue-wait-ms|x-service-time-ms|date|traceparent|tracestate)$"
)
Request = tuple[str, str, tuple[tuple[bytes, bytes], ...], Any]


def pages() -> Mapping[str, bytes]:
    with TemporaryDirectory() as folder:
        open_answers = asyncio.run(_answers(Path(folder), {"slow": TENANTS["slow"], "default": {}}))
        keyed = {**TENANTS, "acme": {"keys": [hash_key(KEY)], "max_length": 4}}
        closed_answers = asyncio.run(_answers(Path(folder), keyed))
    document = open_answers.pop("GET /openapi.json")
    return {
        "openapi.json": json.dumps(json.loads(document["body"]), indent=1).encode(),
        "answers.json": json.dumps(open_answers, indent=1).encode(),
        "answers-with-keys.json": json.dumps(closed_answers, indent=1).encode(),
    }


async def _answers(folder: Path, tenants: dict[str, Any]) -> dict[str, Any]:
    runtimes = {"encoder": Encoder(), "shout": Shout()}
    stand = Stand(MODELS, folder, gateway=GATEWAY, tenants=tenants, runtimes=runtimes)
    keyed = "acme" in tenants
    answers: dict[str, Any] = {}
    try:
        for name, (method, path, headers, body) in (KEYED if keyed else OPEN).items():
            answers[name] = _shown(await ask(stand.app, method, path, headers, body))
            await stand.settled()
    finally:
        stand.close()
    if keyed:
        answers.pop("GET /openapi.json", None)
    return answers


def _shown(answer: Answer) -> dict[str, Any]:
    headers = {
        name.decode(): "*" if MASKED.match(name) else value.decode("latin-1")
        for name, value in sorted(answer.headers)
    }
    try:
        body = re.sub(r'"created":\d+', '"created":0', answer.body.decode())
    except UnicodeDecodeError:
        body = "base64:" + base64.b64encode(answer.body).decode()
    if "text/plain; version" in headers.get("content-type", ""):
        body = "\n".join(re.findall(r"^# (?:HELP|TYPE) .*$", body, re.MULTILINE))
        headers.pop("content-length", None)
    return {"status": answer.status, "headers": headers, "body": body}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _tensor(**changes: Any) -> dict[str, Any]:
    whole = {"name": "ids", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4], **changes}
    return {name: value for name, value in whole.items() if value is not None}


def _infer(model: str = "device", **changes: Any) -> Request:
    return _post(f"/v2/models/{model}/infer", {"inputs": [_tensor()], **changes})


def _post(path: str, body: Any, *headers: tuple[bytes, bytes]) -> Request:
    return "POST", path, headers, body if isinstance(body, bytes | list) else _json(body)


def _binary() -> Request:
    header = _json(
        {
            "inputs": [_tensor(data=None, parameters={"binary_data_size": 32})],
            "outputs": [{"name": "sum", "parameters": {"binary_data": True}}],
        }
    )
    raw = b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 4))
    length = (b"inference-header-content-length", b"%d" % len(header))
    return _post("/v2/models/device/infer", header + raw, length)


def _gets() -> Iterator[tuple[str, Request]]:
    for path in PATHS.split():
        yield f"GET {path}", ("GET", path, (), b"")
    yield "HEAD /v2", ("HEAD", "/v2", (), b"")
    yield "index", _post("/v2/repository/index", b"{}")


def _good() -> Iterator[tuple[str, Request]]:
    yield "infer", _infer()
    yield "infer with an id", _infer(id="mine", outputs=[{"name": "sum"}])
    yield "infer binary", _binary()
    yield (
        "infer bytes",
        _post(
            "/v2/models/shout/infer",
            {
                "inputs": [
                    {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "bc"]}
                ]
            },
        ),
    )
    yield "infer of a version", _post("/v2/models/device/versions/7/infer", {"inputs": [_tensor()]})
    yield "infer gzip", _post(
        "/v2/models/device/infer", gzip.compress(_json({"inputs": [_tensor()]}), mtime=0),
        (b"content-encoding", b"gzip"),
    )  # fmt: skip
    yield "predict", _post("/v1/models/device:predict", {"instances": [[1], [1, 2]]})
    yield "predict columns", _post("/v1/models/device:predict", {"inputs": [[1, 2]]})
    yield "embeddings", _post("/v1/embeddings", {"model": "encoder", "input": [[1, 2], [3]]})
    yield (
        "embeddings base64",
        _post("/v1/embeddings", {"model": "encoder", "input": [1, 2], "encoding_format": "base64"}),
    )
    yield "kept, first", _infer("kept")
    yield "kept, again", _infer("kept")


def _bad() -> Iterator[tuple[str, Request]]:
    infer = "/v2/models/device/infer"
    for text in (b"", b"{", b"[]", b"{}", b'{"inputs": []}', b'{"inputs": 3}', b"\xff"):
        yield f"infer of {text!r}", _post(infer, text)
    for change in (
        {"shape": [3, 2]}, {"shape": [-1, 2]}, {"datatype": "INT32"}, {"datatype": "COMPLEX"},
        {"name": "nope"}, {"name": 7}, {"shape": [1, 33], "data": [1] * 33}, {"data": ["a"] * 4},
        {"shape": [65, 1], "data": [1] * 65}, {"data": None}, {"shape": [0, 2], "data": []},
    ):  # fmt: skip
        yield f"infer with {change!r}"[:90], _post(infer, {"inputs": [_tensor(**change)]})
    yield "unknown output", _infer(outputs=[{"name": "nope"}])
    yield "inputs twice", _post(infer, {"inputs": [_tensor(), _tensor()]})
    yield "unknown model", _infer("nope")
    yield "too large", _post(infer, b"x" * 5000, (b"content-length", b"5000"))
    yield (
        "bomb",
        _post(infer, gzip.compress(b"0" * 20_000, mtime=0), (b"content-encoding", b"gzip")),
    )
    yield "unknown encoding", _post(infer, b"x", (b"content-encoding", b"br"))
    yield "slow body", ("POST", infer, (), [b"{", None])
    yield "bad priority", _post(infer, {"inputs": [_tensor()]}, (b"x-priority", b"royal"))
    yield "bad timeout", _post(infer, {"inputs": [_tensor()]}, (b"x-timeout-ms", b"soon"))
    yield "no time", _post(infer, {"inputs": [_tensor()]}, (b"x-timeout-ms", b"0"))
    yield "unknown tenant", _post(infer, {"inputs": [_tensor()]}, (b"x-tenant", b"nobody"))
    for attempt in (1, 2):
        slow = (b"x-tenant", b"slow")
        yield f"rate, {attempt}", _post(infer, {"inputs": [_tensor()]}, slow)
    for body in (
        {},
        {"instances": []},
        {"instances": [[]]},
        {"instances": [[1], "a"]},
        {"inputs": {}},
    ):
        yield f"predict of {body!r}", _post("/v1/models/device:predict", body)
    for body in (
        {}, {"model": "encoder"}, {"model": "encoder", "input": []},
        {"model": "nope", "input": "a"},
        {"model": "encoder", "input": "text"}, {"model": "device", "input": [1]},
        {"model": "encoder", "input": [1], "dimensions": 3},
        {"model": "encoder", "input": [1], "encoding_format": "xml"},
    ):  # fmt: skip
        yield f"embeddings of {body!r}", _post("/v1/embeddings", body)
    yield "chat of no model", _post("/v1/chat/completions", {"messages": []})
    yield (
        "chat of a tensors model",
        _post("/v1/chat/completions", {"model": "device", "messages": []}),
    )
    yield "completion of nothing", _post("/v1/completions", b"{")
    yield "classify of a tensors model", _post("/v1/models/device:classify", {"instances": ["a"]})


def _keyed() -> Iterator[tuple[str, Request]]:
    for name, value in (
        ("none", b""), ("bearer", b"Bearer " + KEY.encode()), ("wrong", b"Bearer nope"),
        ("basic", b"Basic YTpi"), ("empty", b"Bearer "),
    ):  # fmt: skip
        headers = ((b"authorization", value),) if value else ()
        yield f"key {name}", ("POST", "/v2/models/device/infer", headers, _infer()[3])
        yield f"openai key {name}", (
            "POST", "/v1/embeddings", headers, _json({"model": "encoder", "input": [1]})
        )  # fmt: skip
    long = _json({"inputs": [_tensor(shape=[1, 5], data=[1] * 5)]})
    yield "longer than the tenant may", (
        "POST", "/v2/models/device/infer", ((b"authorization", b"Bearer " + KEY.encode()),), long
    )  # fmt: skip
    yield "a tenant asked for by name", (
        "POST", "/v2/models/device/infer", ((b"x-tenant", b"acme"),), long
    )  # fmt: skip


OPEN: dict[str, Request] = dict([*_gets(), *_good(), *_bad()])
KEYED: dict[str, Request] = dict(_keyed())
