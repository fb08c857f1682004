"""Whom trusted proxies name as the caller: the same table for the gateway's own server and for the
real HAProxy before a server that says what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy_rules
from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.gateway.http import forwarded
from deployments.gateway.http.direct_server import DirectServer
from deployments.settings.gateway import GatewaySettings

TRUSTED = ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8", *(f"172.16.{n}.0/24" for n in range(40))]
PEER = "127.0.0.1"
# What the proxy says; the address that counts, and what is said of scheme and host.
CASES: dict[str, tuple[list[str], str, str, str]] = {
    "nothing": ([], PEER, "", ""),
    "one": (["x-forwarded-for: 6.6.6.6"], "6.6.6.6", "", ""),
    "the last of two": (["x-forwarded-for: 6.6.6.6, 7.7.7.7"], "7.7.7.7", "", ""),
    "two lines": (["x-forwarded-for: 6.6.6.6", "x-forwarded-for: 7.7.7.7"], "7.7.7.7", "", ""),
    "behind a trusted one": (["x-forwarded-for: 6.6.6.6, 10.0.0.1"], "6.6.6.6", "", ""),
    "behind another network": (["x-forwarded-for: 6.6.6.6, 172.16.39.1"], "6.6.6.6", "", ""),
    "behind three": (
        ["x-forwarded-for: 5.5.5.5, 6.6.6.6, 10.0.0.1, 10.0.0.2, 10.0.0.3"], "6.6.6.6", "", "",
    ),
    "behind four": (
        ["x-forwarded-for: 6.6.6.6, 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4"], "10.0.0.1", "", "",
    ),
    "trusted alone": (["x-forwarded-for: 10.0.0.1, 10.0.0.2"], "10.0.0.1", "", ""),
    "no address ends it": (["x-forwarded-for: 6.6.6.6, unknown, 10.0.0.1"], "10.0.0.1", "", ""),
    "no address at all": (["x-forwarded-for: unknown"], PEER, "", ""),
    "IPv6": (["x-forwarded-for: 6.6.6.6, 2001:db8::7, fd00::1"], "2001:db8::7", "", ""),
    "scheme and host": (
        ["x-forwarded-for: 6.6.6.6", "x-forwarded-proto: https", "x-forwarded-host: a.example"],
        "6.6.6.6", "https", "a.example",
    ),
    "RFC 7239": (["forwarded: for=6.6.6.6;proto=https;host=a.example"], "6.6.6.6", "https",
                 "a.example"),
    "its port": (['forwarded: for="6.6.6.6:4711"'], "6.6.6.6", "", ""),
    "its IPv6": (['forwarded: for="[2001:db8::7]:4711"'], "2001:db8::7", "", ""),
    "its IPv6 alone": (['Forwarded: For="[2001:db8::7]"'], "2001:db8::7", "", ""),
    "its hops": (
        ["forwarded: for=5.5.5.5;proto=http, for=6.6.6.6;proto=https;host=a.example",
         "forwarded: for=10.0.0.1;proto=http;host=inner"],
        "6.6.6.6", "https", "a.example",
    ),
    "its unknown": (["forwarded: for=6.6.6.6, for=unknown;proto=https"], PEER, "", ""),
    "its hidden": (["forwarded: for=6.6.6.6, for=_hidden"], PEER, "", ""),
    "both": (
        ["x-forwarded-for: 6.6.6.6", "forwarded: for=7.7.7.7;proto=https;host=b.example"],
        "6.6.6.6", "", "",
    ),
    "X's port": (["x-forwarded-for: 5.5.5.5, 6.6.6.6:4711, 10.0.0.1:80"], "6.6.6.6", "", ""),
    "X's IPv6 and port": (["x-forwarded-for: [2001:db8::7]:80, [fd00::1]"], "2001:db8::7", "", ""),
    "an open quote": (['x-forwarded-for: "x, 6.6.6.6'], "6.6.6.6", "", ""),
    "an open quote alone": (['x-forwarded-for: ", 10.0.0.1, 6.6.6.6, 10.0.0.2'], "6.6.6.6", "", ""),
    "a quote before a proxy": (['x-forwarded-for: 6.6.6.6, ", 10.0.0.1'], "10.0.0.1", "", ""),
    "a quote open in the line before": (
        ['x-forwarded-for: "x', "x-forwarded-for: 6.6.6.6"], "6.6.6.6", "", "",
    ),
    "its open quote": (['forwarded: for="x, for=6.6.6.6;proto=https'], "6.6.6.6", "https", ""),
    "its open quote before quotes": (
        ['forwarded: for="x, for="[2001:db8::7]", for=10.0.0.1'], "2001:db8::7", "", "",
    ),
    "its escaped quote": ([r'forwarded: for="\", for=6.6.6.6'], "6.6.6.6", "", ""),
    "its escapes": ([r'forwarded: for="\\\a, for="[2001:db8::7]"'], "2001:db8::7", "", ""),
    "its quote open in the line before": (
        ['forwarded: for="x', "forwarded: for=6.6.6.6"], "6.6.6.6", "", "",
    ),
    "its many quotes": (["forwarded: " + '"' * 14_001 + ", for=6.6.6.6"], "6.6.6.6", "", ""),
    "its many escapes": (["forwarded: " + '"\\' * 7_000 + ", for=6.6.6.6"], "6.6.6.6", "", ""),
}  # fmt: skip


def wanted(said: dict[str, list[str]], name: str) -> None:
    _, address, proto, host = CASES[name]
    assert said.get("x-forwarded-for") == [address]
    assert said.get("x-forwarded-proto", [""]) == [proto]
    assert said.get("x-forwarded-host", [""]) == [host]
    assert "forwarded" not in said


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode().split("\r\n")[:-2]
            found: dict[str, list[str]] = {"path": [first.split()[1]]}
            for line in lines:
                name, _, value = line.partition(": ")
                found.setdefault(name.lower(), []).append(value)
            said = json.dumps(found).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
    writer.close()


async def app(scope, receive, send):
    found: dict[str, list[str]] = {"path": [scope["raw_path"].decode()]}
    for name, value in scope["headers"]:
        found.setdefault(name.decode(), []).append(value.decode())
    said = json.dumps(found).encode()
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def at_haproxy(folder: Path, prefix: str, networks: list[str]) -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    told = {"PATH_PREFIX": prefix, "TRUSTED_PROXIES": " ".join(networks)}
    async with in_front_of(server, folder=folder, **told) as url:
        yield urlsplit(url).port or 0


@asynccontextmanager
async def at_its_own_server(folder: Path, prefix: str, networks: list[str]) -> AsyncIterator[int]:
    held = IngressSocket("127.0.0.1", 0, folder / "ingress.sock")
    settings = {"path_prefix": prefix or None, "trusted_proxies": networks}
    server = DirectServer(app, GatewaySettings.model_validate(settings))
    await server.start(str(folder / "ingress.sock"))
    try:
        yield held._listening.getsockname()[1]
    finally:
        server.should_exit = True
        server.close()
        await asyncio.to_thread(held.close)


At = Callable[[Path, str, list[str]], contextlib.AbstractAsyncContextManager[int]]
BOTH = [pytest.param(at_haproxy, marks=pytest.mark.slow), at_its_own_server]


async def answer(port: int, target: str, lines: list[str]) -> tuple[str, dict[str, list[str]]]:
    """Status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    host = urlsplit(target).netloc or "x"  # which HAProxy compares
    head = [f"GET {target} HTTP/1.1", f"host: {host}", "connection: close", *lines, "", ""]
    writer.write("\r\n".join(head).encode())
    async with asyncio.timeout(10):
        whole = await reader.read()
    writer.close()
    head_bytes, _, body = whole.partition(b"\r\n\r\n")
    return head_bytes.split()[1].decode(), json.loads(body)


