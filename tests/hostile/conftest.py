"""A gateway in this process behind uvicorn with our protocol, and the real HAProxy in front of it.

Both are asked by raw bytes. What arrives at the gateway's app is kept, so that a test sees a
request that nobody sent. The tests' own modules are those of tests/deployments.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parent.parent / "deployments"))
sys.path.insert(0, str(Path(__file__).parent))

from in_process import Stand
from raw_http import Target
from real_haproxy import in_front_of
from uvicorn_server import serving

from deployments.cluster import haproxy
from deployments.gateway.http import strict_protocol, whole_response

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}}
GATEWAY = {
    "limits": {"max_body_bytes": 400_000, "max_inflated_bytes": 500_000, "body_timeout_s": 0.3}
}
EDGE = {"BODY_S": 1, "HEADERS_S": 1, "MAX_BODY_BYTES": 400_000}


class Servers:
    """On a loop of their own. `arrived`: path and headers of every request that the app got."""

    def __init__(self, folder: Path) -> None:
        self.arrived: list[tuple[str, list[tuple[bytes, bytes]]]] = []
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running = AsyncExitStack()
        self.edge, self.gateway = self._do(self._start())

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _start(self) -> tuple[Target, Target]:
        stand = Stand({"device": MODEL}, self._folder, gateway=GATEWAY)
        self._running.callback(stand.close)
        whole_response.offer()
        config = uvicorn.Config(
            self._kept(stand.app), port=0, lifespan="off", log_config=None,
            http=strict_protocol.StrictProtocol,
        )  # fmt: skip
        port = await self._running.enter_async_context(serving(config))
        wrapper = str(haproxy.program(self._folder / "program", self._folder))
        url = await self._running.enter_async_context(
            in_front_of(port, folder=self._folder, wrapper=wrapper, **EDGE)
        )
        return Target("edge", urlsplit(url).port or 0), Target("gateway", port)

    def _kept(self, app: Any) -> Any:
        async def keeping(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            self.arrived.append((scope["path"], list(scope["headers"])))

        return keeping

    def close(self) -> None:
        self._do(self._running.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    found = Servers(tmp_path_factory.mktemp("hostile"))
    began = time.monotonic()
    while not found.edge.canary():
        assert time.monotonic() - began < 15
        time.sleep(0.05)
    yield found
    found.close()


@pytest.fixture(params=["edge", "gateway"])
def target(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Target]:
    """Where a hostile request is sent. Afterwards both still answer everybody else, and nothing
    came that nobody sent."""
    servers.arrived.clear()
    yield getattr(servers, request.param)
    for each in (servers.edge, servers.gateway):
        assert each.canary(), f"{each.name} answers nobody else any more"
    assert not [path for path, _ in servers.arrived if "smuggled" in path]
