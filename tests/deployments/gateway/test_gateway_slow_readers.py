"""Who asks for large answers and reads them slowly keeps its tenant's places, and nobody else's.

The gateway behind uvicorn as Ray Serve runs it, on a free port of this machine, on both loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from both_loops import event_loop_policy as event_loop_policy
from in_process import Answer, Stand, ask, standing
from slow_reader import BODY, head_of
from uvicorn.protocols.http import auto, httptools_impl
from uvicorn_server import serving

from deployments.gateway.http import strict_protocol

OPTIONS = {"base_ms": 0, "embed_width": 250_000}  # an answer of 1 MB
MODELS = {
    "wide": {"runtime": "synthetic", "options": OPTIONS},
    "narrow": {"runtime": "synthetic", "options": {"base_ms": 0}},
}
TENANTS: dict[str, Any] = {"a": {}, "b": {}}
SOON_S = 0.05


class Edge:
    """A stand, and the port it listens on."""

    def __init__(self, stand: Stand, port: int) -> None:
        self._stand, self._port = stand, port

    @property
    def held_bytes(self) -> int:
        return self._stand.app._pipeline._services.limits.room.held_bytes

    @property
    def under_way(self) -> int:
        return self._stand.app._pipeline._services._under_way.used

    @asynccontextmanager
    async def reader(self, model: str, tenant: str) -> AsyncIterator[Reader]:
        """Asks, and reads the answer's head alone."""
        head, reader, writer = await head_of(self._port, model, tenant)
        size = int(head.split(b"content-length: ")[1].split()[0])
        yield Reader(int(head.split()[1]), size, reader)
        writer.close()

    async def asked(self, tenant: str) -> Answer:
        """For a small answer, elsewhere."""
        headers = [(b"x-tenant", tenant.encode())]
        return await ask(self._stand.app, "POST", "/v2/models/narrow/infer", headers, BODY)

    async def idle(self) -> None:
        """Returns once nothing counts any more."""
        async with asyncio.timeout(5.0):
            while self.held_bytes or self.under_way:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)


class Reader:
    def __init__(self, status: int, size: int, reader: asyncio.StreamReader) -> None:
        self.status, self.size, self._reader = status, size, reader

    async def rest(self) -> bytes:
        return await self._reader.readexactly(self.size)


@asynccontextmanager
async def listening(folder: Path, rate: float = 0.0, **limits: int) -> AsyncIterator[Edge]:
    strict_protocol.enforce(30.0, rate)
    try:
        async with standing(MODELS, folder, gateway={"limits": limits}, tenants=TENANTS) as stand:
            config = uvicorn.Config(
                stand.app, port=0, log_config=None, http=strict_protocol.StrictProtocol
            )
            async with serving(config) as port:
                yield Edge(stand, port)
    finally:
        strict_protocol.enforce(30.0, 0.0)
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


async def test_a_place_counts_until_a_large_answer_is_taken_and_others_have_theirs(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path, max_requests=1) as edge, edge.reader("wide", "a") as slow:
        assert (slow.status, edge.under_way) == (200, 1)
        refused = await edge.asked("a")
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        assert b"gateway.limits.max_requests" in refused.body
        assert edge.under_way == 1
        assert len(await slow.rest()) == slow.size
        await edge.idle()
        assert (await edge.asked("a")).status == 200


async def test_another_tenant_is_answered_while_one_has_all_places(tmp_path: Path) -> None:
    async with listening(tmp_path, max_requests=2) as edge:
        async with edge.reader("wide", "a") as first, edge.reader("wide", "a") as second:
            assert (first.status, second.status, edge.under_way) == (200, 200, 2)
            assert (await edge.asked("a")).status == 503
            assert (await edge.asked("b")).status == 200
        await edge.idle()


async def test_what_is_not_taken_counts_as_held_by_its_tenant(tmp_path: Path) -> None:
    async with listening(tmp_path, max_held_bytes=1_200_000) as edge:
        async with edge.reader("wide", "a") as slow:
            assert slow.size > 900_000
            assert slow.size - 600_000 < edge.held_bytes < slow.size
            held = edge.held_bytes
            async with edge.reader("wide", "a") as refused:
                assert refused.status == 503
                assert b"gateway.limits.max_held_bytes" in await refused.rest()
            assert edge.held_bytes == held
            assert (await edge.asked("a")).status == 200  # small ones pass
            await slow.rest()
            await edge.idle()
        async with edge.reader("wide", "a") as again:
            assert again.status == 200


async def test_who_leaves_without_having_read_keeps_nothing(tmp_path: Path) -> None:
    async with listening(tmp_path, max_requests=1) as edge:
        async with edge.reader("wide", "a"):
            assert edge.held_bytes > 0
        await edge.idle()
        assert (await edge.asked("a")).status == 200


async def test_who_is_cut_off_for_reading_too_slowly_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_protocol, "_LOOK_S", SOON_S)
    async with listening(tmp_path, rate=500.0) as edge, edge.reader("wide", "a"):
        assert edge.under_way == 1
        await edge.idle()


async def test_small_answers_cost_no_second_message(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge, edge.reader("narrow", "a") as small:
        assert (small.status, edge.under_way, edge.held_bytes) == (200, 0, 0)
