"""The Ray Serve deployment of the shared pool: a process that can become any of the pool's models.

Its constructor imports the backends' libraries, which is most of a start apart from loading a
model. Then the replica runs and holds nothing (*warm*), until the autoscaler orders it to hold
models. A batch that hangs ends the process, as in other replicas, and so does a process that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray import serve

from deployments.contract.registry import PROGRESS
from deployments.process import actors, logs
from deployments.process.actors import registry
from deployments.process.loop_watch import HUNG_EXIT_CODE, watch_process
from deployments.process.loopback import keep_loopback_direct, keep_replica_calls_local
from deployments.replica import backend_env
from deployments.replica.device import DeviceTurn
from deployments.replica.memory_limit import watch_memory
from deployments.replica.pool.loading import ModelLoader, PoolLoading
from deployments.replica.pool.orders import Announcements, PoolOrders
from deployments.replica.pool.resident import Place
from deployments.replica.pool.residents import Residents
from deployments.replica.processors import reserved_cpus
from deployments.settings_files.made import cache_dir
from runtimes import catalog

logger = logging.getLogger("headrace.pool")


class PoolReplica:
    """`args`: {"runtimes": backends to import, "memory_bytes", "after_s", and "memory_limit_mib" if
    there is a limit}."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        keep_loopback_direct()
        logs.configure_from_environment()
        replica = serve.get_replica_context().replica_id.unique_id
        backend_env.set_compiler_cache(cache_dir())
        await asyncio.to_thread(_preload, args["runtimes"])
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        place = Place(replica, host, args["after_s"], DeviceTurn(), self._end_process)
        actor = registry()
        self._loop_watch = watch_process()
        limit_mib: int | None = args.get("memory_limit_mib")
        loader = ModelLoader(cache_dir(), reserved_cpus(), limit_mib)
        loading = PoolLoading(
            loader, place, lambda progress: actor.report.remote(PROGRESS.encode(progress)),
            self._loop_watch.may_stall,
        )  # fmt: skip
        self._residents = Residents(
            replica, loading, args["memory_bytes"], lambda: self._announcements.changed.set()
        )
        self._announcements = Announcements(replica, self._residents, actor)
        self._tasks = [
            asyncio.get_running_loop().create_task(work)
            for work in (
                self._residents.run(),
                self._announcements.keep(),
                PoolOrders(self._residents, actors.running_autoscaler).follow(),
            )
        ]
        if limit_mib is not None:
            self._tasks.append(
                asyncio.get_running_loop().create_task(self._watch_memory(limit_mib))
            )

    async def _watch_memory(self, limit_mib: int) -> None:
        held = self._residents
        await watch_memory(held.running, limit_mib, self._end_process, lambda: held.loads)

    async def channel_key(self, member: str) -> bytes:
        """What a gateway must know to connect. Only for callers inside the cluster."""
        return self._residents.key_of(member)

    async def check_health(self) -> None:
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"the pool replica has stopped working: {task.exception()!r}")
        await self._residents.check()

    async def __del__(self) -> None:
        """Attributes may be missing, because a constructor that failed did not set them."""
        for task in getattr(self, "_tasks", ()):
            task.cancel()
        if hasattr(self, "_announcements"):
            await self._announcements.withdraw()
            await self._residents.close()
        if hasattr(self, "_loop_watch"):
            self._loop_watch.close()

    def _end_process(self, reason: str = "a batch or a load took too long") -> None:
        logger.error("%s; the replica ends", reason)
        os._exit(HUNG_EXIT_CODE)


def _preload(runtimes: Sequence[str]) -> None:
    for runtime in runtimes:
        catalog.preload(runtime)
