"""What is fetched from where, and what is refused: at a real https server of this machine."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from object_server import HOST, ObjectServer, answer, serving

from deployments.contract.errors import BadRequest, BodyTooLarge, HeadraceError
from deployments.gateway.http.protocols.tensors import Fetched
from deployments.gateway.inputs import fetching
from deployments.gateway.inputs.fetching import MAX_OF_TENANT, Fetcher, from_data_url
from deployments.settings.gateway import ReferenceSettings

LABEL = "Tensor 'x'"
SECRET = "?X-Amz-Signature=s3cr3t"


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectServer]:
    async with serving(tmp_path, monkeypatch) as server:
        server.objects["/a"] = answer(b"content", "content-type: image/PNG; q=1")
        yield server


def fetcher(server: ObjectServer, **more: Any) -> Fetcher:
    return Fetcher(ReferenceSettings.model_validate(server.settings(**more)))


async def fetched(
    server: ObjectServer, url: str = "", hold: Callable[[int], None] = lambda _: None, **more: Any
) -> Fetched:
    async with asyncio.timeout(5.0):
        return await fetcher(server, **more).fetch("t", LABEL, url or server.url("/a"), hold)


async def refusal(server: ObjectServer, url: str = "", **more: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as told:
        await fetched(server, url, **more)
    assert told.value.message.startswith(f"{LABEL}: ")
    assert "s3cr3t" not in told.value.message
    return told.value


async def test_what_is_fetched_is_the_content_with_its_type(server: ObjectServer) -> None:
    held: list[int] = []
    found = await fetched(server, server.url("/a") + SECRET, held.append)
    assert (bytes(found.content), found.media_type) == (b"content", "image/png")
    assert sum(held) == 7
    (head,) = server.heads
    assert head.startswith(f"GET /a{SECRET} HTTP/1.1\r\n")
    names = [line.split(":")[0].lower() for line in head.split("\r\n")[1:] if line]
    assert names == ["host", "accept", "accept-encoding", "user-agent", "connection"]
    assert f"Host: {HOST}:{server.port}\r\n" in head
    assert "Accept-Encoding: identity\r\n" in head
    assert server.looked_up == [HOST]


async def test_a_chunked_answer_is_whole_and_one_that_ends_with_its_connection_may_not_be(
    server: ObjectServer,
) -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    server.objects["/a"] = head + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    assert bytes((await fetched(server)).content) == b"abc"
    server.objects["/a"] = head + b"\r\nabcd"
    assert "did not say where its answer ends" in str(await refusal(server))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://objects.test/a", "must be https"),
        ("s3://bucket/key", "s3: is not fetched; send a signed https URL of the object"),
        ("gs://bucket/key", "gs: is not fetched; send a signed https URL"),
        ("file:///etc/passwd", "file: is not fetched"),
        ("ftp://objects.test/a", "ftp: is not fetched"),
        ("https://other.test/a", "other.test:443 is not one of gateway.references.hosts"),
        ("https://objects.test/a", "objects.test:443 is not one of"),  # the port differs
        ("https://objects.test.:PORT/a", "is not one of"),
        ("https://127.0.0.1:PORT/a", "is not one of"),
        ("https://2130706433:PORT/a", "is not one of"),
        ("https://0177.0.0.1:PORT/a", "is not one of"),
        ("https://0x7f000001:PORT/a", "is not one of"),
        ("https://[::1]:PORT/a", "its URL must be https://HOST"),
        ("https://[::ffff:127.0.0.1]:PORT/a", "its URL must be https://HOST"),
        ("https://user:pw@objects.test:PORT/a", "must name no user"),
        ("https://objects.test:PORT@evil.test/a", "must name no user"),
        ("https://objects.test:PORT\\@evil.test/a", "must name no user"),
        ("https://evil.test#@objects.test:PORT/a", "its URL must"),
        ("https://objects.test:PORT/a#b", "its URL must be https://HOST"),
        ("https://objects.test:PORT/a b", "percent-encoded"),
        ("https://objects.test:PORT/a\r\nX: y", "percent-encoded"),
        ("https://objects.test:PORT/\u00e4", "percent-encoded"),
        ("https://OBJECTS.test:PORT/a", "in lower case"),
        ("https:/objects.test:PORT/a", "its URL must be https://HOST"),
        ("//objects.test:PORT/a", "its URL must be https://HOST"),
        ("https://objects.test:PORT/" + "a" * 9000, "more than 8192 characters"),
        ("", "its URL must be https://HOST"),
        ("https://", "its URL must be https://HOST"),
        ("https://objects.test:99999/a", "is not one of"),
        ("https://objects.test:999999/a", "its URL must be https://HOST"),
    ],
)
async def test_a_url_that_may_not_be_fetched_is_refused_before_anything_is_looked_up(
    server: ObjectServer, url: str, says: str
) -> None:
    made = fetcher(server)
    with pytest.raises(BadRequest) as told:
        await made.fetch("t", LABEL, url.replace("PORT", str(server.port)), lambda _: None)
    assert says in told.value.message
    assert len(told.value.message) < 300
    assert server.looked_up == server.heads == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["169.254.169.254"], ["10.0.0.1"], ["::1"], ["::ffff:10.0.0.1"], ["fe80::1%lo"],
        ["64:ff9b::a00:1"], ["0.0.0.0"], ["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"],
    ],
)  # fmt: skip
async def test_a_name_with_one_address_that_may_not_be_is_refused(
    server: ObjectServer, addresses: list[str]
) -> None:
    server.addresses = [addresses]
    told = await refusal(server)
    assert "neither public nor in gateway.references.networks" in told.message
    assert not any(address in told.message for address in addresses)
    assert server.heads == []


async def test_loopback_is_refused_unless_it_is_listed(server: ObjectServer) -> None:
    assert "neither public" in (await refusal(server, networks=[])).message
    assert server.heads == []


@pytest.mark.parametrize("name", ["127.0.0.1", "2130706433", "0177.0.0.1", "127.1", "localhost"])
async def test_a_listed_name_that_is_a_loopback_address_is_refused_however_written(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.undo()  # the system's own resolver
    made = Fetcher(ReferenceSettings(hosts=(f"{name}:{server.port}",)))
    with pytest.raises(BadRequest, match=r"neither public|without an address"):
        await made.fetch("t", LABEL, f"https://{name}:{server.port}/a", lambda _: None)
    assert server.heads == []


async def test_a_resolver_that_changes_its_mind_is_asked_once_a_connection(
    server: ObjectServer,
) -> None:
    server.addresses = [["127.0.0.1"], ["169.254.169.254"]]
    assert bytes((await fetched(server)).content) == b"content"
    assert server.looked_up == [HOST]
    assert "neither public" in (await refusal(server)).message


async def test_a_name_that_is_unknown_says_so(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> list[str]:
        raise OSError("Name or service not known")

    monkeypatch.setattr(fetching, "resolve", fails)
    assert "is a name without an address" in (await refusal(server)).message


async def test_the_next_address_is_tried_where_one_does_not_answer(server: ObjectServer) -> None:
    server.addresses = [["127.0.0.9", "127.0.0.1"]]
    assert bytes((await fetched(server)).content) == b"content"


async def test_a_server_that_is_not_there_is_told(server: ObjectServer) -> None:
    server.addresses = [["127.0.0.9"]]
    told = await refusal(server)
    assert f"{HOST}:{server.port} could not be connected to" in told.message
    assert (told.status, told.reason) == (400, "url_not_fetched")


async def test_a_certificate_for_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, monkeypatch, name="other.test") as server:
        assert "no certificate that is trusted here" in (await refusal(server)).message
        assert server.heads == []


async def test_a_certificate_of_nobody_known_is_refused(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "SSL_CERT_FILE" in (await refusal(server)).message


async def test_no_proxy_and_no_password_file_of_the_environment_is_used(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text(f"machine {HOST} login me password s3cr3t\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert bytes((await fetched(server)).content) == b"content"
    assert "authorization" not in server.heads[0].lower()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 T", "308 P", "304 Not Modified"])
async def test_no_redirect_is_followed(server: ObjectServer, status: str) -> None:
    location = "location: https://169.254.169.254/latest"
    server.objects["/a"] = answer(b"", location, status=status)
    told = await refusal(server, server.url("/a") + SECRET)
    assert f"answered {status[:3]}; redirects are not followed" in told.message
    assert len(server.heads) == 1


@pytest.mark.parametrize("status", ["204 No Content", "206 Partial", "403 Forbidden", "500 Oops"])
async def test_only_a_200_is_an_answer(server: ObjectServer, status: str) -> None:
    server.objects["/a"] = answer(b"x", status=status)
    assert f"answered {status[:3]}, not 200" in (await refusal(server)).message


async def test_a_compressed_answer_is_refused_unopened(server: ObjectServer) -> None:
    bomb = gzip.compress(bytes(1 << 20))
    server.objects["/a"] = answer(bomb, "content-encoding: gzip")
    assert "it must send plain bytes" in (await refusal(server)).message
    server.objects["/a"] = answer(b"x", "content-encoding: Identity")
    assert bytes((await fetched(server)).content) == b"x"
    server.objects["/a"] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    assert "broke off its answer" in (await refusal(server)).message


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
        await writer.drain()


async def test_an_endless_body_is_cut_at_the_bound_as_it_comes(server: ObjectServer) -> None:
    server.objects["/a"] = endless
    held: list[int] = []
    with pytest.raises(BodyTooLarge, match=r"gateway.references.max_bytes \(100000\)"):
        await fetched(server, hold=held.append, max_bytes=100_000)
    assert sum(held) <= 100_000


@pytest.mark.parametrize(("size", "whole"), [(1023, True), (1024, True), (1025, False)])
async def test_the_bound_is_the_last_size_that_is_taken(
    server: ObjectServer, size: int, whole: bool
) -> None:
    body = bytes(size)
    chunked = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    sent = ((f"content-length: {size}", body), ("transfer-encoding: chunked", chunked))
    for head, content in sent:
        server.objects["/a"] = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + content
        if whole:
            assert len((await fetched(server, max_bytes=1024)).content) == size
        else:
            assert isinstance(await refusal(server, max_bytes=1024), BodyTooLarge)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"SSH-2.0-OpenSSH_9\r\n",
        b"",
    ],
)
async def test_an_answer_that_is_broken_off_or_none_is_told(
    server: ObjectServer, reply: bytes
) -> None:
    server.objects["/a"] = reply
    assert "broke off its answer" in (await refusal(server)).message


async def test_what_hold_refuses_ends_the_fetch(server: ObjectServer) -> None:
    def full(size: int) -> None:
        raise BodyTooLarge("no room")

    with pytest.raises(BodyTooLarge, match="no room"):
        await fetched(server, hold=full)


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def test_a_server_that_sends_nothing_has_failed_after_a_while(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "IDLE_S", 0.05)
    server.objects["/a"] = silent
    assert "sent nothing for 0.05 s" in (await refusal(server)).message


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)


async def test_a_fetch_that_is_cancelled_closes_its_connection(server: ObjectServer) -> None:
    told = asyncio.Event()

    async def waits(writer: asyncio.StreamWriter) -> None:
        told.set()
        await writer.wait_closed()

    server.objects["/a"] = waits
    task = asyncio.create_task(fetched(server))
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.open == 0)


async def test_one_tenants_fetches_leave_room_for_another(server: ObjectServer) -> None:
    release = asyncio.Event()

    async def held(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(b"late"))
        await writer.drain()

    server.objects["/slow"] = held
    made = fetcher(server)
    slow = [
        asyncio.create_task(made.fetch("greedy", LABEL, server.url("/slow"), lambda _: None))
        for _ in range(MAX_OF_TENANT + 5)
    ]
    await until(lambda: len(server.heads) == MAX_OF_TENANT)
    async with asyncio.timeout(5.0):
        found = await made.fetch("other", LABEL, server.url("/a"), lambda _: None)
    assert bytes(found.content) == b"content"
    assert len(server.heads) == MAX_OF_TENANT + 1
    release.set()
    assert [bytes(each.content) for each in await asyncio.gather(*slow)] == [b"late"] * len(slow)


async def test_a_name_whose_look_up_hangs_delays_no_other(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(host: str, port: int, threads: Any) -> list[str]:
        if host == "hangs.test":
            server.looked_up.append(host)
            await asyncio.sleep(3600)
        return await server.resolve(host, port, threads)

    monkeypatch.setattr(fetching, "resolve", hangs)
    hosts = [f"hangs.test:{server.port}", f"{HOST}:{server.port}"]
    made = fetcher(server, hosts=hosts)
    url = server.url("/a").replace(HOST, "hangs.test")
    waits = [asyncio.create_task(made.fetch("t", LABEL, url, lambda _: None)) for _ in range(3)]
    await until(lambda: server.looked_up == ["hangs.test"])  # once for all three
    assert bytes((await made.fetch("t", LABEL, server.url("/a"), lambda _: None)).content)
    for each in waits:
        each.cancel()
    await asyncio.wait(waits)


async def test_no_line_of_the_log_has_a_query(
    server: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = fetcher(server)
    await made.fetch("t", LABEL, server.url("/a") + SECRET, lambda _: None)
    assert "s3cr3t" not in caplog.text
    assert "/a" not in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("url", "content", "media_type"),
    [
        ("data:image/png;base64,AAEC", b"\0\1\2", "image/png"),
        ("DATA:;base64,AAEC", b"\0\1\2", "application/octet-stream"),
        ("data:text/plain;charset=utf-8;base64,YQ==", b"a", "text/plain"),
        ("data:,a%20b", b"a b", "application/octet-stream"),
        ("data:,", b"", "application/octet-stream"),
    ],
)
def test_data_urls_hold_what_they_say(url: str, content: bytes, media_type: str) -> None:
    found = from_data_url(LABEL, url)
    assert (bytes(found.content), found.media_type) == (content, media_type)


@pytest.mark.parametrize("url", ["data:", "data:;base64", "data:;base64,A", "data:;base64,A A="])
def test_data_urls_that_hold_nothing_are_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="its data: URL"):
        from_data_url(LABEL, url)
