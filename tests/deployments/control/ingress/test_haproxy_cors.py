"""What the real HAProxy, and the gateway's own server, say to pages of answers that no gateway
gave, and that HAProxy leaves a gateway's own word as it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from real_haproxy import in_front_of

from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.gateway.http.direct_server import DirectServer
from deployments.settings.gateway import GatewaySettings

PAGE, OTHER = "https://app.example.org", "https://evil.example"
ORIGINS = [*(f"http://localhost:{n}" for n in range(3000, 3040)), PAGE]
TOO_LARGE = "x: " + "y" * 20_000


async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with its own word at /own, with none elsewhere."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            own = b"access-control-allow-origin: own\r\nvary: Accept, Origin\r\n"
            said = own * head.startswith(b"GET /own ")
            writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: 0\r\n\r\n" % said)
    writer.close()


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def at_haproxy(
    folder: Path, origins: list[str], *, credentials: bool = False, gateways: int = 1
) -> AsyncIterator[int]:
    servers = [await asyncio.start_server(gateway, "127.0.0.1", 0) for _ in range(gateways)]
    told = {"CORS_ORIGINS": " ".join(origins), "CORS_CREDENTIALS": int(credentials)}
    async with in_front_of(*servers, folder=folder, **told, PATH_PREFIX="/p") as url:
        yield urlsplit(url).port or 0


@asynccontextmanager
async def at_its_own_server(
    folder: Path, origins: list[str], *, credentials: bool = False
) -> AsyncIterator[int]:
    held = IngressSocket("127.0.0.1", 0, folder / "ingress.sock")
    cors = {"origins": origins, "credentials": credentials} if origins else None
    settings = {"cors": cors, "path_prefix": "/p", "limits": {"body_timeout_s": 0.2}}
    server = DirectServer(app, GatewaySettings.model_validate(settings))
    await server.start(str(folder / "ingress.sock"))
    try:
        yield held._listening.getsockname()[1]
    finally:
        server.should_exit = True
        server.close()
        await asyncio.to_thread(held.close)


At = Callable[..., contextlib.AbstractAsyncContextManager[int]]
BOTH = [pytest.param(at_haproxy, marks=pytest.mark.slow), at_its_own_server]


async def asked(port: int, path: str, origin: str = "", *lines: str) -> tuple[str, dict[str, str]]:
    """The status, and each header once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = [f"origin: {origin}"] if origin else []
    head = [f"GET {path} HTTP/1.1", "host: x", *said, *lines, "", ""]
    writer.write("\r\n".join(head).encode())
    async with asyncio.timeout(10):
        found = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    first, *rest = found.split("\r\n")[:-2]
    headers = dict(line.lower().split(": ", 1) for line in rest)
    assert len(headers) == len(rest)
    return first.split()[1], headers


ALLOW = "access-control-allow-origin"


@pytest.mark.parametrize("at", BOTH)
async def test_a_listed_page_can_read_a_refusal(at: At, tmp_path: Path):
    async with at(tmp_path, ORIGINS) as port:
        for path, line, status in (
            ("/v1/models", TOO_LARGE, "431"),
            ("/p/v1/models", TOO_LARGE, "431"),
            ("/v1//models", "x: y", "404"),
        ):
            for page in (PAGE, ORIGINS[0], ORIGINS[20]):
                found, said = await asked(port, path, page, line)
                assert (found, said[ALLOW], said["vary"]) == (status, page, "origin")
                assert "retry-after" in said["access-control-expose-headers"]
                assert "access-control-allow-credentials" not in said
            for page in (OTHER, "null", PAGE + ".evil", "", f"{PAGE}, {OTHER}", f"{OTHER}, {PAGE}"):
                found, said = await asked(port, path, page, line)
                assert (found, said["vary"]) == (status, "origin")
                assert [name for name in said if name.startswith("access-control")] == []


@pytest.mark.parametrize("at", BOTH)
async def test_of_the_operators_pages_it_can_read_nothing(at: At, tmp_path: Path):
    async with at(tmp_path, ORIGINS) as port:
        for path in ("/admin/status", "/p/admin/status"):
            status, said = await asked(port, path, PAGE, TOO_LARGE)
            assert (status, ALLOW in said) == ("431", False)


@pytest.mark.parametrize("at", BOTH)
async def test_any_origin_and_credentials_are_said_as_they_are_set(at: At, tmp_path: Path):
    async with at(tmp_path, ["*"]) as port:
        for page in (OTHER, ""):  # a cache may keep what no page asked for
            _, said = await asked(port, "/v2", page, TOO_LARGE)
            assert (said[ALLOW], "vary" in said) == ("*", False)
            _, said = await asked(port, "/p/admin/status", page, TOO_LARGE)
            assert ALLOW not in said
    (tmp_path / "admin.sock").unlink(missing_ok=True)
    (tmp_path / "ingress.sock").unlink(missing_ok=True)
    async with at(tmp_path, [PAGE], credentials=True) as port:
        _, said = await asked(port, "/v2", PAGE, TOO_LARGE)
        assert said["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize("at", BOTH)
async def test_without_the_setting_nothing_is_said_of_refusals(at: At, tmp_path: Path):
    async with at(tmp_path, []) as port:
        _, said = await asked(port, "/v2", PAGE, TOO_LARGE)
        assert [name for name in said if name.startswith("access-control") or name == "vary"] == []


async def test_a_body_that_comes_late_is_refused_readably(tmp_path: Path):
    async with at_its_own_server(tmp_path, ORIGINS) as port:
        status, said = await asked(port, "/p/v2/models/m/infer", PAGE, "content-length: 5")
        assert (status, said[ALLOW]) == ("408", PAGE)


@pytest.mark.slow
async def test_a_gateways_own_word_stays_and_a_lost_gateways_is_said(tmp_path: Path):
    async with at_haproxy(tmp_path, ORIGINS) as port:
        status, said = await asked(port, "/own", PAGE)
        assert (status, said[ALLOW], said["vary"]) == ("200", "own", "accept, origin")
        assert "access-control-expose-headers" not in said
        assert (await asked(port, "/else", PAGE))[1][ALLOW] == PAGE
    (tmp_path / "admin.sock").unlink(missing_ok=True)
    async with at_haproxy(tmp_path, ORIGINS, gateways=0) as port:
        status, said = await asked(port, "/v2", PAGE)
        assert (status, said[ALLOW]) == ("503", PAGE)
        assert said["retry-after"]


@pytest.mark.slow
@pytest.mark.parametrize("origins", [ORIGINS, ["*"]])
async def test_of_another_applications_answers_nothing_is_said(tmp_path: Path, origins: list[str]):
    ours, theirs = [await asyncio.start_server(gateway, "127.0.0.1", 0) for _ in range(2)]
    told = {"CORS_ORIGINS": " ".join(origins), "other": theirs.sockets[0].getsockname()[1]}
    async with theirs, in_front_of(ours, folder=tmp_path, **told) as url:
        port = urlsplit(url).port or 0
        _, said = await asked(port, "/other/x", PAGE)
        assert [name for name in said if name.startswith("access-control") or name == "vary"] == []
        assert ALLOW in (await asked(port, "/else", PAGE))[1]
