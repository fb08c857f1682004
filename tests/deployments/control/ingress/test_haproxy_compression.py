"""Which answers HAProxy compresses: at the real one, before a server that says what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from real_haproxy import in_front_of

pytestmark = pytest.mark.slow  # a real HAProxy

JSON = "application/json"


def body(size: int) -> bytes:
    return json.dumps({"outputs": "0.125, " * size}).encode()[: size - 2] + b'"}'


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """`?size=` bytes of `&type=`; in chunks where `&flows` is said."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        method, target, _ = head.split(b"\r\n")[0].decode().split()
        said = {name: each[0] for name, each in parse_qs(urlsplit(target).query).items()}
        content, more = body(int(said["size"])), said.get("more", "")
        lines = [f"HTTP/1.1 {said.get('status', '200 OK')}", f"content-type: {said['type']}"]
        lines += [more] if more else []
        if "flows" in said:
            lines.append("transfer-encoding: chunked")
            content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
        else:
            lines.append(f"content-length: {len(content)}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        writer.write(b"" if method == "HEAD" else content)
    writer.close()


@asynccontextmanager
async def asking(folder: Path, **told: object) -> AsyncIterator[httpx.AsyncClient]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
    async with (
        in_front_of(server, folder=folder, **told) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        yield client


async def get(
    client: httpx.AsyncClient, encoding: str | None, method: str = "GET", **said: object
) -> httpx.Response:
    wanted = {"size": 50_000, "type": JSON, **said}
    request = client.build_request(method, "/x", params={k: str(v) for k, v in wanted.items()})
    del request.headers["accept-encoding"]
    if encoding is not None:
        request.headers["accept-encoding"] = encoding
    found = await client.send(request)
    if method == "GET":
        assert found.content == body(int(str(wanted["size"])))
    return found


def zipped(found: httpx.Response) -> bool:
    assert ("content-length" in found.headers) is ("content-encoding" not in found.headers)
    return found.headers.get("content-encoding") == "gzip"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(tmp_path, COMPRESSION=1) as client:
        yield client


async def test_whole_json_is_compressed_for_who_asks_and_says_that_it_varies(
    client: httpx.AsyncClient,
) -> None:
    for encoding in ("gzip", "gzip, deflate, br", "GZIP;q=0.3"):
        found = await get(client, encoding)
        assert zipped(found), encoding
        assert found.headers["vary"].lower() == "accept-encoding"
        assert found.num_bytes_downloaded < 5000


async def test_who_does_not_ask_gets_what_the_gateway_sent(client: httpx.AsyncClient) -> None:
    for encoding in (None, "identity", "br", "gzip;q=0", "*;q=0"):
        found = await get(client, encoding)
        assert not zipped(found), encoding
        assert found.headers["content-length"] == "50000"
        assert "vary" not in found.headers


@pytest.mark.parametrize(
    "said",
    [
        {"type": "text/event-stream"},
        {"type": "text/event-stream", "flows": "1"},
        {"type": "application/octet-stream"},
        {"status": "503 Busy"},
        {"more": "content-encoding: br"},
        {"more": "cache-control: no-transform"},
    ],
    ids=str,
)
async def test_streams_tensors_errors_and_what_the_gateway_says_stay_as_they_are(
    client: httpx.AsyncClient, said: dict[str, str]
) -> None:
    request = client.build_request("GET", "/x", params={"size": "50000", "type": JSON, **said})
    found = await client.send(request, stream=True)
    assert b"".join([part async for part in found.aiter_raw()]) == body(50_000)
    assert found.headers.get("content-encoding") != "gzip"
    assert "cache-control" not in found.headers  # it was said to HAProxy alone


async def test_other_words_on_caching_go_to_the_caller(client: httpx.AsyncClient) -> None:
    found = await get(client, "gzip", more="cache-control: max-age=9")
    assert zipped(found)
    assert found.headers["cache-control"] == "max-age=9"


async def test_a_head_without_a_body_is_as_it_was(client: httpx.AsyncClient) -> None:
    found = await get(client, "gzip", method="HEAD")
    assert found.headers["content-length"] == "50000"


async def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with asking(tmp_path) as client:
        assert not zipped(await get(client, "gzip"))
        found = await get(client, "gzip", more="cache-control: no-transform")
        assert "cache-control" not in found.headers
