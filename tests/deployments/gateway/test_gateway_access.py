"""What is public, and who sees how much of the rest: nobody, a tenant, an operator."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Answer, Stand, ask, standing

from deployments.gateway.http import request_head
from deployments.gateway.pages import ADMIN, PUBLIC
from deployments.gateway.tenancy.tenants import hash_key
from deployments.process import audit
from deployments.process.audit import AuditLine

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}
MODELS = {"mine": SYNTHETIC, "theirs": SYNTHETIC}
TENANTS = {
    "acme": {"keys": [{"id": "acme-1", "hash": hash_key("hr_acme")}], "models": ["mine"]},
    "all": {"keys": [{"id": "all-1", "hash": hash_key("hr_all")}]},
}
BODY = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}'
RUN_MODELS = {
    "embeddings",
    "pooling",
    "embed_sparse",
    "classify_texts",
    "rerank",
    "rerank_v2",
    "score",
    "completions",
    "chat",
    "messages",
    "count_tokens",
    "responses",
    "tokenize",
    "detokenize",
}
OF_TENANTS = {"region_status", "region_unregister", "cuda_status", "cuda_unregister"}
OPERATOR = "hr_operator"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(MODELS, tmp_path, tenants=TENANTS) as stand:
        stand.tenants.operators(hash_key(OPERATOR))
        yield stand


async def get(stand: Stand, path: str, key: str = "", method: str = "GET") -> Answer:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    return await ask(stand.app, method, path, headers)


def pages() -> list[tuple[str, str, str]]:
    """Endpoint, method and path of every page of the router that runs no model."""
    fixed = [(r.endpoint, r.methods[0], path) for path, r in request_head._FIXED.items()]
    found = [(e, m, p) for e, m, p in fixed if e not in RUN_MODELS]
    of_models = ("/v2/models/mine", "/v2/models/mine/ready", "/v1/models/mine")
    for path in of_models:
        route = request_head.match(path)
        assert route is not None
        found.append((route.endpoint, "GET", path))
    return found


@pytest.mark.parametrize(("endpoint", "method", "path"), pages())
async def test_nothing_is_answered_without_a_key_but_what_is_public(
    stand: Stand, endpoint: str, method: str, path: str
) -> None:
    for key in ("", "hr_unknown"):
        answer = await get(stand, path, key, method)
        if endpoint in PUBLIC:
            assert answer.status == 200
        else:
            assert answer.status == 401
        assert b"mine" not in answer.body
        assert b"theirs" not in answer.body


@pytest.mark.parametrize(("endpoint", "method", "path"), pages())
async def test_an_operator_reads_every_page(
    stand: Stand, endpoint: str, method: str, path: str
) -> None:
    if endpoint not in ADMIN | OF_TENANTS:
        assert (await get(stand, path, OPERATOR, method)).status == 200


@pytest.mark.parametrize("kind", ["system", "cuda"])
async def test_regions_of_memory_are_a_tenants_and_no_operators(stand: Stand, kind: str) -> None:
    for path, method in (("status", "GET"), ("unregister", "POST"), ("region/r/register", "POST")):
        answer = await get(stand, f"/v2/{kind}sharedmemory/{path}", OPERATOR, method)
        assert answer.status == 403


async def names(stand: Stand, key: str) -> list[set[str]]:
    listed = json.loads((await get(stand, "/v1/models", key)).body)["data"]
    index = json.loads((await get(stand, "/v2/repository/index", key, "POST")).body)
    document = (await get(stand, "/openapi.json", key)).body.decode()
    return [
        {model["id"] for model in listed},
        {model["name"] for model in index},
        {name for name in MODELS if f'"{name}"' in document},
    ]


async def test_a_tenant_sees_its_own_models_alone_in_every_list(stand: Stand) -> None:
    assert await names(stand, "hr_acme") == [{"mine"}] * 3
    assert await names(stand, "hr_all") == [{"mine", "theirs"}] * 3
    assert await names(stand, OPERATOR) == [{"mine", "theirs"}] * 3


async def test_an_alias_is_its_model_to_whom_may_use_that_and_to_others_unknown(
    stand: Stand,
) -> None:
    stand.models.aliases = {"org/Mine-1B": "mine", "org/Theirs": "theirs", "theirs": "mine"}
    listed = json.loads((await get(stand, "/v1/models", "hr_acme")).body)["data"]
    assert [(each["id"], each.get("root")) for each in listed] == [
        ("mine", None), ("org/Mine-1B", "mine"), ("theirs", "mine"),
    ]  # fmt: skip
    for path in ("/v1/models/org/Mine-1B", "/v1/models/org%2FMine-1B"):
        found = json.loads((await get(stand, path, "hr_acme")).body)
        assert (found["id"], found["root"]) == ("org/Mine-1B", "mine")
    refused = await get(stand, "/v1/models/org/Theirs", "hr_acme")
    assert refused.status == 404
    assert "unknown model 'org/Theirs'" in refused.body.decode()
    # A model's own name wins.
    assert (await get(stand, "/v1/models/theirs", "hr_acme")).status == 404


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/rerank", "/v1/completions", "/v1/chat/completions"]
)
async def test_a_body_that_is_too_large_names_no_model_of_others(tmp_path: Path, path: str) -> None:
    """The body was to say which model, so its bound is of the largest."""
    small = SYNTHETIC | {"lengths": {"max": 64}}
    async with standing({"mine": small, "theirs": SYNTHETIC}, tmp_path, tenants=TENANTS) as stand:
        headers = [(b"authorization", b"Bearer hr_acme"), (b"content-length", b"60000000")]
        answer = await ask(stand.app, "POST", path, headers, [b"{", None])
    assert answer.status == 413
    assert b"rows of 64, which 'mine' takes" in answer.body


async def test_metrics_are_for_operators_alone(stand: Stand) -> None:
    assert (await get(stand, "/metrics", "hr_acme")).status == 403
    assert b"headrace_" in (await get(stand, "/metrics", OPERATOR)).body


async def test_readiness_names_no_model_to_those_who_may_not_see_it(stand: Stand) -> None:
    stand.models._declared |= {"theirs-too"}  # and not ready
    assert stand.models.waiting_for == ["theirs-too"]
    stand.models._awaited = {"theirs-too"}
    public = await get(stand, "/readyz")
    assert (public.status, json.loads(public.body)) == (503, {"ready": False})
    assert b"theirs-too" not in (await get(stand, "/readyz", "hr_acme")).body
    assert b"theirs-too" in (await get(stand, "/readyz", OPERATOR)).body


async def test_a_name_is_no_tenants_404_until_all_names_are_known(stand: Stand) -> None:
    """It may be another name of a model that the tenant may use."""
    stand.models._all_known = False
    for name in ("theirs", "their-alias", "mine-too"):
        body = json.dumps({"model": name, "input": [[1]]}).encode()
        headers = [(b"authorization", b"Bearer hr_acme")]
        asked = await ask(stand.app, "POST", "/v1/embeddings", headers, body)
        assert asked.status == (await get(stand, f"/v1/models/{name}", "hr_acme")).status == 503


async def test_a_default_tenant_reads_without_a_key_what_is_its_own(tmp_path: Path) -> None:
    tenants = TENANTS | {"default": {"models": ["theirs"]}}
    async with standing(MODELS, tmp_path, tenants=tenants) as stand:
        assert await names(stand, "") == [{"theirs"}] * 3
        assert (await get(stand, "/metrics")).status == 403


async def test_where_no_keys_are_needed_all_is_as_it_was(tmp_path: Path) -> None:
    tenants: dict[str, Any] = {"acme": {"models": ["mine"]}}
    async with standing(MODELS, tmp_path, tenants=tenants) as stand:
        assert await names(stand, "") == [{"mine", "theirs"}] * 3
        assert (await get(stand, "/metrics")).status == 200
        assert (await get(stand, "/admin/status")).status == 401


async def test_uses_of_an_expired_key_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("headrace.access"), "handle", lines.append)
    old = {"id": "old", "hash": hash_key("hr_old"), "expires": "2001-01-01T00:00:00Z"}
    async with standing(MODELS, tmp_path, tenants={"acme": {"keys": [old]}}) as stand:
        stand.telemetry.refresh()
        refusals = [await get(stand, path, "hr_old") for path in ("/v1/models", "/metrics")]
        headers = [(b"authorization", b"Bearer hr_old")]
        refusals.append(await ask(stand.app, "POST", "/v2/models/mine/infer", headers, BODY))
        assert [answer.status for answer in refusals] == [401] * 3
        assert not any(b"old" in answer.body for answer in refusals)
        page = stand.telemetry.page("")[0].decode()
    assert 'headrace_key_expired_requests_total{gateway="' in page
    assert 'key="old",tenant="acme"} 3.0' in page
    assert 'headrace_key_requests_total{gateway="gateway-0",key="old",tenant="acme"} 3' not in page
    assert [line.key_id for line in lines] == ["old"] * 3  # type: ignore[attr-defined]


async def test_a_keys_first_use_of_a_day_is_audited_however_new_the_key_is(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[AuditLine] = []
    monkeypatch.setattr(audit, "record", lines.append)
    stand.telemetry.refresh()
    stand.tenants.operators(hash_key("hr_new"))
    for key in ("hr_new", "hr_new", "hr_acme"):
        assert (await get(stand, "/v1/models", key)).status == 200
    for _ in range(2):
        stand.telemetry.audit_keys()
    used = {(line.verb, line.object) for line in lines}
    assert (len(lines), used) == (2, {("use", "operator"), ("use", "tenant acme")})


async def test_keys_are_counted_and_refusals_get_a_line(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("headrace.access"), "handle", lines.append)
    stand.telemetry.refresh()
    await get(stand, "/v1/models", "hr_acme")
    headers = [(b"authorization", b"Bearer hr_acme")]
    await ask(stand.app, "POST", "/v2/models/mine/infer", headers, BODY)
    assert (await get(stand, "/metrics", "hr_acme")).status == 403
    page = (await get(stand, "/metrics", OPERATOR)).body.decode()
    assert 'key="acme-1",tenant="acme"} 2.0' in page
    (line,) = lines
    assert (line.status, line.path) == (403, "/metrics")  # type: ignore[attr-defined]