async def heard(port: int, target: str = "/v2", *lines: str) -> dict[str, list[str]]:
    status, said = await answer(port, target, list(lines))
    assert status == "200", said
    return said


@pytest.mark.parametrize("at", BOTH)
async def test_the_right_most_that_is_no_trusted_proxy_is_the_caller(at: At, tmp_path: Path):
    async with at(tmp_path, "", TRUSTED) as port:
        for name, (lines, *_) in CASES.items():
            said = await heard(port, "/v2", *lines)
            if not lines and at is at_its_own_server:  # which knows who connected
                assert "x-forwarded-for" not in said
                continue
            wanted(said, name)


@pytest.mark.parametrize("at", BOTH)
async def test_who_is_not_trusted_says_nothing_of_itself(at: At, tmp_path: Path):
    async with at(tmp_path, "", ["10.0.0.0/8"]) as port:
        for lines, *_ in CASES.values():
            said = await heard(port, "/v2", *lines, "x-forwarded-prefix: /forged")
            assert said.get("x-forwarded-for", [PEER]) == [PEER]
            assert said.get("x-forwarded-proto", ["http"]) == ["http"]
            assert {"forwarded", "x-forwarded-host", "x-forwarded-prefix"}.isdisjoint(said)


PATHS = {
    "/inference": "/",
    "/inference/": "/",
    "/inference/v1/embeddings": "/v1/embeddings",
    "/inference/v1/models?a=/inference/b": "/v1/models?a=/inference/b",
    "/inference/inference/v1/models": "/inference/v1/models",
    "/inference/inference": "/inference",
    "http://x/inference/v2": "/v2",
    "http://inference/inference/v2?q": "/v2?q",
}
BARE = ("/v1/embeddings", "/inferences/v2", "/v2/inference/x", "/%69nference/v2", "/INFERENCE/v2")


