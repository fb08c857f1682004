"""The Ray Serve deployment of a model that takes batches: wires a runtime to the replica core.

A batch that hangs ends the process, and so does a runtime that says that it will not recover. For
gateways both are a lost replica, and they run its rows again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.costs import LIVE_COSTS, CostBounds, LiveCosts
from deployments.process.actors import registry
from deployments.replica import cost_admission, describe
from deployments.replica.device import DeviceWorker
from deployments.replica.hang_limits import hang_limits
from deployments.replica.known_costs import KnownCosts, known_costs, start_of
from deployments.replica.memory_limit import watch_memory
from deployments.replica.processors import reserved_cpus
from deployments.replica.replica_core import ReplicaCore, watch_hangs
from deployments.replica.startup import ModelReplica
from deployments.replica.verify import gate
from runtimes import catalog
from runtimes.profiling import Profile
from runtimes.types import Runtime

_ANSWER_S = 2.0  # to wait for the registry
logger = logging.getLogger("headrace.replica")


class BatchReplica(ModelReplica):
    """See `ModelReplica`."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        self._loop = asyncio.get_running_loop()
        await self._start_up(args)
        limits = hang_limits(self._settings)
        self._worker = DeviceWorker(
            self._runtime,
            self._settings.replicas.slots,
            limits=limits,
            on_hang=lambda: self._end_process("a batch hangs (hang_limit_s, hang_factor)"),
            allow_non_finite=self._settings.allow_non_finite,
        )
        self._worker.on_death = self._end_process
        self._core = ReplicaCore(self._worker)
        self._watch = self._loop.create_task(watch_hangs(self._worker, min(1.0, limits.max_s / 4)))
        limit_mib = self._settings.replicas.memory_limit_mib
        if limit_mib is not None:
            watching = watch_memory(
                lambda: (self._worker.running, ""), limit_mib, self._end_process
            )
            self._memory_watch = self._loop.create_task(watching)
        await self._listen(self._core, args)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        measured = await self._measured_by_others(digest)
        costs = await self._loop.run_in_executor(None, self._load_and_measure, cache_dir, measured)
        if not measured:
            costs = replace(costs, points=await self._admitted(costs.points, cache_dir))
        return describe.describe(self._name, self._settings, digest, self._runtime, costs)

    async def _measured_by_others(self, digest: str) -> Profile:
        """The profile that replicas with these settings have measured; () if there is none, or the
        registry does not answer."""
        if self._settings.profile == "start":
            return ()
        asked = registry().profile.remote(self._name, digest)
        return tuple(await self._answer(asked, "the registry knows no costs") or ())

    async def _admitted(self, points: Profile, cache_dir: Path) -> Profile:
        """The costs, if this version may serve with them. Raises `TooCostly`."""
        model = self._settings
        bounds = CostBounds(model.deadline_s, model.accept.max_cost_ratio)
        again = partial(
            self._loop.run_in_executor, None, cost_admission.measured_again,
            self._runtime_settings, self._runtime, model.profile_s, cache_dir,
        )  # fmt: skip
        if bounds.max_ratio and points:
            points = await cost_admission.admit(points, bounds, self._live_costs, again)
        cost_admission.warn_of_late_rows(self._name, points, bounds.slo_s)
        return points

    async def _live_costs(self) -> LiveCosts | None:
        """As `Registry.live_costs`; None if the registry does not answer."""
        asked = registry().live_costs.remote(self._name, self._group, self._digest)
        found: LiveCosts | None = await self._answer(
            asked, "the live version's costs are not known", LIVE_COSTS.decode
        )
        return found

    async def _answer(
        self, asked: Any, without: str, read: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        """The registry's answer; None, and the warning `without`, if it does not come in time or
        cannot be read."""
        try:
            return read(await asyncio.wait_for(asked, _ANSWER_S))
        except Exception as fault:
            logger.warning("%s: %s", without, fault, extra={"model": self._name})
            return None

    def _load_and_measure(self, cache_dir: Path, measured: Profile) -> KnownCosts:
        model = self._settings
        settings = describe.runtime_settings(
            self._name, model, cache_dir, self._progress.report, reserved_cpus()
        )
        start = replace(start_of(settings, model, cache_dir), measured=measured)
        self._runtime_settings = start.settings
        self._runtime: Runtime = catalog.create(start.settings)
        runtime = self._runtime
        runtime.load()
        gate.admit(self._settings, start.settings, runtime)
        runtime.warm()
        self._progress.report("profiling", 0.0)
        return known_costs(
            start, model, runtime, lambda line: logger.info(line, extra={"model": self._name})
        )

    async def check_health(self) -> None:
        await self._worker.health()

    async def __del__(self) -> None:
        """Attributes may be missing, because a constructor that failed did not set them."""
        await self._drain()
        for name in ("_watch", "_memory_watch"):
            watch = getattr(self, name, None)
            if watch is not None:
                watch.cancel()
        worker = getattr(self, "_worker", None)
        if worker is not None:
            # Not on the loop: `close` waits for a running batch, whose answer the loop delivers.
            await self._loop.run_in_executor(None, worker.close)
        await self._let_go()
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            runtime.close()
