"""The Ray Serve deployment of the shared pool: a process that can become any of the pool's models.

Its constructor imports the backends' libraries, which is most of a start apart from loading a
model. Then it runs and holds nothing (*warm*), until the autoscaler orders it to hold models. One
loop reports each second to the autoscaler what the replica holds, and gets its order. While the
autoscaler is away, or has decided nothing yet (revision 0), the replica goes on with what it holds.
Another loop tells the registry which models are served: a lease, so that gateways forget a replica
that has stopped telling. A batch that hangs ends the process, and so does a process that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

import ray
from ray import serve

from deployments.contract.registry import LEASE_S, MEMBERS, PROGRESS, PoolMember
from deployments.contract.scaling.messages import POOL_ORDER, POOL_REPORT
from deployments.process import actors, log_choice
from deployments.process.actors import registry
from deployments.process.loop_watch import HUNG_EXIT_CODE, watch_process
from deployments.process.loopback import keep_loopback_direct, keep_replica_calls_local
from deployments.replica import backend_env
from deployments.replica.backend_env import reserved_cpus
from deployments.replica.device import DeviceTurn
from deployments.replica.device_memory import gpus_of, watch_device_memory
from deployments.replica.pool.loading import ModelLoader, PoolLoading
from deployments.replica.pool.residents import Residents
from deployments.replica.pool.serving import PoolContext
from deployments.replica.watchdogs import watch_memory
from deployments.settings_files.made import cache_dir
from runtimes import catalog

REPORT_S = 1.0
ANSWER_S = 5.0


class OrderFollower:
    """Follows the autoscaler's orders. `autoscaler()` returns the actor, or raises if there is
    none."""

    def __init__(self, residents: Residents, autoscaler: Callable[[], Any]) -> None:
        self._residents = residents
        self._autoscaler = autoscaler
        self._revision = 0
        self._away = False

    async def follow(self) -> None:
        """Report and follow orders until cancelled."""
        while True:
            try:
                report = POOL_REPORT.encode(self._residents.report())
                asked = self._autoscaler().pool.remote(report, self._revision, REPORT_S)
                order = POOL_ORDER.decode(await asyncio.wait_for(asked, REPORT_S + ANSWER_S))
                if order.revision and order.revision != self._revision:
                    self._residents.hold(order.models)
                self._revision = order.revision
                self._away = False
            except Exception as fault:
                if not self._away:
                    logger.warning("the autoscaler is away; what is held stays: %s", fault)
                self._away = True
                await asyncio.sleep(REPORT_S)


class PoolAnnouncer:
    """Tells the registry what is served. Set `changed` whenever that changes."""

    def __init__(self, replica: str, residents: Residents, registry: Any) -> None:
        self._replica = replica
        self._residents = residents
        self._registry = registry
        self.changed = asyncio.Event()

    async def keep(self) -> None:
        """Tell the registry until cancelled."""
        while True:
            self.changed.clear()
            try:
                await self._hold(self._residents.members)
            except Exception:
                logger.exception("the registry does not hear what the pool serves; trying again")
                await asyncio.sleep(LEASE_S / 10)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), LEASE_S / 5)

    async def withdraw(self) -> None:
        with contextlib.suppress(TimeoutError):  # then the lease runs out
            await self._hold(())

    async def _hold(self, members: tuple[PoolMember, ...]) -> None:
        held = self._registry.hold.remote(self._replica, MEMBERS.encode(members))
        await asyncio.wait_for(held, ANSWER_S)


logger = logging.getLogger("headrace.pool")


class PoolReplica:
    """`args`: {"runtimes": backends to import, "engines": the same of models that generate, if any,
    "memory_bytes", "after_s", "memory_limit_mib" if there is a limit, "num_gpus" and "asleep_bytes"
    if any}."""

    _memory_watch: asyncio.Task[None] | None = None  # ends when the driver is gone

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        keep_loopback_direct()
        log_choice.follow()
        replica = serve.get_replica_context().replica_id.unique_id
        backend_env.set_compiler_cache(cache_dir())
        for runtime in args["runtimes"]:
            await asyncio.to_thread(catalog.preload, runtime)
        for runtime in args.get("engines", ()):
            await asyncio.to_thread(catalog.preload, runtime, catalog.GENERATE)
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        place = PoolContext(replica, host, args["after_s"], DeviceTurn(), self._end_process)
        actor = registry()
        self._loop_watch = watch_process()
        limit_mib: int | None = args.get("memory_limit_mib")
        gpus = await asyncio.to_thread(gpus_of, "cpu", args.get("num_gpus", 0.0))
        asleep_bytes: int = args.get("asleep_bytes", 0)
        loader = ModelLoader(cache_dir(), reserved_cpus(), limit_mib, gpus, asleep_bytes)
        loading = PoolLoading(
            loader, place, lambda progress: actor.report.remote(PROGRESS.encode(progress)),
            self._loop_watch.may_stall,
        )  # fmt: skip
        self._residents = Residents(
            replica, loading, args["memory_bytes"], lambda: self._announcements.changed.set(),
            asleep_bytes=asleep_bytes,
        )  # fmt: skip
        self._announcements = PoolAnnouncer(replica, self._residents, actor)
        self._tasks = [
            asyncio.get_running_loop().create_task(work)
            for work in (
                self._residents.run(),
                self._announcements.keep(),
                OrderFollower(self._residents, actors.running_autoscaler).follow(),
            )
        ]
        if gpus is not None:
            watching = watch_device_memory(lambda: gpus, self._residents.tell_memory)
            self._memory_watch = asyncio.get_running_loop().create_task(watching)
        if limit_mib is not None:
            held = self._residents
            watch = watch_memory(held.running, limit_mib, self._end_process, lambda: held.loads)
            self._tasks.append(asyncio.get_running_loop().create_task(watch))

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
        if self._memory_watch is not None:
            self._memory_watch.cancel()
        if hasattr(self, "_announcements"):
            await self._announcements.withdraw()
            await self._residents.close()
        if hasattr(self, "_loop_watch"):
            self._loop_watch.close()

    def _end_process(self, reason: str = "a batch or a load took too long") -> None:
        logger.error("%s; the replica ends", reason)
        os._exit(HUNG_EXIT_CODE)


class PoolAnchor:
    """Does nothing."""

    def __init__(self, replicas: Any) -> None:
        """`replicas`: handle of the deployment below, which makes it part of the application."""
        self._replicas = replicas
