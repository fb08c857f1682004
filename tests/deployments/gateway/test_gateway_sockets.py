"""What a client sees on a real connection: keep-alive, half-sent and over-long bodies, leaving.

The gateway behind uvicorn with httptools, as Ray Serve runs it, on a free port of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from in_process import Stand, standing

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}}
GATEWAY = {"limits": {"max_body_bytes": 100_000, "body_timeout_s": 0.3}}
BODY = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [4]}]}'
HEAD = b"POST /v2/models/device/infer HTTP/1.1\r\nhost: x\r\n"
GOOD = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def closed(self) -> bool:
        """Waits for the server to close the connection, having sent nothing more."""
        return await self._reader.read(1) == b""

    def close(self) -> None:
        self._writer.close()


class Listening:
    """A stand and the port it listens on."""

    def __init__(self, stand: Stand, port: int) -> None:
        self.stand, self._port = stand, port

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self._port))
        async with asyncio.timeout(5.0):
            yield connection
        connection.close()


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[Listening]:
    async with standing({"device": MODEL}, tmp_path, gateway=GATEWAY) as stand:
        config = uvicorn.Config(stand.app, port=0, http="httptools", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Listening(stand, port)
        server.should_exit = server.force_exit = True
        await serving


async def test_a_connection_is_kept_and_its_requests_answered_in_order(
    listening: Listening,
) -> None:
    async with listening.connect() as connection:
        await connection.send(GOOD * 3)
        for _ in range(3):
            status, headers, _ = await connection.answer()
            assert status == 200
            assert "connection" not in headers
    page = listening.stand.telemetry.page("")[0].decode()
    reused = [line for line in page.splitlines() if "connections_reused_total{" in line]
    assert reused[0].endswith(" 2.0")


async def test_a_declared_length_over_the_limit_is_refused_before_a_byte_of_body(
    listening: Listening,
) -> None:
    async with listening.connect() as connection:
        await connection.send(HEAD + b"content-length: 100001\r\n\r\n")
        status, headers, body = await connection.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert b"max_body_bytes" in body
        assert await connection.closed()


async def test_a_client_that_waits_to_be_asked_for_a_body_too_large_is_never_asked(
    listening: Listening,
) -> None:
    async with listening.connect() as connection:
        await connection.send(HEAD + b"expect: 100-continue\r\ncontent-length: 100001\r\n\r\n")
        assert (await connection.answer())[0] == 413


async def test_chunks_beyond_the_limit_end_the_connection(listening: Listening) -> None:
    async with listening.connect() as connection:
        chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
        await connection.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk * 4)
        status, headers, _ = await connection.answer()
        assert (status, headers["connection"]) == (413, "close")


@pytest.mark.parametrize("part", [0, 10])
async def test_a_half_sent_body_is_408_and_the_connection_is_closed(
    listening: Listening, part: int
) -> None:
    async with listening.connect() as connection:
        await connection.send(GOOD[: len(GOOD) - len(BODY) + part])
        status, headers, _ = await connection.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert await connection.closed()


async def test_a_body_in_drops_is_read(listening: Listening) -> None:
    async with listening.connect() as connection:
        for start in range(0, len(GOOD), 60):
            await connection.send(GOOD[start : start + 60])
            await asyncio.sleep(0)
        assert (await connection.answer())[0] == 200


async def test_a_small_body_that_was_refused_unread_costs_no_connection(
    listening: Listening,
) -> None:
    async with listening.connect() as connection:
        refused = GOOD.replace(b"/device/", b"/nope/")
        await connection.send(refused[: -len(BODY)])
        assert (await connection.answer())[0] == 404
        await connection.send(BODY + GOOD)
        assert (await connection.answer())[0] == 200


async def test_a_client_that_hangs_up_frees_its_place(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    channel = listening.stand.channels["device"]
    channel.hold()
    async with listening.connect() as connection:
        await connection.send(GOOD)
        await channel.sent(1)
    queue = listening.stand.models._served["device"].queue
    async with asyncio.timeout(5.0):
        while queue.inflight:  # noqa: ASYNC110 - the socket's closing gives no event
            await asyncio.sleep(0.001)
    channel.let_go()


async def test_the_request_id_stands_once_on_every_answer(listening: Listening) -> None:
    for request in (GOOD, GOOD.replace(b"POST", b"PUT"), b"GET /nope HTTP/1.1\r\nhost: x\r\n\r\n"):
        async with listening.connect() as connection:
            await connection.send(request)
            _, headers, _ = await connection.answer()
            assert len(headers["x-request-id"]) == 32


async def test_a_path_in_percent_encoding_is_the_same_path(listening: Listening) -> None:
    async with listening.connect() as connection:
        await connection.send(GOOD.replace(b"/device/", b"/de%76ice/"))
        assert (await connection.answer())[0] == 200
        await connection.send(b"GET /%ff%00%2f HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await connection.answer())[0] == 404
