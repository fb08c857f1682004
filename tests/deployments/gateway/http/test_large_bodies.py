"""Large bodies and answers over a real connection: copied once at most, on both event loops."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
import uvicorn
from both_loops import event_loop_policy as event_loop_policy
from uvicorn.protocols.http import auto, httptools_impl
from uvicorn_server import serving

from deployments.contract.errors import HeadraceError
from deployments.gateway.http import strict_protocol
from deployments.gateway.http.body import BodyLimits, BodyRoom
from deployments.gateway.http.exchange import BINARY_HEADER, Exchange
from deployments.gateway.http.protocols.tensors import Encoded

SIZE = 8 << 20
DATA = np.random.default_rng(3).bytes(SIZE)
HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\n"
BINARY = HEAD + BINARY_HEADER + b": 2\r\n"
Answer = Callable[[Exchange, bytes | memoryview], Awaitable[None]]


class Listening:
    """`bodies`: what kind each was, and its digest; `held`: by all requests together."""

    def __init__(self) -> None:
        self.limits = BodyLimits(2 * SIZE, 2 * SIZE, 20.0, BodyRoom(1 << 30))
        self.bodies: list[tuple[type, str]] = []
        self.port = 0

    @property
    def held(self) -> int:
        return self.limits.room.held_bytes

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(20.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            yield reader, writer
            writer.close()


async def say_size(exchange: Exchange, body: bytes | memoryview) -> None:
    await exchange.reply(200, Encoded(b"%d" % len(body)))


@asynccontextmanager
async def listening(answer: Answer = say_size) -> AsyncIterator[Listening]:
    found = Listening()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            body = await exchange.body(found.limits)
            found.bodies.append((type(body), hashlib.sha256(body).hexdigest()))
            await answer(exchange, body)
            if exchange.is_large:
                await exchange.await_drained(found.limits.room)
        except HeadraceError as error:
            await exchange.reply(error.status, Encoded(str(error).encode()))
        finally:
            exchange.release()

    strict_protocol.enforce()
    config = uvicorn.Config(app, port=0, log_config=None, http=strict_protocol.StrictProtocol)
    try:
        async with serving(config) as found.port:
            yield found
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(size)


def in_chunks(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (BINARY + b"content-length: %d\r\n\r\n" % SIZE + DATA, memoryview),
        (BINARY + b"transfer-encoding: chunked\r\n\r\n" + in_chunks(DATA, 70_001), memoryview),
        (HEAD + b"content-length: %d\r\n\r\n" % SIZE + DATA, bytes),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + in_chunks(DATA, 300_007), bytes),
    ],
    ids=["tensors", "tensors in chunks", "json", "json in chunks"],
)
async def test_a_body_arrives_as_it_was_sent_and_the_next_request_behind_it(
    body: bytes, kind: type
) -> None:
    small = HEAD + b"content-length: 5\r\n\r\nafter"
    async with listening() as at, at.connected() as (reader, writer):
        for piece in (body[:40], body[40:99], body[99:200_000], body[200_000:] + small + small):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert await answer_of(reader) == (200, b"%d" % SIZE)
        assert await answer_of(reader) == (200, b"5")
        assert await answer_of(reader) == (200, b"5")
    whole, after = hashlib.sha256(DATA).hexdigest(), hashlib.sha256(b"after").hexdigest()
    assert at.bodies == [(kind, whole), (bytes, after), (bytes, after)]
    assert at.held == 0


async def test_a_body_of_tensors_is_in_memory_once() -> None:
    async def measured(exchange: Exchange, body: bytes | memoryview) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        await exchange.reply(200, Encoded(b"%d" % len(body)))

    peaks: list[int] = []
    async with listening(measured) as at, at.connected() as (reader, writer):
        tracemalloc.start()
        try:
            writer.write(BINARY + b"content-length: %d\r\n\r\n" % SIZE)
            for start in range(0, SIZE, 65_536):
                writer.write(DATA[start : start + 65_536])
                await writer.drain()
            assert (await answer_of(reader))[0] == 200
        finally:
            tracemalloc.stop()
    assert peaks[0] < 1.25 * SIZE


async def test_a_length_that_is_only_claimed_takes_no_memory() -> None:
    async with listening() as at, at.connected() as (_, writer):
        tracemalloc.start()
        try:
            writer.write(BINARY + b"content-length: %d\r\n\r\n" % SIZE + DATA[:1000])
            await writer.drain()
            await asyncio.sleep(0.05)
            assert tracemalloc.get_traced_memory()[1] < SIZE / 10
            assert at.held == 1000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "length", [b"content-length: %d\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"]
)
async def test_what_comes_after_a_refusal_is_not_kept(length: bytes) -> None:
    claimed = length % SIZE if b"%d" in length else length
    async with listening() as at:
        at.limits = BodyLimits(1 << 20, 1 << 20, 20.0, at.limits.room)
        async with at.connected() as (reader, writer):
            body = DATA if b"length" in length else in_chunks(DATA, 65_536)
            writer.write(BINARY + claimed + body)
            assert (await answer_of(reader))[0] == 413
            with suppress(ConnectionError):  # there was more to read
                assert await reader.read() == b""
        assert at.held == 0
        assert at.bodies == []


async def test_a_client_that_leaves_within_its_body_keeps_nothing() -> None:
    async with listening() as at:
        async with at.connected() as (_, writer):
            writer.write(BINARY + b"content-length: %d\r\n\r\n" % SIZE + DATA[: SIZE // 2])
            await writer.drain()
            async with asyncio.timeout(5.0):
                while at.held < SIZE // 2:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.001)
        async with asyncio.timeout(5.0):
            while at.held:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert at.bodies == []


async def in_views(exchange: Exchange, body: bytes | memoryview) -> None:
    await exchange.begin(Encoded(b"[", size=SIZE + 2 if body == b"sized" else 0), ())
    view = memoryview(DATA)
    for start in range(0, SIZE, 1 << 20):
        await exchange.send_chunk(view[start : start + (1 << 20)])
    await exchange.send_chunk(b"]")
    await exchange.end_stream()


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("body", [b"sized", b"other"])
async def test_an_answer_in_views_is_whole_and_only_pieces_of_it_are_copied(
    body: bytes, version: bytes
) -> None:
    async with listening(in_views) as at, at.connected() as (reader, writer):
        tracemalloc.start()
        try:
            head = HEAD.replace(b"1.1", version)
            writer.write(head + b"connection: close\r\ncontent-length: 5\r\n\r\n" + body)
            said = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.1)  # the server is as far ahead as it may be
            ahead = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        got = await reader.read()
    assert ahead < SIZE / 2
    if body == b"sized" or version == b"1.0":
        assert got == b"[" + DATA + b"]"
    else:
        assert got == b"1\r\n[\r\n" + in_chunks(DATA, 1 << 20)[:-5] + b"1\r\n]\r\n0\r\n\r\n"
    assert (b"content-length" in said.lower()) == (body == b"sized")


async def test_memory_that_views_keep_is_held_until_the_client_has_everything() -> None:
    async def held(exchange: Exchange, body: bytes | memoryview) -> None:
        exchange.hold(SIZE, at.limits.room)
        await in_views(exchange, b"sized")

    async with listening(held) as at, at.connected() as (reader, writer):
        writer.write(HEAD + b"content-length: 5\r\n\r\nsized")
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(SIZE - 3_000_000)
        await asyncio.sleep(0.05)
        assert at.held == SIZE
        assert len(await reader.readexactly(3_000_002)) == 3_000_002
        async with asyncio.timeout(5.0):
            while at.held:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        writer.write(HEAD + b"content-length: 5\r\n\r\nother")  # the connection goes on
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
