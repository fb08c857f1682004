"""The operator's pages: closed without a key, and what they answer with one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Answer, Stand, ask, standing

from deployments.contract.errors import Unauthorized
from deployments.gateway import pages
from deployments.gateway.app import assembled
from deployments.gateway.tenancy.live_tenants import LiveTenants, PublishedTenants, RevokedKeys
from deployments.gateway.tenancy.tenants import hash_key, new_key
from deployments.process import audit

KEY, HASH = new_key()
BEARER = {"authorization": f"Bearer {KEY}"}


class Actor:
    """The registry's handle: answers, or is away."""

    def __init__(self) -> None:
        self.server_status = self
        self.fault: Exception | None = None

    async def remote(self) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        return {"models": [{"name": "device"}], "gateways": 1}


async def operate(
    stand: Stand, method: str, path: str, headers: dict[str, str], body: bytes = b""
) -> Answer:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return await ask(stand.app, method, path, raw, body)


@pytest.fixture
def actor() -> Actor:
    return Actor()


@pytest.fixture
async def stand(tmp_path: Path, actor: Actor) -> AsyncIterator[Stand]:
    models = {"device": {"runtime": "synthetic", "options": {"base_ms": 0}}}
    async with standing(models, tmp_path) as stand:
        stand.app = assembled(
            stand.settings, stand.tenants, stand.models, stand.pool, stand.telemetry, actor
        )
        stand.tenants.operators(HASH)
        yield stand


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "an operator's key is required"),
        ({"authorization": f"Basic {KEY}"}, "must be `Bearer <key>`"),
        ({"authorization": "Bearer hr_other"}, "unknown, expired or revoked"),
        ({"authorization": f"Bearer {HASH}"}, "unknown, expired or revoked"),
    ],
)
async def test_without_an_operators_key_the_pages_are_closed(
    stand: Stand, headers: dict[str, str], said: str
) -> None:
    for method, path in (("GET", "/admin/status"), ("PUT", "/admin/controllers")):
        answer = await operate(stand, method, path, headers, b'{"frozen": true}')
        assert answer.status == 401
        assert said in answer.body.decode()
    assert not stand.tenants.frozen


async def test_where_no_operator_has_a_key_nobody_is_one(stand: Stand) -> None:
    stand.tenants.operators()
    answer = await operate(stand, "GET", "/admin/status", BEARER)
    assert answer.status == 401
    assert "no operator has a key" in answer.body.decode()


async def test_the_state_of_the_whole_server_is_the_registrys(stand: Stand, actor: Actor) -> None:
    answer = await operate(stand, "GET", "/admin/status", BEARER)
    assert answer.status == 200
    assert json.loads(answer.body) == {"models": [{"name": "device"}], "gateways": 1}
    actor.fault = ConnectionError("gone")
    answer = await operate(stand, "GET", "/admin/status", BEARER)
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")


async def test_the_switch_of_the_controllers_is_published(stand: Stand) -> None:
    for frozen in (True, False):
        body = json.dumps({"frozen": frozen}).encode()
        answer = await operate(stand, "PUT", "/admin/controllers", BEARER, body)
        assert (answer.status, json.loads(answer.body)) == (200, {"frozen": frozen})
        assert stand.tenants.frozen is frozen


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"frozen": 1}', b'{"frozen": true, "x": 1}', b'{"fro\xff": true}', b"[" * 4000,
     b'{"frozen": true, "\\ud800": 1}'],
)  # fmt: skip
async def test_a_switch_that_says_something_else_is_refused(stand: Stand, body: bytes) -> None:
    answer = await operate(stand, "PUT", "/admin/controllers", BEARER, body)
    assert answer.status == 400
    assert "frozen" in answer.body.decode()


async def test_a_key_is_revoked_through_a_gateway(tmp_path: Path, actor: Actor) -> None:
    store: set[str] = set()
    text = f"tenants: {{acme: {{keys: [{{id: laptop, hash: '{hash_key('hr_a')}'}}]}}}}\n"
    text += f"operators: {{keys: ['{HASH}']}}\n"
    live = LiveTenants(
        PublishedTenants(lambda: text), revoked=RevokedKeys(lambda: frozenset(store), store.add)
    )
    models = {"device": {"runtime": "synthetic", "options": {"base_ms": 0}}}
    async with standing(models, tmp_path) as stand:
        stand.app = assembled(
            stand.settings, live, stand.models, stand.pool, stand.telemetry, actor
        )
        revoke = ("POST", "/admin/keys/revoke")
        answer = await operate(stand, *revoke, BEARER, b'{"key": "gone"}')
        assert (answer.status, "there are: laptop" in answer.body.decode()) == (400, True)
        assert (await operate(stand, *revoke, {}, b'{"key": "laptop"}')).status == 401
        answer = await operate(stand, *revoke, BEARER, b'{"key": "laptop"}')
        assert json.loads(answer.body) == {
            "revoked": "laptop", "owner": "tenant acme", "hash": hash_key("hr_a"),
            "folder": False,
        }  # fmt: skip
        rows = json.loads((await operate(stand, "GET", "/admin/keys", BEARER)).body)["keys"]
        assert {row["id"]: row["state"] for row in rows}["laptop"] == "revoked"
        with pytest.raises(Unauthorized):
            live.current.identify(b"Bearer hr_a", None, None)


@pytest.mark.parametrize(
    ("forwarded", "source"),
    [
        (None, "?"),  # this stand has no connections
        ("203.0.113.7", "203.0.113.7"),
        ("6.6.6.6, 2001:db8::7", "2001:db8::7"),  # the last is HAProxy's or a trusted proxy's word
        ("not an address", "?"),
    ],
)
async def test_the_audit_names_who_asked_haproxy(
    stand: Stand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forwarded: str | None,
    source: str,
) -> None:
    monkeypatch.setenv(audit.AUDIT_FILE, str(tmp_path / "audit.jsonl"))
    headers = BEARER | ({} if forwarded is None else {"x-forwarded-for": forwarded})
    await operate(stand, "PUT", "/admin/controllers", headers, b'{"frozen": true}')
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(line)["source"] == f"gateway, {source}"


async def test_a_store_that_does_not_answer_is_503(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(stand.tenants, "revoke", away)
    answer = await operate(stand, "POST", "/admin/keys/revoke", BEARER, b'{"key": "k"}')
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")


async def test_a_registry_that_hangs_is_503_in_time(
    stand: Stand, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(pages, "_STATUS_S", 0.001)
    monkeypatch.setattr(actor, "remote", hangs)
    answer = await operate(stand, "GET", "/admin/status", BEARER)
    assert answer.status == 503
