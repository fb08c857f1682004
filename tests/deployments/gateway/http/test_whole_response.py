"""An answer in one message is, byte for byte, what uvicorn makes of the two messages for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn_server import serving

from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.whole_response import WholeResponseCycle, _UvicornCycle

ANSWER = Encoded(b'{"a": 1}', b"application/json", ((b"x-more", b"1"),))
GET = b"GET /a HTTP/1.1\r\nhost: x\r\nx-request-id: 7\r\n\r\n"
LARGE = b"POST /a HTTP/1.1\r\nhost: x\r\nx-request-id: 7\r\ncontent-length: 99999\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    exchange = Exchange(scope, receive, send)
    await exchange.reply(200 if exchange.path == "/a" else 404, ANSWER)


@asynccontextmanager
async def listening(cycle: Any) -> AsyncIterator[int]:
    httptools_impl.RequestResponseCycle = cycle
    config = uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_config=None)
    async with serving(config) as port:
        try:
            yield port
        finally:
            httptools_impl.RequestResponseCycle = _UvicornCycle


async def said(cycle: Any, requests: bytes) -> bytes:
    """All that the server says until it closes the connection, dates left out."""
    async with listening(cycle) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(requests)
        async with asyncio.timeout(5.0):
            data = await reader.read()
        writer.close()
    return re.sub(rb"date: [^\r]*\r\n", b"", data)


@pytest.mark.parametrize(
    "requests",
    [
        GET.replace(b"1.1", b"1.0"),
        GET.replace(b"host: x", b"host: x\r\nconnection: close"),
        GET + GET + GET.replace(b"host: x", b"connection: close\r\nhost: x"),
        GET.replace(b"GET", b"HEAD") + GET.replace(b"host: x", b"host: x\r\nconnection: close"),
        GET.replace(b"/a", b"/b").replace(b"host: x", b"host: x\r\nconnection: close"),
        LARGE,
    ],
    ids=["http/1.0", "close", "pipelined", "head", "not found", "unread body"],
)
async def test_the_bytes_are_those_of_the_two_messages(requests: bytes) -> None:
    whole = await said(WholeResponseCycle, requests)
    assert whole == await said(_UvicornCycle, requests)
    assert whole.startswith(b"HTTP/1.1 ")


async def test_other_messages_go_their_usual_way() -> None:
    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        assert isinstance(receive.__self__, WholeResponseCycle)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    global app
    kept, app = app, streaming
    try:
        data = await said(
            WholeResponseCycle, GET.replace(b"1.1\r\n", b"1.1\r\nconnection: close\r\n")
        )
    finally:
        app = kept
    assert data.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_uvicorn_has_what_is_used_of_it() -> None:
    assert b"200 OK" in httptools_impl.STATUS_LINE[200]
    names = _UvicornCycle.__init__.__code__.co_names + _UvicornCycle.send.__code__.co_names
    used = {"flow", "disconnected", "keep_alive", "transport", "response_started",
            "response_complete", "waiting_for_100_continue", "message_event", "on_response",
            "default_headers"}  # fmt: skip
    assert used <= set(names)
    names = httptools_impl.HttpToolsProtocol.on_headers_complete.__code__.co_names
    used = {"RequestResponseCycle", "parse_url", "root_path", "should_keep_alive", "pipeline",
            "_start_asgi_task", "on_response_complete", "expect_100_continue"}  # fmt: skip
    assert used <= set(names)


@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
async def test_a_stream_of_http_1_0_ends_with_its_connection(
    method: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        await exchange.start_stream(b"text/event-stream", [])
        for data in (b"data: 1\n\n", b"data: [DONE]\n\n"):
            await exchange.send_chunk(data)
        await exchange.end_stream()

    monkeypatch.setattr(f"{__name__}.app", streaming)
    asked = method + b" /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
    head, _, body = (await said(WholeResponseCycle, asked)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body == (b"" if method == b"HEAD" else b"data: 1\n\ndata: [DONE]\n\n")


async def test_who_speaks_http_1_1_gets_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        await exchange.start_stream(b"text/event-stream", [])
        await exchange.send_chunk(b"one")
        await exchange.end_stream()

    monkeypatch.setattr(f"{__name__}.app", streaming)
    asked = b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    head, _, body = (await said(WholeResponseCycle, asked)).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == b"3\r\none\r\n0\r\n\r\n"
