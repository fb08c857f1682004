"""Whatever is sent, no answer is a 500, every error has its protocol's shape, nothing is left."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_runtimes import Encoder, Shout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import Answer, Stand, ask

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 32}}
GATEWAY = {"limits": {"max_body_bytes": 2048, "body_timeout_s": 0.005}, "shared_memory": {}}
URLS = ["https://127.0.0.1/x", "data:,aa", "data:;base64,AAAA", "s3://b/k", "", "https://[::1]/"]
MODELS = st.sampled_from(["device", "encoder", "shout", "nope", "", "%00", "..", "dev ice"])
Asker = Callable[..., Answer]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """One stand for all examples, on a loop of its own; empty after each request."""
    loop = asyncio.new_event_loop()
    models = {"device": SYNTHETIC, "encoder": {**SYNTHETIC, "task": "embed"}, "shout": SYNTHETIC}

    async def build() -> Stand:
        fakes = {"encoder": Encoder(), "shout": Shout()}
        return Stand(models, tmp_path_factory.mktemp("fuzz"), gateway=GATEWAY, runtimes=fakes)

    stand = loop.run_until_complete(build())

    async def one(*request: Any) -> Answer:
        answer = await ask(stand.app, *request)
        await stand.settled()
        return answer

    yield lambda *request: loop.run_until_complete(one(*request))

    async def close() -> None:
        stand.close()

    loop.run_until_complete(close())
    loop.close()


PAGES = (
    "/v1/embeddings /embed_sparse /v2 /v2/health/ready /v2/repository/index /metrics /docs"
    " /v1/models /openapi.json /readyz /v2/systemsharedmemory/status /v2/cudasharedmemory/status"
    " /v2/systemsharedmemory/region/r/register /v2/systemsharedmemory/unregister"
)
paths = st.one_of(
    st.sampled_from(PAGES.split()),
    st.builds("/v2/models/{}/{}".format, MODELS, st.sampled_from(["infer", "ready", "", "x"])),
    st.builds("/v2/models/{}/versions/{}/infer".format, MODELS, MODELS),
    st.builds("/v1/models/{}:predict".format, MODELS),
    st.text(max_size=20).map(lambda text: "/" + text.encode("utf-8", "replace").decode()),
)
values = st.one_of(
    st.sampled_from([b"", b"nan", b"-1", b"1", b"1e400", b"gzip", b"top", b"bulk", b"chunked"]),
    st.integers(0, 300).map(lambda n: b"%d" % n),
    st.binary(max_size=12),
)
names = st.sampled_from(
    [b"content-length", b"content-encoding", b"inference-header-content-length", b"x-timeout-ms",
     b"x-request-timeout-seconds", b"x-priority", b"x-tenant", b"authorization", b"traceparent",
     b"x-request-id", b"x-request-start", b"accept", b"host", b"transfer-encoding"]
)  # fmt: skip
words = st.sampled_from(
    ["name", "shape", "datatype", "data", "inputs", "outputs", "parameters", "id", "instances",
     "model", "input", "ids", "types", "text", "binary_data_size", "b64", "encoder", "INT64",
     "BYTES", "FP32", "BF16", "encoding_format", "base64", "dimensions", "binary_data", "url",
     "shared_memory_region", "shared_memory_byte_size", "key", "byte_size", "offset"]
)  # fmt: skip
numbers = st.one_of(st.integers(-3, 3), st.integers(), st.floats())
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
tensor = st.fixed_dictionaries(
    {"name": st.sampled_from(["ids", "types", "text"]), "shape": st.lists(st.integers(0, 3))},
    optional={
        "datatype": st.sampled_from(["INT64", "BYTES", "FP32", "FP16"]),
        "data": st.one_of(st.lists(st.integers(0, 9), max_size=6), anything),
        "parameters": st.one_of(
            st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20)}),
            st.fixed_dictionaries(
                {"shared_memory_region": words, "shared_memory_byte_size": st.integers(-1, 20)}
            ),
            st.fixed_dictionaries({"url": st.sampled_from(URLS)}),
        ),
    },
)
calls = st.one_of(
    anything,
    st.fixed_dictionaries({"inputs": st.lists(tensor, max_size=3)}, optional={"outputs": anything}),
    st.fixed_dictionaries({"instances": st.lists(anything, max_size=3)}),
    st.fixed_dictionaries({"model": MODELS, "input": anything}, optional={"dimensions": anything}),
)
bodies = st.one_of(
    st.binary(max_size=60),
    calls.map(lambda call: json.dumps(call).encode()),
    calls.map(lambda call: gzip.compress(json.dumps(call).encode())),
    calls.map(lambda call: json.dumps(call).encode()[:-1]),
    st.just(b"x" * 3000),
)


def _cut_short(body: bytes) -> list[bytes | None]:
    return [body[:9], None]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "\xe9"]),
    path=paths,
    headers=st.lists(st.tuples(names, values), max_size=3),
    body=st.one_of(bodies, bodies.map(lambda body: [body[:9], body[9:]]), bodies.map(_cut_short)),
)
def test_no_request_makes_a_500(
    asked: Asker, method: str, path: str, headers: list[tuple[bytes, bytes]], body: Any
) -> None:
    answer = asked(method, path, headers, body)
    assert answer.status != 500
    assert 200 <= answer.status < 600
    assert answer.header(b"x-request-id")
    if answer.status >= 400 and answer.body and b"ready" not in answer.body:
        error = json.loads(answer.body)["error"]
        is_openais = path == "/embed_sparse" or (path.startswith("/v1/") and ":" not in path)
        assert isinstance(error, dict) == is_openais
