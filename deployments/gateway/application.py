"""How does a gateway start? The Ray Serve application, and the deployment that wires the app.

Serve calls `gateway` inside the cluster, with the arguments that `serve_config` writes; its options
never change while it runs, except those that `serve_config` overrides. `Gateway` makes settings,
tenants, the registry, models and metrics. Background tasks are started in the constructor, where
there is no request's context whose end would cancel them. Ray Serve gets the same app as the fast
path, so all ways into the process lead to the same queues.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve

from deployments.contract import haproxy_settings
from deployments.contract.app_names import GATEWAY_DEPLOYMENT
from deployments.contract.description import GatewayIdentity
from deployments.contract.registry import EXCHANGE, SNAPSHOT
from deployments.contract.scaling.messages import (
    GATEWAY_REPORT,
    OUTLOOKS,
    GatewayReport,
    ModelOutlook,
)
from deployments.gateway.app import GatewayApp, assembled
from deployments.gateway.ending import GatewayShutdown
from deployments.gateway.http import fast_path, strict_protocol
from deployments.gateway.http.body import MIN_BYTES_PER_S
from deployments.gateway.http.direct_server import DirectServer
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.models.crash_exchange import CrashExchange
from deployments.gateway.queues.connections import ServeChannel
from deployments.gateway.scaling.reporter import DemandReporter
from deployments.gateway.telemetry.gateway_telemetry import GatewayTelemetry
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.live_tenants import (
    LiveTenants,
    OperatorsSwitch,
    PublishedTenants,
    RevokedFolder,
    RevokedKeys,
    TenantsPath,
    TenantsSource,
)
from deployments.gateway.tenancy.rates import MAX_USED
from deployments.process import (
    actors,
    adapters_store,
    audit,
    listening_socket,
    log_choice,
    tenants_store,
)
from deployments.process.actors import registry
from deployments.process.audit import AuditLine
from deployments.process.loop_watch import watch_process
from deployments.process.loopback import keep_loopback_direct, keep_replica_calls_local
from deployments.process.sockets import client_tls
from deployments.settings.channel import channel_tls
from deployments.settings.gateway import MIB, GatewaySettings

REVOKED_KEYS = "HEADRACE_REVOKED_KEYS"
"""A folder on this node that names keys which are revoked in every cluster; unset: none."""
_REFRESH_S = 1.0  # how often metrics are refreshed, and the registry is told of this gateway
_TENANTS_S = 0.5  # how often tenants are read: a revoked key is refused this long afterwards
_PUSH_ANSWER_S = 2.0  # how long the registry may take for an answer
_PUSHES_APART_S = 0.1  # shortest time between two pushes, whatever there is to tell
_CATCH_UP_S = 3.0  # for a gateway to know the models that run, before it takes callers
_TENANTS_TRIES = 120  # for the first tenants
_TENANTS_PAUSE_S = 0.5  # between those tries
_MAX_PENDING = 1024  # jobs that wait for a thread: half of the requests that may be under way
_TOKEN_CACHE_BYTES = 64 * MIB  # of each tokeniser, for texts that come again
_GC_THRESHOLDS = (10_000, 20, 100)  # net new objects; collections of the young; of the older
logger = logging.getLogger("headrace.gateway")
# Of a health check, which never waits for a batch. Serve replaces a gateway that missed three in a
# row, half a second apart: one that is stopped after 10 s. One that has ended is found at once.
_HEALTH_S = 3.0


class Gateway:
    """One gateway, as a Ray Serve replica. `args`: {"settings": a plain dict, "tenants_path": where
    tenants are read, None: they are published}."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        keep_loopback_direct()
        context = serve.get_replica_context()
        # The number of gateways is no argument, so that changing it restarts none of them.
        settings = GatewaySettings.model_validate(args["settings"]).model_copy(
            update={"replicas": max(1, context.world_size)}
        )
        rank = context.rank.rank if context.rank is not None else 0
        self._name = f"gateway-{rank}"
        self._uid = context.replica_id.unique_id
        self._registry = registry()
        self._tenants = await _first_tenants(args["tenants_path"], settings)
        log_choice.begin_publishing(settings.log.level, settings.log.format)
        self._pool = FairThreadPool(settings.preprocess.workers, _MAX_PENDING)
        on_node = context.rank.local_rank if context.rank is not None else 0
        self._telemetry = GatewayTelemetry(self._name, settings, on_node)
        self._models = Catalogue(
            self._registry,
            GatewayIdentity(self._uid, len(settings.priorities), self._tenants.frozen),
            _TOKEN_CACHE_BYTES,
            self._telemetry.batch,
            partial(ServeChannel, tls=client_tls(channel_tls(settings.channel))),
        )
        self._telemetry.watch(self._models, self._pool, self._tenants)
        self._app = assembled(
            settings, self._tenants, self._models, self._pool, self._telemetry, self._registry
        )
        self._app.external.open_regions(_session_folder())
        slots = MAX_USED * settings.limits.max_requests
        self._app.suspected.watch(_notes_folder(), self._uid, slots)
        self._crashes = CrashExchange(self._models, self._app.suspected.records)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._models.follow()),
            loop.create_task(self._follow_tenants()),
            loop.create_task(self._every_second()),
            loop.create_task(self._tell_registry()),
            loop.create_task(DemandReporter(self._uid, self._models, _tell_autoscaler).run()),
        ]
        strict_protocol.enforce(settings.limits.headers_timeout_s, MIN_BYTES_PER_S)
        fast_path.install(self._app, haproxy_settings.page(settings))
        holder = listening_socket.path_of_holder()
        self._direct = DirectServer(self._app, settings) if holder else None
        self._ending = GatewayShutdown(
            self._models,
            settings.drain_s,
            under_way=self._under_way,
            gateways=lambda: self._app.rates.gateways,
            leave=self._leave,
        )
        self._ending.watch()
        settle()
        self._loop_watch = watch_process()
        if self._direct is not None and holder is not None:
            await self._catch_up()
            await self._direct.start(holder)

    async def _catch_up(self) -> None:
        """Connect to the models that run, if that is quick: callers wait in the socket's queue."""
        end = time.monotonic() + _CATCH_UP_S
        while not self._models.caught_up and time.monotonic() < end:  # noqa: ASYNC110 - it is brief
            await asyncio.sleep(0.02)

    def _under_way(self) -> int:
        """Requests, or the connections that may bring one more."""
        return max(self._app.under_way, self._direct.open if self._direct else 0)

    def __serve_build_asgi_app__(self) -> GatewayApp:
        return self._app

    async def _follow_tenants(self) -> None:
        """Adopt changed tenants, revoked keys, the switch that freezes controllers, and adapters
        that operators have changed, for ever. Needs only the store that holds them, not the
        registry."""
        while True:
            try:
                before = self._tenants.digest
                if await asyncio.to_thread(self._tenants.refresh):
                    audit.record(
                        AuditLine(self._name, "take up", "tenants", self._tenants.origin,
                                  before, self._tenants.digest)
                    )  # fmt: skip
                self._models.freeze(self._tenants.frozen)
                self._models.adapt(await asyncio.to_thread(adapters_store.fetch))
            except Exception:
                logger.exception("the tenants cannot be looked at; going on with those there are")
            await asyncio.sleep(_TENANTS_S)

    async def _every_second(self) -> None:
        while True:
            try:
                self._telemetry.refresh()
                self._telemetry.audit_keys()
            except Exception:
                logger.exception("refreshing failed; going on")
            await asyncio.sleep(_REFRESH_S)

    async def _tell_registry(self) -> None:
        """Exchange reports with the other gateways through the registry, for ever: once a second,
        and at once after a replica was lost. Pushed: the snapshot that `status` shows, tenants'
        rates, crashes and rollouts. Returned: the others' rates and crashes. That the registry is
        away is logged once."""
        away = False
        while True:
            try:
                said = replace(
                    self._telemetry.snapshot(),
                    rates=self._app.rates.report(),
                    crashes=self._crashes.report(),
                    rollouts=self._app.rollouts.report(),
                )
                pushed = self._registry.push.remote(self._uid, SNAPSHOT.encode(said))
                others = EXCHANGE.decode(await asyncio.wait_for(pushed, _PUSH_ANSWER_S))
                self._app.rates.on_report(others.rates)
                self._crashes.on_report(others.crashes)
                self._models.take_place(self._uid, others.crashes)
                self._app.suspected.look()
                away = False
            except Exception as fault:
                if not away:
                    logger.warning("the registry took no snapshot: %r; going on", fault)
                away = True
            await asyncio.sleep(_PUSHES_APART_S)
            if not self._models.draining:
                await self._crashes.news(_REFRESH_S - _PUSHES_APART_S)

    async def _leave(self) -> None:
        """End this process. Serve starts another gateway."""
        self._close()
        logging.shutdown()
        os._exit(0)

    async def __del__(self) -> None:
        if self._direct is not None:
            await self._ending.finished()
        self._close()

    def _close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._loop_watch.close()
        for task in self._tasks:
            task.cancel()
        for served in self._models.queued.values():
            served.end_recording()
        self._telemetry.close()
        self._pool.close()
        self._app.suspected.close()


