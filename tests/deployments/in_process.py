"""The whole gateway in one process: real app, pipeline, queue and replica core, no Ray.

`Stand` plays Serve's part: a transport that calls replica cores directly, and a catalogue that has
its models from the start. Replicas can be killed, held, added and removed, and a model swapped.
`ask` is a client of one request whose body and whose leaving the test decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from deployments.contract.description import GatewayIdentity
from deployments.contract.preprocess.tokenizer import TextTokenizer
from deployments.contract.replica_directory import ReplicaDirectory, RunningReplica
from deployments.contract.wire import BatchCall, BatchReply
from deployments.gateway.app import assembled
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool
from deployments.gateway.queues.catalogue import Catalogue
from deployments.gateway.queues.served_model import ServedModel
from deployments.gateway.queues.transport import ReplicaDied, ReplicaFault, Unreached
from deployments.gateway.telemetry.gateway_telemetry import GatewayTelemetry
from deployments.gateway.tenancy.tenants import Tenants
from deployments.replica import describe
from deployments.replica.device import DeviceWorker
from deployments.replica.known_costs import KnownCosts
from deployments.replica.replica_core import ReplicaCore
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.tenant import TenantSettings
from runtimes import catalog
from runtimes.types import Runtime

# Says nothing of costs: replicas are trusted with batches from the first one on.
PROFILE = ((1, 1, 0.0),)


class LocalTransport:
    """Calls replica cores by id. `calls` keeps every batch that was sent, `drops` who was asked to
    drop which lease. `script`: what the next calls end with instead (an exception or a reply); None
    lets one through."""

    def __init__(self) -> None:
        self.cores: dict[str, ReplicaCore] = {}
        self.dead: set[str] = set()
        self.gone: set[str] = set()
        self.calls: list[tuple[str, BatchCall]] = []
        self.drops: list[tuple[str, int]] = []
        self.script: list[Exception | BatchReply | None] = []
        self._open = asyncio.Event()
        self._open.set()
        self._called = asyncio.Event()

    def forget(self, running: set[str]) -> None:
        pass

    def hold(self) -> None:
        """Calls from now on wait on their way, until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def sent(self, count: int) -> None:
        """Returns once `count` calls were made in all."""
        while len(self.calls) < count:
            self._called.clear()
            await asyncio.wait_for(self._called.wait(), 5.0)

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        self.calls.append((replica_id, call))
        self._called.set()
        await self._open.wait()
        scripted = self.script.pop(0) if self.script else None
        if isinstance(scripted, Exception):
            raise scripted
        if scripted is not None:
            return scripted
        core = self._reached(replica_id)
        try:
            return await asyncio.wait_for(core.infer(call), timeout_s)
        except TimeoutError:
            raise ReplicaDied("no answer") from None
        except Exception as fault:
            raise ReplicaFault(str(fault)) from fault

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        self.drops.append((replica_id, lease_id))
        return self._reached(replica_id).drop(gateway, lease_id)

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        asked = self._reached(replica_id).opened(gateway, lease_id)
        return await asyncio.wait_for(asked, timeout_s)

    def _reached(self, replica_id: str) -> ReplicaCore:
        if replica_id in self.gone:
            raise Unreached(replica_id)
        if replica_id in self.dead:
            raise ReplicaDied(replica_id)
        return self.cores[replica_id]


class StandingTenants:
    """A `TenantsFile` that needs no file."""

    problem = None
    frozen = False

    def __init__(self, tenants: dict[str, Any], priorities: tuple[str, ...]) -> None:
        declared = {n: TenantSettings.model_validate(t) for n, t in tenants.items()}
        self.current = Tenants(declared, priorities)

    def refresh(self) -> bool:
        return False


