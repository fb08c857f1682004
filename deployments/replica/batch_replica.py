"""The Ray Serve deployment of one model: wires a runtime to the replica core, delegates the rest.

The constructor stages, compiles, verifies, warms and profiles before it returns, so a replica that
runs is hot. It reports its progress to the registry. A hung run ends the process (`os._exit`):
Serve replaces the replica and gateways retry its batches.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from ray import serve

from deployments.contract import logs
from deployments.contract.batch_wire import BatchCall, BatchReply
from deployments.contract.description import ModelDescription
from deployments.contract.loopback import keep_replica_calls_local
from deployments.replica import backend_env, describe
from deployments.replica.device import DeviceWorker
from deployments.replica.known_costs import KnownCosts, known_costs, start_of
from deployments.replica.replica_core import ReplicaCore, watch_hangs
from deployments.replica.startup_progress import StartupProgress
from deployments.replica.verify import gate
from deployments.settings import ModelSettings
from runtimes import catalog
from runtimes.types import Runtime

HUNG_EXIT_CODE = 70
logger = logging.getLogger("headrace.replica")


class BatchReplica:
    """`args`: {"name", "settings" (plain dict), "digest" of them, "cache_dir", "log"}."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        logs.configure(args["log"]["level"], args["log"]["format"])
        self._name: str = args["name"]
        self._settings = ModelSettings.model_validate(args["settings"])
        self._loop = asyncio.get_running_loop()
        self._progress = StartupProgress(
            self._name, serve.get_replica_context().replica_id.unique_id
        )
        try:
            costs = await self._loop.run_in_executor(None, self._start, Path(args["cache_dir"]))
            self._description, self._tokenizer = describe.describe(
                self._name, self._settings, args["digest"], self._runtime, costs
            )
        except Exception as fault:
            await self._progress.failed(fault)
            raise
        self._worker = DeviceWorker(
            self._runtime,
            self._settings.replicas.slots,
            hang_limit_s=self._settings.replicas.hang_limit_s,
            on_hang=self._hung,
        )
        self._core = ReplicaCore(self._worker)
        self._watch = self._loop.create_task(
            watch_hangs(self._worker, min(1.0, self._settings.replicas.hang_limit_s / 4))
        )
        self._progress.tell("ready", 1.0)

    def _start(self, cache_dir: Path) -> KnownCosts:
        backend_env.set_compiler_cache(cache_dir)
        model = self._settings
        settings = describe.runtime_settings(self._name, model, cache_dir, self._progress.tell)
        start = start_of(settings, model, cache_dir)
        self._runtime: Runtime = catalog.create(start.settings)
        runtime = self._runtime
        runtime.load()
        gate.admit(self._settings, start.settings, runtime)
        runtime.warm()
        return known_costs(
            start, model, runtime, lambda said: logger.info(said, extra={"model": self._name})
        )

    def _hung(self) -> None:
        logger.error(
            "a batch ran longer than hang_limit_s; the replica ends", extra={"model": self._name}
        )
        os._exit(HUNG_EXIT_CODE)

    def record_replica_metadata(self) -> dict[str, str]:
        return {"version": self._description.version, "digest": self._description.digest}

    async def infer(self, call: BatchCall) -> BatchReply:
        return await self._core.infer(call)

    async def drop(self, gateway: str, lease_id: int) -> bool:
        """See `ReplicaCore.drop`."""
        return self._core.drop(gateway, lease_id)

    async def opened(self, gateway: str, lease_id: int) -> bool:
        """See `ReplicaCore.opened`."""
        return await self._core.opened(gateway, lease_id)

    async def describe(self) -> tuple[ModelDescription, bytes]:
        """The model's page and its tokeniser's bytes (empty without one)."""
        return self._description, self._tokenizer

    async def check_health(self) -> None:
        await self._worker.health()

    async def __del__(self) -> None:
        """A constructor that failed leaves some of these unmade."""
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.cancel()
        worker = getattr(self, "_worker", None)
        if worker is not None:
            # Off the loop: it waits for a batch that still runs, and the loop delivers its answer.
            await self._loop.run_in_executor(None, worker.close)
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            runtime.close()