@pytest.mark.parametrize("at", BOTH)
async def test_the_prefix_is_taken_off_once_and_named(at: At, tmp_path: Path):
    async with at(tmp_path, "/inference", ["127.0.0.0/8"]) as port:
        for asked, path in PATHS.items():
            said = await heard(port, asked)
            assert urlsplit(said["path"][0]).path == urlsplit(path).path, asked
            assert said["x-forwarded-prefix"] == ["/inference"]
            said = await heard(port, asked, "x-forwarded-prefix: /outer")
            assert said["x-forwarded-prefix"] == ["/outer/inference"]
        for asked in BARE:
            said = await heard(port, asked)
            assert said["path"] == [asked]
            assert "x-forwarded-prefix" not in said


@pytest.mark.parametrize("at", BOTH)
async def test_rules_see_the_path_without_its_prefix(at: At, tmp_path: Path):
    key = "authorization: Bearer a"
    refused = {
        "/inference//admin": "404",
        "/inference/../admin": "404",
        "/inference/.": "404",
        "/inference/-/routes": "404",
        "/%2d/routes": "404",
        "/inference/%2D/haproxy": "404",
        "/%2d/healthz": "404",
        "/-/HEALTHZ": "404",
        "/inference%2fv2": "404",
    }
    async with at(tmp_path, "/inference", []) as port:
        for asked, status in refused.items():
            assert (await answer(port, asked, []))[0] == status, asked
        for path, is_openai in (("/inference/v1/models", True), ("/inference/v2", False)):
            status, said = await answer(port, path, ["x: " + "y" * 20_000])
            assert (status, isinstance(said["error"], dict)) == ("431", is_openai)
            status, said = await answer(port, f"{path}/%zz", [key])
            assert (status, isinstance(said["error"], dict)) == ("404", is_openai)


def test_both_look_back_as_far():
    assert forwarded.HOPS == haproxy_rules.HOPS


@pytest.mark.parametrize(
    "said",
    ["for", "for=", "=", ";", 'for="', 'for="6.6.6.6', "for=6.6.6.6;;;", "for==", "a=b;for=[::1",
     'for="' + "\\" * 5000, "," * 5000, "for=6.6.6.6 x", "\x80=\xff"],
)  # fmt: skip
def test_what_cannot_be_read_names_nobody(said: str):
    headers = [(b"forwarded", said.encode("latin-1"))]
    found = dict(forwarded.from_trusted(headers, PEER, lambda _: False))
    assert found[b"x-forwarded-for"] in (PEER.encode(), b"6.6.6.6")


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ['"', '\\"', '"\\', ' ', 'x"', 'for=" ', 'for="x";', "for=x ;", ",", '"\\",'],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", '"', "for=", 'for="'])
def test_no_value_takes_long_to_read(start: str, piece: str):
    """A megabyte, 70 times what a head may have: what takes quadratic time would take hours."""
    said = (start + piece * (1_000_000 // len(piece))).encode()
    began = time.monotonic()
    forwarded.from_trusted([(b"forwarded", said)], PEER, lambda _: True)
    assert time.monotonic() - began < 5.0


def test_a_comma_in_quotes_divides_nothing():
    headers = [(b"forwarded", b'for=6.6.6.6;by="a,for=7.7.7.7"')]
    found = dict(forwarded.from_trusted(headers, PEER, lambda _: False))
    assert found[b"x-forwarded-for"] == b"6.6.6.6"
