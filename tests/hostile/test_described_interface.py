"""What `/openapi.json` says of each operation, held against a gateway: requests drawn from its
schemas and examples, whole or with one thing wrong, get an answer that it lists, of a type and a
shape that it lists. Of each operation 100; `--hypothesis-profile fuzz`, 17,000."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fake_runtimes import Encoder, Shout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import Answer, Stand, ask
from schema_values import KNOWN, check, resolved, values

from deployments.gateway.http.protocols import openapi
from deployments.settings.gateway import PRIORITIES

SYNTHETIC = {
    "runtime": "synthetic", "version": "1", "options": {"base_ms": 0}, "lengths": {"max": 32}
}  # fmt: skip
GATEWAY = {"limits": {"max_body_bytes": 4096, "body_timeout_s": 0.005}, "shared_memory": {}}
DOCUMENT = json.loads(openapi.document([], "http://localhost", PRIORITIES))
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, item.get("parameters", []), operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in ("get", "post")
}
NAMES = {"model": ["device", "encoder", "shout"], "version": ["1"], "region": ["r", "s"]}
Asked = Callable[..., Answer]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """One stand for all examples, on a loop of its own."""
    loop = asyncio.new_event_loop()
    models = {"device": SYNTHETIC, "encoder": {**SYNTHETIC, "task": "embed"}, "shout": SYNTHETIC}

    async def build() -> Stand:
        fakes = {"encoder": Encoder(), "shout": Shout()}
        return Stand(models, tmp_path_factory.mktemp("described"), gateway=GATEWAY, runtimes=fakes)

    async def close() -> None:
        await stand.settled()
        stand.close()

    stand = loop.run_until_complete(build())
    yield lambda *request: loop.run_until_complete(ask(stand.app, *request))
    loop.run_until_complete(close())
    loop.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_one_that_the_document_describes(asked: Asked, name: str) -> None:
    method, path, _, operation = OPERATIONS[name]
    shown = json.loads(asked("GET", "/openapi.json").body)["paths"][path][method.lower()]
    examples = [each["value"] for each in _of_json(shown).get("examples", {}).values()]

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.data())
    def described(data: st.DataObject) -> None:
        answer = asked(method, *_request(data, name, examples))
        assert str(answer.status) in operation["responses"], answer.body
        said = resolved(operation["responses"][str(answer.status)], DOCUMENT)
        media = (answer.header(b"content-type") or b"").decode()
        listed = {kind.partition(";")[0]: each for kind, each in said.get("content", {}).items()}
        kind = media.partition(";")[0]
        assert kind in listed, (answer.status, media)
        if kind == "application/json":
            check(listed[kind]["schema"], DOCUMENT, json.loads(answer.body))

    described()


def _of_json(operation: dict[str, Any]) -> dict[str, Any]:
    return operation.get("requestBody", {}).get("content", {}).get("application/json", {})


def _request(
    data: st.DataObject, name: str, examples: list[Any]
) -> tuple[str, list[tuple[bytes, bytes]], bytes]:
    """Path, headers, body."""
    _, path, shared, operation = OPERATIONS[name]
    every = [resolved(each, DOCUMENT) for each in (*shared, *operation.get("parameters", ()))]
    headers = [(b"host", b"localhost")]
    for each in every:
        if each["in"] == "path":
            other = data.draw(st.integers(0, 9)) == 0
            known = st.sampled_from(NAMES[each["name"]])
            text = st.text(min_size=1, max_size=5).filter(lambda text: text != "stats")  # a page
            named = data.draw(text if other else known)
            path = path.replace(f"{{{each['name']}}}", quote(named, safe=""))
        elif each["in"] == "header" and data.draw(st.integers(0, 19)) == 0:
            value = str(data.draw(values(each["schema"], DOCUMENT)))
            headers.append((each["name"].encode(), value.encode("latin-1", "replace")))
    return path, headers, _body(data, _of_json(operation), examples)


def _body(data: st.DataObject, described: dict[str, Any], examples: list[Any]) -> bytes:
    if not described:
        return b""
    drawn = values(described["schema"], DOCUMENT)
    value = data.draw(st.sampled_from(examples) | drawn if examples else drawn)
    value = dict(value) if isinstance(value, dict) else value
    if isinstance(value, dict) and value and data.draw(st.integers(0, 3)) == 0:
        wrong = st.none() | st.sampled_from([*KNOWN, [], {}, -1, 1e300, True])
        value[data.draw(st.sampled_from(sorted(value)))] = data.draw(wrong)
    return json.dumps(value).encode()
