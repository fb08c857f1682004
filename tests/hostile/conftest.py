"""Two gateways in this process behind uvicorn with our protocol, the real HAProxy in front of each,
and its own server for callers beside it (`gateway.ingress: direct`): one gateway needs no key, the
other has tenants with keys, an operator and TLS.

All are asked by raw bytes. What arrives at a gateway's app is kept, so that a test sees a request
that nobody sent. The tests' own modules are those of tests/deployments.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parent.parent / "deployments"))
sys.path.insert(0, str(Path(__file__).parent))

from in_process import Stand
from keyed import CALLER, Keyed
from raw_http import Target
from real_haproxy import in_front_of
from uvicorn_server import serving

from deployments.control.supervisor import ports
from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.gateway.http import strict_protocol
from deployments.gateway.http.direct_server import DirectServer
from deployments.settings.gateway import GatewaySettings

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 1000}}
GATEWAY: dict[str, dict[str, float]] = {"limits": {"max_body_bytes": 400_000, "body_timeout_s": 1}}
EDGE = {"BODY_S": 2, "HEADERS_S": 1, "MAX_BODY_BYTES": 400_000}


class Servers:
    """On a loop of their own. `build`: makes the gateway; `told`: HAProxy's options; `limits`: of
    the server for callers beside it."""

    def __init__(
        self,
        folder: Path,
        build: Callable[[], Stand],
        told: dict[str, object],
        limits: dict[str, float] = GATEWAY["limits"],
    ) -> None:
        self._limits = limits
        self._arrived: list[tuple[str, list[tuple[bytes, bytes]]]] = []
        self.connections: set[tuple[str, int]] = set()  # by which they arrived
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running = AsyncExitStack()
        self.edge, self.gateway, self.direct = self._do(self._start(build, told))

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _start(
        self, build: Callable[[], Stand], told: dict[str, object]
    ) -> tuple[Target, Target, Target]:
        stand = build()
        self._running.callback(stand.close)
        direct = await self._started_directly(stand, told)
        config = uvicorn.Config(
            self._kept(stand.app), port=0, lifespan="off", log_config=None,
            http=strict_protocol.StrictProtocol,
        )  # fmt: skip
        port = await self._running.enter_async_context(serving(config))
        url = await self._running.enter_async_context(
            in_front_of(port, folder=self._folder, **told)
        )
        edge = Target("edge", urlsplit(url).port or 0, arrived=self._arrived)
        others = (Target("gateway", port), Target("direct", direct))
        return edge, *(replace(each, arrived=self._arrived) for each in others)

    async def _started_directly(self, stand: Stand, told: dict[str, object]) -> int:
        port, path = ports.any_free(), self._folder / "ingress.sock"
        self._running.callback(IngressSocket("127.0.0.1", port, path).close)
        tls = {
            "certificate": told["CERTIFICATE"], "key": told["KEY"],
            "client_ca": told["CLIENT_CA"], "client_ca_for": "operators",
        } if "KEY" in told else None  # fmt: skip
        limits = self._limits | {"headers_timeout_s": 1, "body_timeout_s": 2}
        gateway = GatewaySettings.model_validate({"limits": limits, "tls": tls})
        server = DirectServer(self._kept(stand.app), gateway)
        await server.start(str(path))
        self._running.callback(server.close)
        return port

    def _kept(self, app: Any) -> Any:
        async def keeping(scope: Any, receive: Any, send: Any) -> None:
            # The list itself: what is added to it later is seen, too.
            self._arrived.append((scope["path"], scope["headers"]))
            self.connections.add(scope["client"])
            await app(scope, receive, send)

        return keeping

    def close(self) -> None:
        self._do(self._running.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def until_answered(target: Target) -> None:
    began = time.monotonic()
    while not target.canary():
        assert time.monotonic() - began < 15
        time.sleep(0.05)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("hostile")
    found = Servers(folder, lambda: Stand({"device": MODEL}, folder, gateway=GATEWAY), EDGE)
    until_answered(found.edge)
    yield found
    found.close()


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """As `servers`, which take no body of a megabyte."""
    folder, limits = tmp_path_factory.mktemp("roomy"), {"max_body_bytes": 2 << 20}
    build = partial(Stand, {"device": MODEL}, folder, gateway={"limits": limits})
    found = Servers(folder, build, EDGE | {"MAX_BODY_BYTES": 2 << 20}, limits)
    until_answered(found.edge)
    yield found
    found.close()


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """The one with keys. `edge` speaks TLS."""
    folder = tmp_path_factory.mktemp("keyed")
    found = Keyed(folder)
    running = Servers(folder, lambda: found.built(GATEWAY), EDGE | found.told)
    found.edge = replace(running.edge, tls=found.trusting())
    found.direct = replace(running.direct, tls=found.trusting())
    found.gateway = running.gateway
    until_answered(replace(found.edge, says=CALLER))
    yield found
    running.close()
    found.close()


def _left_alone(*targets: Target) -> None:
    """All answer everybody else, and nothing came that nobody sent."""
    for each in targets:
        assert each.canary(), f"{each.name} answers nobody else any more"
    assert not [path for path, _ in targets[0].arrived if "smuggled" in path]


@pytest.fixture(params=["edge", "gateway", "direct"])
def target(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Target]:
    """Where a hostile request is sent."""
    found: Target = getattr(servers, request.param)
    found.arrived.clear()
    yield found
    _left_alone(servers.edge, servers.gateway, servers.direct)


@pytest.fixture(params=["edge", "gateway", "direct"])
def locked(request: pytest.FixtureRequest, keyed: Keyed) -> Iterator[Target]:
    """As `target`, where callers need keys. Afterwards no key stands in any log."""
    found: Target = getattr(keyed, request.param)
    found.arrived.clear()
    yield found
    _left_alone(*(replace(each, says=CALLER) for each in (keyed.edge, keyed.gateway, keyed.direct)))
    assert not keyed.logged_secrets()


@pytest.fixture(params=["edge", "gateway", "direct", "tls"])
def framed(request: pytest.FixtureRequest) -> Iterator[Target]:
    """As `target`, or HAProxy's TLS before the gateway with keys: there each request has a key, one
    that is smuggled, too."""
    if request.param == "tls":
        found = replace(request.getfixturevalue("keyed").edge, says=CALLER)
        others = [found]
    else:
        servers = request.getfixturevalue("servers")
        found = getattr(servers, request.param)
        others = [servers.edge, servers.gateway, servers.direct]
    found.arrived.clear()
    yield found
    _left_alone(*others)
