"""What pages of other origins are told, by a gateway and by its own server for callers."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import Answer, Stand, ask
from pydantic import ValidationError

from deployments.gateway.http import cors
from deployments.gateway.http.protocols import openapi
from deployments.settings.gateway import CorsSettings, GatewaySettings

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 1000}}
INFER = "/v2/models/device/infer"
GOOD = b'{"inputs": [{"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [20, 22]}]}'
PAGE = "https://app.example.org"
LISTED = {"origins": [PAGE, "http://[::1]:3000"], "headers": ["x-custom"]}
ANY = {"origins": ["*"]}
SAFE = {"cache-control", "content-language", "content-length", "content-type", "expires",
        "last-modified", "pragma"}  # fmt: skip


def stand(folder: Path, found: dict[str, object] | None, **more: object) -> Stand:
    return Stand({"device": MODEL}, folder, gateway={"cors": found}, **more)  # type: ignore[arg-type]


def of_page(origin: str = PAGE, **more: str) -> list[tuple[bytes, bytes]]:
    named = {"host": "localhost:8000", "origin": origin, **more}
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


def preflight(origin: str = PAGE, **more: str) -> list[tuple[bytes, bytes]]:
    return of_page(origin, access_control_request_method="POST", **more)


def said(answer: Answer) -> dict[str, str]:
    names = [name for name, _ in answer.headers]
    assert len([n for n in names if n.startswith(b"access-control") or n == b"vary"]) == len(
        {n for n in names if n.startswith(b"access-control") or n == b"vary"}
    )
    return {name.decode(): value.decode() for name, value in answer.headers}


@pytest.mark.parametrize(
    "path", [INFER, "/v1/chat/completions", "/v1/models", "/nowhere", "/readyz", "/docs"]
)
@pytest.mark.parametrize("keys", [False, True])
async def test_a_preflight_is_answered_for_every_path(tmp_path: Path, path: str, keys: bool):
    tenants = {"acme": {"keys": ["sha256:" + "0" * 64]}} if keys else {}
    it = stand(tmp_path, LISTED, tenants=tenants)
    answer = await ask(it.app, "OPTIONS", path, preflight(), [None])
    found = said(answer)
    assert (answer.status, answer.body) == (200, b"")
    assert found["access-control-allow-origin"] == PAGE
    assert found["vary"] == "Origin"
    assert found["access-control-allow-methods"] == "GET, HEAD, POST"
    assert "access-control-allow-credentials" not in found
    assert int(found["access-control-max-age"]) > 600
    allowed = found["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "x-tenant", "x-timeout-ms", "x-custom"} <= {*allowed}
    assert len(allowed) == len({*allowed})
    it.close()


async def test_a_private_network_is_opened_only_to_who_asks(tmp_path: Path):
    it = stand(tmp_path, ANY)
    name = "access-control-allow-private-network"
    asked = preflight(access_control_request_private_network="true")
    assert said(await ask(it.app, "OPTIONS", INFER, asked))[name] == "true"
    assert name not in said(await ask(it.app, "OPTIONS", INFER, preflight()))
    it.close()


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        (INFER, "https://evil.example"),
        (INFER, "https://app.example.org.evil.example"),
        (INFER, "http://app.example.org"),
        (INFER, "https://app.example.org:444"),
        (INFER, "https://APP.example.org"),
        (INFER, "null"),
        (INFER, ""),
        ("/admin/status", PAGE),
        ("/admin/keys/revoke", PAGE),
    ],
)
async def test_others_and_the_operators_pages_get_no_word(tmp_path: Path, path: str, origin: str):
    it = stand(tmp_path, LISTED)
    for answer in (
        await ask(it.app, "OPTIONS", path, preflight(origin)),
        await ask(it.app, "POST", path, of_page(origin), GOOD),
    ):
        assert answer.status == 403
        assert b"gateway.cors.origins" in answer.body
        assert [name for name in said(answer) if name.startswith("access-control")] == []
    it.close()


@pytest.mark.parametrize("path", ["/admin/status", "/admin/keys/revoke"])
async def test_any_origin_is_none_of_the_operators(tmp_path: Path, path: str):
    it = stand(tmp_path, ANY)
    answer = await ask(it.app, "OPTIONS", path, preflight())
    assert (answer.status, answer.header(b"access-control-allow-origin")) == (403, None)
    it.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", INFER, GOOD, 200),
        ("GET", "/v1/models", b"", 200),
        ("HEAD", "/v1/models", b"", 200),
        ("GET", "/readyz", b"", 200),
        ("POST", INFER, b"{", 400),
        ("POST", "/v2/models/nobody/infer", GOOD, 404),
        ("GET", "/nowhere", b"", 404),
        ("DELETE", INFER, b"", 405),
        ("OPTIONS", INFER, b"", 405),
    ],
)
async def test_every_answer_can_be_read_by_a_listed_page(
    tmp_path: Path, method: str, path: str, body: bytes, status: int
):
    it = stand(tmp_path, LISTED)
    answer = await ask(it.app, method, path, of_page(), body)
    found = said(answer)
    assert answer.status == status
    assert (found["access-control-allow-origin"], found["vary"]) == (PAGE, "Origin")
    exposed = {*found["access-control-expose-headers"].split(", ")}
    read = {n for n in found if not n.startswith("access-control") and n != "vary"}
    assert read <= exposed | SAFE | {"via"}  # this test is no connection of the gateway's own
    it.close()


async def test_what_the_documents_say_of_answers_is_exposed(tmp_path: Path):
    it = stand(tmp_path, ANY)
    document = await ask(it.app, "GET", "/openapi.json")
    exposed = {*cors.SAID.split(", ")}
    assert {*openapi._ANSWER_HEADERS} <= exposed
    assert b"x-request-id" in document.body
    it.close()


async def test_any_origin_is_said_as_it_is_and_varies_by_nothing(tmp_path: Path):
    it = stand(tmp_path, ANY)
    found = said(await ask(it.app, "POST", INFER, of_page("https://any.example"), GOOD))
    assert found["access-control-allow-origin"] == "*"
    assert "vary" not in found
    it.close()


async def test_any_origin_is_said_to_who_names_none_since_a_cache_may_keep_it(tmp_path: Path):
    it = stand(tmp_path, ANY)
    for path, status, expected in (("/docs", 200, "*"), ("/v1/models", 200, "*"),
                                   ("/nowhere", 404, "*"),
                                   ("/admin/status", 401, None)):  # fmt: skip
        answer = await ask(it.app, "GET", path, [(b"host", b"localhost")])
        assert answer.status == status
        assert said(answer).get("access-control-allow-origin") == expected
    it.close()


async def test_credentials_are_allowed_where_the_settings_say_so(tmp_path: Path):
    it = stand(tmp_path, {**LISTED, "credentials": True})
    for asked in (
        ask(it.app, "POST", INFER, of_page(), GOOD),
        ask(it.app, "OPTIONS", INFER, preflight()),
    ):
        assert said(await asked)["access-control-allow-credentials"] == "true"
    it.close()


async def test_a_cache_learns_that_answers_differ_though_no_page_asked(tmp_path: Path):
    it = stand(tmp_path, LISTED)
    found = said(await ask(it.app, "GET", "/v1/models", [(b"host", b"localhost")]))
    assert found["vary"] == "Origin"
    assert "access-control-allow-origin" not in found
    it.close()


async def test_without_the_setting_nothing_is_said(tmp_path: Path):
    it = stand(tmp_path, None)
    for found in (
        said(await ask(it.app, "GET", "/v1/models", of_page())),
        said(await ask(it.app, "POST", INFER, of_page(), GOOD)),
    ):
        assert [n for n in found if n.startswith("access-control") or n == "vary"] == []
    it.close()


async def test_a_listed_page_does_not_make_a_foreign_host_ours(tmp_path: Path):
    it = stand(tmp_path, ANY)
    asked = [(b"host", b"rebound.example"), (b"origin", PAGE.encode())]
    assert (await ask(it.app, "POST", INFER, asked, GOOD)).status == 403
    it.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"origins": ["*"], "credentials": True}, "lets no browser send credentials"),
        ({"origins": ["*", PAGE]}, r"`\*` alone"),
        ({"origins": []}, "1 to 200"),
        ({"origins": [f"https://a{n}.example" for n in range(201)]}, "1 to 200"),
        ({"origins": ["https://a.example:443"]}, r"must be https://a\.example$"),
        ({"origins": ["http://a.example:80"]}, r"must be http://a\.example$"),
        (
            {"origins": ["https://a.example:0443"]},
            "has port 0443, which no browser sends; must be 1",
        ),
        ({"origins": ["https://a.example:0"]}, "has port 0, which no browser sends"),
        ({"origins": ["http://[::1]:65536"]}, "has port 65536, which no browser sends"),
        ({"origins": ["https://a.example/"]}, "pattern"),
        ({"origins": ["https://A.example"]}, "pattern"),
        ({"origins": ["a.example"]}, "pattern"),
        ({"origins": ["https://*.example"]}, "pattern"),
        ({"origins": ["https://a.example' "]}, "pattern"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object], message: str):
    with pytest.raises(ValidationError) as refused:
        CorsSettings.model_validate(given)
    (mistake,) = refused.value.errors()
    assert pytest.raises(AssertionError, match=message).matches(AssertionError(mistake["msg"]))


def test_another_port_than_the_schemes_own_is_taken():
    for origin in (
        *("http://a.example:443", "https://a.example:80", "http://localhost:8080"),
        *("https://a.example:65535", "http://[::1]", "http://[::1]:1", "http://[2001:db8::0]"),
    ):
        GatewaySettings.model_validate({"cors": {"origins": [origin]}})
