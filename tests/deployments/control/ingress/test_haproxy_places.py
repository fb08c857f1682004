"""Whose requests a gateway takes is the gateway's to say, behind the real HAProxy, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from in_process import Stand, standing
from real_haproxy import in_front_of
from slow_reader import head_of
from uvicorn.protocols.http import auto, httptools_impl
from uvicorn_server import serving

from deployments.control.ingress.haproxy_options import MAX_USED, HAProxyOptions
from deployments.gateway.http import strict_protocol
from deployments.gateway.tenancy import rates

PLACES = 4
OPTIONS = {"base_ms": 0, "embed_width": 1_000_000}  # an answer of 4 MB
MODELS = {
    "wide": {"runtime": "synthetic", "options": OPTIONS},
    "device": {"runtime": "synthetic", "options": {"base_ms": 0}},
}
TENANTS: dict[str, Any] = {"a": {}, "b": {}}
AT_ONCE_S = 0.8  # what HAProxy has no place for it refuses after a second


class Edge:
    """HAProxy before one gateway."""

    def __init__(self, stand: Stand, port: int) -> None:
        self.stand, self._port = stand, port

    @property
    def under_way(self) -> int:
        return self.stand.app._pipeline._services._under_way.used

    async def taken(self, count: int) -> None:
        """Returns once the gateway has so many under way."""
        async with asyncio.timeout(10.0):
            while self.under_way != count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.005)

    async def head(self, model: str, tenant: str) -> tuple[bytes, asyncio.StreamWriter]:
        """The answer's head; nothing else of it is read."""
        head, _, writer = await head_of(self._port, model, tenant)
        return head, writer

    async def status(self, model: str, tenant: str) -> int:
        head, writer = await self.head(model, tenant)
        writer.close()
        return int(head.split()[1])


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[Edge]:
    limits = {"max_requests": PLACES}
    strict_protocol.enforce(30.0)
    try:
        async with (
            standing(MODELS, folder, gateway={"limits": limits}, tenants=TENANTS) as stand,
            serving(uvicorn.Config(stand.app, port=0, log_config=None)) as port,
            in_front_of(port, folder=folder, MAX_REQUESTS=PLACES) as url,
        ):
            edge = Edge(stand, urlsplit(url).port or 0)
            while await edge.status("device", "a") != 200:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
            yield edge
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol


@pytest.mark.slow  # a real HAProxy
async def test_a_tenant_whose_requests_wait_leaves_another_its_share(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge:
        edge.stand.channels["device"].hold()
        waiting = [asyncio.create_task(edge.head("device", "a")) for _ in range(3 * PLACES)]
        await edge.taken(PLACES)
        async with asyncio.timeout(10.0):
            while sum(each.done() for each in waiting) < 2 * PLACES:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.005)
        refused = [each.result()[0] for each in waiting if each.done()]
        # The gateway's own refusals, which have its name for the request; none is HAProxy's.
        assert all(b" 503 " in head and b"x-request-id: " in head for head in refused)
        other = asyncio.create_task(edge.status("device", "b"))
        await edge.taken(PLACES + 1)
        edge.stand.channels["device"].let_go()
        assert await other == 200
        for each in waiting:
            (await each)[1].close()


@pytest.mark.slow  # a real HAProxy
async def test_a_tenant_that_reads_slowly_leaves_another_its_share(tmp_path: Path) -> None:
    async with listening(tmp_path) as edge:
        slow = [await edge.head("wide", "a") for _ in range(PLACES)]
        assert all(b" 200 " in head for head, _ in slow)
        assert edge.under_way == PLACES
        assert edge.stand.app._pipeline._services.limits.room.held_bytes > PLACES * 2_000_000
        assert await asyncio.wait_for(edge.status("device", "a"), AT_ONCE_S) == 503
        assert await asyncio.wait_for(edge.status("device", "b"), AT_ONCE_S) == 200
        for _, writer in slow:
            writer.close()
        await edge.taken(0)
        assert await edge.status("device", "a") == 200


def test_haproxy_lets_all_through_that_a_gateway_may_take() -> None:
    assert MAX_USED == rates.MAX_USED
    assert HAProxyOptions(max_requests=10).places > MAX_USED * 10


def test_as_many_may_wait_to_be_accepted_as_haproxy_lets_through() -> None:
    assert HAProxyOptions().places <= strict_protocol.LISTEN_QUEUE
    strict_protocol.enforce()
    try:
        assert uvicorn.Config(lambda: None).backlog == strict_protocol.LISTEN_QUEUE
    finally:
        auto.AutoHTTPProtocol = httptools_impl.HttpToolsProtocol