class Stand:
    """`models`: name → settings as in a file; `replicas` of each; `cache_dir` for staging."""

    def __init__(
        self,
        models: dict[str, dict[str, Any]],
        cache_dir: Path,
        *,
        replicas: int = 1,
        gateway: dict[str, Any] | None = None,
        tenants: dict[str, Any] | None = None,
        runtimes: Mapping[str, Runtime] | None = None,
    ) -> None:
        self.settings = GatewaySettings.model_validate(gateway or {})
        self.tenants = StandingTenants(tenants or {}, self.settings.priorities)
        self.identity = GatewayIdentity("g0", len(self.settings.priorities))
        self.pool = FairThreadPool(2, 64)
        self.telemetry = GatewayTelemetry("gateway-0", self.settings, 0, listen=False)
        self.models = Catalogue(None, self.identity, 1 << 20, self.telemetry.batch)
        self.telemetry.watch(self.models, self.pool, self.tenants)
        self.transports: dict[str, LocalTransport] = {}
        self.books: dict[str, ReplicaDirectory] = {}
        self._workers: list[DeviceWorker] = []
        self._runtimes = dict(runtimes or {})
        for name, given in models.items():
            self._serve(name, ModelSettings.model_validate(given), cache_dir, replicas)
        self.models._declared = frozenset(models)
        self.models._awaited = set()
        self.telemetry.refresh()
        self.app = assembled(self.settings, self.tenants, self.models, self.pool, self.telemetry)

    def _serve(self, name: str, model: ModelSettings, cache_dir: Path, replicas: int) -> None:
        transport, directory = LocalTransport(), ReplicaDirectory()
        settings = describe.runtime_settings(name, model, cache_dir, lambda phase, share: None)
        for index in range(replicas):
            runtime = self._runtimes.get(name) or catalog.create(settings)
            runtime.load()
            limit_s, slots = model.replicas.hang_limit_s, model.replicas.slots
            worker = DeviceWorker(runtime, slots, hang_limit_s=limit_s, on_hang=lambda: None)
            self._workers.append(worker)
            transport.cores[f"{name}-{index}"] = ReplicaCore(worker)
        description, tokenizer = describe.describe(
            name, model, "digest", runtime, KnownCosts(PROFILE)
        )
        reader = None
        if tokenizer and description.task != "tensors":
            reader = TextTokenizer(tokenizer, description.max_length, description.truncate, 1 << 20)
        served = ServedModel(
            description, reader, transport, directory, self.identity, self.telemetry.batch
        )
        self.models._served[name] = served
        self.models._live[name] = description
        self.transports[name], self.books[name] = transport, directory
        self.run_replicas(name, list(transport.cores))

    def run_replicas(self, name: str, ids: list[str]) -> None:
        digest = self.models._served[name].description.digest
        metadata = (("digest", digest),)
        self.books[name].update([RunningReplica(i, metadata) for i in ids])

    def swap(self, name: str, **changes: Any) -> None:
        """Another version of the model goes live, on the same replicas."""
        served = self.models._served[name]
        description = replace(served.description, **changes)
        served.replace(description, served.tokenizer)
        self.models._live[name] = description
        self.run_replicas(name, list(self.transports[name].cores))

    async def waiting(self, name: str, rows: int) -> None:
        """Returns once so many rows wait."""
        queue = self.models._served[name].queue
        for _ in range(1000):
            if queue.waiting_rows == rows:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{queue.waiting_rows} rows wait, not {rows}")

    async def settled(self) -> None:
        """Lets what is under way end, then sees that nothing is left."""
        async with asyncio.timeout(5.0):
            for served in self.models.served.values():
                while served.queue.calls.tasks:
                    await asyncio.wait(served.queue.calls.tasks)
            cores = [c for t in self.transports.values() for c in t.cores.values()]
            while any(core.inflight for core in cores):  # noqa: ASYNC110 - abandoned calls
                await asyncio.sleep(0.001)
        self.assert_empty()

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def close(self) -> None:
        self.telemetry.close()
        self.pool.close()
        for served in self.models.served.values():
            served.close()
        for worker in self._workers:
            worker.close()

    def assert_empty(self) -> None:
        """Nothing waits, nothing is leased, nothing is held, and the books agree."""
        for name, served in self.models.served.items():
            snapshot = served.queue.snapshot()
            assert served.queue.inflight == 0
            assert snapshot.waiting_rows == snapshot.leases == snapshot.drift == 0
            assert snapshot.waiting_requests == snapshot.leased_rows == snapshot.unknown_closes == 0
            assert all(core.inflight == 0 for core in self.transports[name].cores.values())


@asynccontextmanager
async def standing(*args: Any, **options: Any) -> AsyncIterator[Stand]:
    """A `Stand` that is empty at its end."""
    stand = Stand(*args, **options)
    try:
        yield stand
        await stand.settled()
    finally:
        stand.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: the app ended without one."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1
        return found[0] if found else None


async def ask(
    app: Any,
    method: str,
    path: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    body: bytes | list[bytes | None] = b"",
    leave: asyncio.Event | None = None,
) -> Answer:
    """One request, straight to the app. A list of bodies is chunks; None among them: no more
    comes, ever. `leave`: set to disconnect (never, without it)."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    parts: list[Any] = []
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not chunks or chunks[0] is None:
            await (leave or never).wait()
            return {"type": "http.disconnect"}
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        parts.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    await app(scope, receive, send)
    if not parts:
        return Answer(0, [], b"")
    assert [part["type"] for part in parts] == ["http.response.start", "http.response.body"]
    return Answer(parts[0]["status"], parts[0]["headers"], parts[1]["body"])