def _notes_folder() -> Path:
    """Of the gateways of this server on this node."""
    return _session_folder() / "headrace-gateways"


def _session_folder() -> Path:
    """Of this node, as long as its Ray runs."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name())


async def _tell_autoscaler(report: GatewayReport) -> Mapping[str, ModelOutlook]:
    """Send the autoscaler a report; what it expects of each model. Raises what Ray raises, and
    ValueError where there is no autoscaler."""
    actor = await asyncio.to_thread(actors.running_autoscaler)
    return OUTLOOKS.decode(await actor.report.remote(GATEWAY_REPORT.encode(report)))


async def _first_tenants(path: str | None, gateway: GatewaySettings) -> LiveTenants:
    """The tenants to start with. Waits for them for a while (`_TENANTS_TRIES`), because whoever
    publishes them may start at the same time. Raises SettingsErrors where there are none."""
    source: TenantsSource = TenantsPath(path) if path else _published()
    revoked = RevokedKeys(tenants_store.revoked, tenants_store.revoke)
    if folder := os.environ.get(REVOKED_KEYS):
        revoked = replace(revoked, folder=RevokedFolder(Path(folder)))
    for _ in range(_TENANTS_TRIES):
        there = await asyncio.to_thread(source.signature) is not None
        if there and await asyncio.to_thread(_can_be_fetched, revoked):
            break
        await asyncio.sleep(_TENANTS_PAUSE_S)
    return await asyncio.to_thread(LiveTenants, source, gateway.priorities, gateway.auth, revoked)


def _can_be_fetched(revoked: RevokedKeys) -> bool:
    try:
        revoked.fetch()
        if revoked.folder is not None:
            revoked.folder.hashes()
    except Exception:
        return False
    return True


def _published() -> PublishedTenants:
    switch = OperatorsSwitch(tenants_store.frozen, tenants_store.freeze)
    return PublishedTenants(tenants_store.fetch, switch)


def settle() -> None:
    """Freeze what exists now, so that the garbage collector skips it from now on, and let it run
    less often: with thousands of requests under way a full collection stops them all for 50 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def gateway(args: dict[str, Any]) -> Any:
    """`args`: {"settings", "tenants_path"}, as `serve_config` writes them."""
    deployment: Any = serve.deployment(
        serve.ingress()(Gateway),
        name=GATEWAY_DEPLOYMENT,
        max_ongoing_requests=100_000,
        max_queued_requests=-1,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=0.5,
        health_check_timeout_s=_HEALTH_S,
    )
    return deployment.bind(args)
