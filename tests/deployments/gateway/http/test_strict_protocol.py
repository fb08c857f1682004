"""Heads that are late, large or many, over real sockets at uvicorn as Serve starts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import auto, httptools_impl
from uvicorn_server import serving

from deployments.gateway.http import strict_protocol
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.strict_protocol import MAX_HEAD_BYTES, MAX_HEADERS

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
SOON_S = 0.05


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body's length; asked for /names, with the names of its headers, for /client,
    with who connected."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    length = b"%d" % len(body)
    if scope["path"] == "/names":
        length = b",".join(name for name, _ in scope["headers"])
    elif scope["path"] == "/client":
        length = scope["client"][0].encode()
    headers = [(b"content-length", b"%d" % len(length))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": length})


@pytest.fixture
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    strict_protocol.enforce(getattr(request, "param", 30.0))
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
    async with serving(config) as port:
        try:
            yield port
        finally:
            strict_protocol.enforce(30.0)
            auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


async def said(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):  # it does not read to the end
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
    async with asyncio.timeout(5.0):
        try:
            data = await reader.read()
        except ConnectionError:
            data = b"reset"
    writer.close()
    return data


def status(answer: bytes) -> bytes:
    return answer[9:12]


@pytest.mark.parametrize("port", [SOON_S], indirect=True)
@pytest.mark.parametrize("begun", [b"", GET, GET + b"x-one: 1\r\n"], ids=["none", "some", "more"])
async def test_a_head_that_is_not_whole_in_time_ends_the_connection_silently(port, begun):
    assert await said(port, begun) == b""


@pytest.mark.parametrize("port", [SOON_S], indirect=True)
async def test_the_second_head_has_a_time_of_its_own(port):
    answer = await said(port, GET + b"\r\n", GET, pause_s=SOON_S / 5)
    assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("port", [SOON_S], indirect=True)
async def test_a_body_may_take_longer_than_its_head(port):
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
    assert status(await said(port, head, b"a", b"b", pause_s=SOON_S)) == b"200"


CLOSE = b"connection: close\r\n\r\n"


@pytest.mark.parametrize(("more", "expected"), [(0, b"200"), (1, b"431")])
async def test_as_many_headers_are_taken_as_haproxy_takes(port, more, expected):
    named = b"".join(b"x-%d: 1\r\n" % n for n in range(MAX_HEADERS - 2 + more))
    assert status(await said(port, GET + named + CLOSE)) == expected


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "second"])
async def test_a_head_that_is_too_large_is_refused_whole_or_in_parts(port, before):
    large = GET + b"x-large: " + b"a" * MAX_HEAD_BYTES + b"\r\n" + CLOSE
    parts = [large[i : i + 999] for i in range(0, 15_999, 999)]
    for answer in (await said(port, before + large), await said(port, before, *parts)):
        assert answer.count(b"HTTP/1.1 431 ") == 1


async def test_a_head_that_never_ends_is_refused_before_its_time(port):
    assert status(await said(port, GET, b"x-large: ", b"a" * MAX_HEAD_BYTES)) == b"431"


async def test_a_large_body_beside_a_small_head_is_taken(port):
    body = b"b" * (5 * MAX_HEAD_BYTES)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(body)
    answer = await said(port, head + CLOSE + body)
    assert status(answer) == b"200"
    assert answer.endswith(b"%d" % len(body))


CHUNKED = b"POST /names HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
TRAILERS = b"x-tenant: acme\r\nauthorization: Bearer other\r\n\r\n"


@pytest.mark.parametrize("parts", [1, 2, 3])
async def test_trailers_never_become_headers(port, parts):
    sent = [CHUNKED, b"1\r\nb\r\n0\r\n", TRAILERS]
    sent = [b"".join(sent[: 4 - parts]), *sent[4 - parts :]]
    after = b"GET /names HTTP/1.1\r\nhost: x\r\nx-next: 1\r\n" + CLOSE
    answer = await said(port, *sent[:-1], sent[-1] + after)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\nhost,transfer-encodingHTTP" in answer
    assert answer.endswith(b"host,x-next,connection")


@pytest.mark.parametrize("endless", [b"x-one: " + b"a" * 999, b"x: 1\r\n" * 125])
async def test_trailers_that_never_end_are_refused(port, endless):
    answer = await said(port, CHUNKED + b"1\r\nb\r\n0\r\n", *[endless] * 30, pause_s=0.001)
    assert status(answer) == b"431"


async def test_a_chunks_endless_extension_is_refused(port):
    answer = await said(port, CHUNKED + b"1;", *[b"a" * 999] * 30, pause_s=0.001)
    assert status(answer) == b"431"


async def test_a_large_body_in_small_chunks_is_taken(port):
    chunks = b"1\r\nb\r\n" * (MAX_HEAD_BYTES // 2)
    parts = [chunks[i : i + 1400] for i in range(0, len(chunks), 1400)]
    head = CHUNKED.replace(b"/names", b"/").replace(b"host: x", b"host: x\r\nconnection: close")
    answer = await said(port, head, *parts, b"0\r\n\r\n")
    assert answer.endswith(b"%d" % (MAX_HEAD_BYTES // 2))


def offering(token: bytes, *more: bytes) -> bytes:
    lines = (b"connection: upgrade, HTTP2-Settings, keep-alive", b"upgrade: " + token,
             b"http2-settings: AAMAAABk", b"sec-websocket-version: 13",
             b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", *more)  # fmt: skip
    return b"POST /names HTTP/1.1\r\nhost: x\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"


READ = b"host,connection,sec-websocket-version,sec-websocket-key"
ENDS = b"GET /client HTTP/1.1\r\nhost: x\r\n" + CLOSE


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
@pytest.mark.parametrize("token", [b"websocket", b"h2c", b"foo"])
async def test_an_offer_of_another_protocol_is_ignored(port, token, pause_s):
    answer = await said(port, offering(token), ENDS, pause_s=pause_s)
    assert b" 101 " not in answer
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert READ in answer


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
@pytest.mark.parametrize("token", [b"websocket", b"h2c", b"foo"])
async def test_what_comes_behind_an_offer_is_its_body_and_no_request(port, token, pause_s):
    smuggled = GET + b"\r\n"
    length = b"content-length: %d" % len(smuggled)
    answer = await said(port, offering(token, length), smuggled, ENDS, pause_s=pause_s)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    chunked = offering(token, b"transfer-encoding: chunked")
    answer = await said(port, chunked, chunk, ENDS, pause_s=pause_s)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    answer = await said(port, chunked, smuggled, pause_s=pause_s)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == b"400"


async def test_any_number_of_offers_are_ignored_one_by_one(port):
    answer = await said(port, offering(b"h2c") * 50 + ENDS)
    assert answer.count(READ) == 50


async def test_connect_is_refused(port):
    answer = await said(port, b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n", GET + CLOSE)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == b"405"


@pytest.mark.parametrize(
    ("path", "is_openais"),
    [
        (b"/v1/chat/completions", True),
        (b"/v1/models/a:b", True),
        (b"/v1/models/a:predict", False),
        (b"/v2/models/a/infer", False),
    ],
)
@pytest.mark.parametrize(
    ("rest", "code", "type_"),
    [
        (b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 414, "invalid_request_error"),
        (b" HTTP/1.1\r\na: " + b"a" * 200_000 + b"\r\n\r\n", 431, "invalid_request_error"),
        (b" HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431, "invalid_request_error"),
        (b" HTTP/1.1\r\na b: c\r\n\r\n", 400, "invalid_request_error"),
    ],
    ids=["URL", "headers", "many", "malformed"],
)
async def test_a_head_is_refused_in_the_shape_of_its_api(port, path, is_openais, rest, code, type_):
    query = b"?" if code == 414 else b""  # what makes the URL long is no part of its path
    answer = await said(port, b"GET " + path + query + rest)
    assert status(answer) == b"%d" % code
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    if is_openais:
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == type_
    else:
        assert isinstance(error, str)


async def test_what_cannot_be_read_behind_a_request_under_way_is_no_part_of_its_answer(port):
    """The first request waits for its body; what is no chunk ends it, in one answer."""
    answer = await said(port, CHUNKED, b"zz\r\n", GET + CLOSE, pause_s=0.01)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status(answer) == b"400"


async def test_requests_before_one_that_cannot_be_read_are_answered(port):
    answer = await said(port, (GET + b"\r\n") * 3 + b"GET / HTTP/1.1\r\na b: c\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert b"HTTP/1.1 400 " in answer.rpartition(b"HTTP/1.1 200 ")[2]


async def test_http_1_0_is_never_told_to_continue(port):
    head = b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    answer = await said(port, head, b"ab", pause_s=0.01)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"\r\n\r\n2")


ANSWER = bytes(32 << 20)


async def large(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


@pytest.fixture
async def slow_port(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[int]:
    """Answers are 32 MB, and must be taken at the rate that the test says."""
    monkeypatch.setattr(strict_protocol, "_LOOK_S", SOON_S)
    strict_protocol.enforce(30.0, request.param)
    async with serving(uvicorn.Config(large, port=0, lifespan="off", log_config=None)) as port:
        try:
            yield port
        finally:
            strict_protocol.enforce(30.0, 0.0)
            auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


async def taken(port: int, waiting: Awaitable[Any]) -> int:
    """Bytes of an answer that is asked for, left until something else, and then read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET + b"connection: close\r\n\r\n")
    size = 0
    async with asyncio.timeout(30.0):
        await waiting
        try:
            while part := await reader.read(1 << 20):
                size += len(part)
        except ConnectionError:
            pass
    writer.close()
    return size


