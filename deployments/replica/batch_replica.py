"""The Ray Serve deployment of a model that takes batches: wires a runtime to the replica core."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.replica import describe
from deployments.replica.device import DeviceWorker
from deployments.replica.known_costs import KnownCosts, known_costs, start_of
from deployments.replica.processors import reserved_cpus
from deployments.replica.replica_core import ReplicaCore, watch_hangs
from deployments.replica.startup import ModelReplica
from deployments.replica.verify import gate
from runtimes import catalog
from runtimes.types import Runtime

logger = logging.getLogger("headrace.replica")


class BatchReplica(ModelReplica):
    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        self._loop = asyncio.get_running_loop()
        await self._start_up(args)
        hang_limit_s = self._settings.replicas.hang_limit_s
        self._worker = DeviceWorker(
            self._runtime,
            self._settings.replicas.slots,
            hang_limit_s=hang_limit_s,
            on_hang=lambda: self._end_process("a batch ran longer than hang_limit_s"),
        )
        self._core = ReplicaCore(self._worker)
        self._watch = self._loop.create_task(watch_hangs(self._worker, min(1.0, hang_limit_s / 4)))
        await self._listen(self._core, args)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        costs = await self._loop.run_in_executor(None, self._load_and_measure, cache_dir)
        return describe.describe(self._name, self._settings, digest, self._runtime, costs)

    def _load_and_measure(self, cache_dir: Path) -> KnownCosts:
        model = self._settings
        settings = describe.runtime_settings(
            self._name, model, cache_dir, self._progress.tell, reserved_cpus()
        )
        start = start_of(settings, model, cache_dir)
        self._runtime: Runtime = catalog.create(start.settings)
        runtime = self._runtime
        runtime.load()
        gate.admit(self._settings, start.settings, runtime)
        runtime.warm()
        self._progress.mark("profiling")
        return known_costs(
            start, model, runtime, lambda line: logger.info(line, extra={"model": self._name})
        )

    async def check_health(self) -> None:
        await self._worker.health()

    async def __del__(self) -> None:
        """A constructor that failed leaves some of these unmade."""
        await self._drain()
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.cancel()
        worker = getattr(self, "_worker", None)
        if worker is not None:
            # Off the loop: it waits for a batch that still runs, and the loop delivers its answer.
            await self._loop.run_in_executor(None, worker.close)
        await self._let_go()
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            runtime.close()
