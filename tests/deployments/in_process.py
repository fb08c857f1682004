"""The whole gateway in one process: real app, pipeline, queue and replica core, no Ray.

`Stand` plays Serve's part: a transport that calls replica cores directly, and a catalogue that has
its models from the start. Replicas can be killed, made to hang, added and removed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from deployments import describe
from deployments.catalogue import Catalogue
from deployments.device_worker import DeviceWorker
from deployments.exchange import BodyLimits
from deployments.gateway_app import GatewayApp
from deployments.inflight import Gate
from deployments.ledger import ReplicaBook, RunningReplica
from deployments.observer import Observer
from deployments.pages import Pages
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.preprocess.turns import TurnPool
from deployments.replica_core import ReplicaCore
from deployments.served_model import ServedModel
from deployments.settings import GatewaySettings, ModelSettings, TenantSettings
from deployments.tenants import Tenants
from deployments.transport import ReplicaDied, Unreached
from deployments.wire import BatchCall, BatchReply
from runtimes import catalog


class LocalTransport:
    """Calls replica cores by id. `calls` keeps every batch that was sent."""

    def __init__(self) -> None:
        self.cores: dict[str, ReplicaCore] = {}
        self.dead: set[str] = set()
        self.gone: set[str] = set()
        self.calls: list[tuple[str, BatchCall]] = []

    def forget(self, running: set[str]) -> None:
        pass

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        self.calls.append((replica_id, call))
        if replica_id in self.gone:
            raise Unreached(replica_id)
        if replica_id in self.dead:
            raise ReplicaDied(replica_id)
        try:
            return await asyncio.wait_for(self.cores[replica_id].infer(call), timeout_s)
        except TimeoutError:
            raise ReplicaDied("no answer") from None


class StandingTenants:
    """A `TenantsFile` that needs no file."""

    problem = None

    def __init__(self, tenants: dict[str, Any]) -> None:
        declared = {n: TenantSettings.model_validate(t) for n, t in tenants.items()}
        self.current = Tenants(declared)

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
    ) -> None:
        self.settings = GatewaySettings.model_validate(gateway or {})
        self.tenants = StandingTenants(tenants or {})
        self.pool = TurnPool(2, 64)
        self.observer = Observer("gateway-0", self.settings, 0, listen=False)
        self.models = Catalogue(None, "g0", 1 << 20, self.observer.batch)
        self.observer.watch(self.models, self.pool, self.tenants)
        self.transports: dict[str, LocalTransport] = {}
        self.books: dict[str, ReplicaBook] = {}
        self._workers: list[DeviceWorker] = []
        for name, given in models.items():
            self._serve(name, ModelSettings.model_validate(given), cache_dir, replicas)
        self.models._declared = frozenset(models)
        self.models._awaited = set()
        limits = self.settings.limits
        gate = Gate(
            tenants=self.tenants,
            models=self.models,
            pool=self.pool,
            limits=BodyLimits(
                limits.max_body_bytes, limits.max_inflated_bytes, limits.body_timeout_s
            ),
            pool_threshold_bytes=limits.pool_threshold_bytes,
            watcher=self.observer,
        )
        pages = Pages(self.models, self.observer)
        self.app = GatewayApp(gate, pages, self.observer.connection)

    def _serve(self, name: str, model: ModelSettings, cache_dir: Path, replicas: int) -> None:
        transport, book = LocalTransport(), ReplicaBook()
        settings = describe.runtime_settings(name, model, cache_dir, lambda phase, share: None)
        for index in range(replicas):
            runtime = catalog.create(settings)
            runtime.load()
            worker = DeviceWorker(
                runtime, hang_limit_s=model.replicas.hang_limit_s, on_hang=lambda: None
            )
            self._workers.append(worker)
            transport.cores[f"{name}-{index}"] = ReplicaCore(worker, model.replicas.slots)
        page, tokenizer = describe.describe(name, model, "digest", runtime)
        reader = None
        if tokenizer and page.task != "tensors":
            reader = TextTokenizer(tokenizer, page.max_length, page.truncate, 1 << 20)
        served = ServedModel(page, reader, transport, book, "g0", self.observer.batch)
        self.models._served[name] = served
        self.models._live[name] = page
        self.transports[name], self.books[name] = transport, book
        self.run_replicas(name, list(transport.cores))

    def run_replicas(self, name: str, ids: list[str]) -> None:
        version = self.models._served[name].description.version
        metadata = (("version", version),)
        self.books[name].update([RunningReplica(i, "node", metadata) for i in ids])

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def close(self) -> None:
        self.observer.close()
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
            assert all(core.inflight == 0 for core in self.transports[name].cores.values())