@pytest.mark.parametrize("slow_port", [1000.0], indirect=True)
async def test_who_takes_nothing_of_an_answer_is_cut_off(slow_port, monkeypatch):
    lost, told = asyncio.Event(), strict_protocol.StrictProtocol.connection_lost

    def connection_lost(protocol: Any, fault: Exception | None) -> None:
        lost.set()
        told(protocol, fault)

    monkeypatch.setattr(strict_protocol.StrictProtocol, "connection_lost", connection_lost)
    assert await taken(slow_port, lost.wait()) < len(ANSWER)


@pytest.mark.parametrize("slow_port", [1000.0], indirect=True)
async def test_who_takes_an_answer_at_once_has_all_of_it(slow_port):
    assert await taken(slow_port, asyncio.sleep(0)) > len(ANSWER)


@pytest.mark.parametrize("slow_port", [0.0], indirect=True)
async def test_where_no_rate_is_asked_for_answers_wait(slow_port):
    assert await taken(slow_port, asyncio.sleep(4 * SOON_S)) > len(ANSWER)


async def test_who_connected_is_not_written_over_by_what_a_header_says(port: int) -> None:
    head = b"GET /client HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\n" + CLOSE
    assert (await said(port, head)).endswith(b"\r\n\r\n127.0.0.1")


async def test_a_client_that_sends_no_more_gets_the_answer_that_was_written(port):
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        writer.write_eof()
        async with asyncio.timeout(5.0):
            assert status(await reader.read()) == b"200"
        writer.close()


@pytest.mark.parametrize("rest", [b"\r\n", b"abc"], ids=["an empty line", "the body"])
async def test_what_comes_behind_an_answer_and_is_no_request_keeps_no_connection(rest: bytes):
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await Exchange(scope, receive, send).reply(429, Encoded(b"no"))

    strict_protocol.enforce()
    config = uvicorn.Config(early, port=0, lifespan="off", log_config=None, timeout_keep_alive=1)
    more = b"content-length: 3\r\n\r\n" if rest == b"abc" else b"\r\n"
    try:
        async with serving(config) as port:
            head = b"POST / HTTP/1.1\r\nhost: x\r\n" + more
            assert status(await said(port, head, rest, pause_s=0.2)) == b"429"
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


async def test_a_request_whose_head_began_before_the_last_answer_is_never_idle() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2 if scope["path"] == "/" else 1.4)
        await Exchange(scope, receive, send).reply(200, Encoded(scope["path"].encode()))

    strict_protocol.enforce()
    config = uvicorn.Config(slow, port=0, lifespan="off", log_config=None, timeout_keep_alive=1)
    try:
        async with serving(config) as port:
            second = GET.replace(b"/", b"/second", 1)
            data = await said(port, GET + b"\r\n" + second, b"\r\n", pause_s=0.4)
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol
    assert data.endswith(b"/second")


async def test_a_refused_request_that_waits_for_a_go_ahead_holds_up_nobody_elses_answer() -> None:
    """The refusal ends what is written; the request's own task then writes once more."""
    go = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/refused":
            asked = asyncio.create_task(receive())
            go.set()
            await asked
            return
        await go.wait()
        await app(scope, receive, send)

    strict_protocol.enforce(30.0)
    config = uvicorn.Config(waits, port=0, lifespan="off", log_config=None)
    try:
        async with serving(config) as port, asyncio.timeout(5.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET + b"\r\n")
            await asyncio.sleep(SOON_S)
            head = b"POST /refused HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            await said(port, head + b"transfer-encoding: chunked\r\n\r\nZZ\r\n")
            assert status(await reader.read(100)) == b"200"
            writer.close()
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol
