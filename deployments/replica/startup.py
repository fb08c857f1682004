"""How a model's replica starts and ends, whatever it runs, and what it reports to the registry.

The constructor loads, warms and profiles before it returns, so a running replica is hot. The
registry hears the phase, its progress, and why a start failed. Serve gives up an application whose
replicas have failed three times. Replicas of an optional model therefore end late when they fail,
so that whoever waits for all applications has long gone on. A replica whose device or engine hangs,
or will not recover, ends its process (`os._exit`) and the processes that it started: Serve replaces
it, and gateways retry its work.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import ray
from ray import serve

from autoscaling.types import StartReading, State
from deployments.contract.description import DESCRIPTION, ModelDescription
from deployments.contract.registry import PROGRESS
from deployments.contract.scaling.messages import START
from deployments.contract.version import SPOKEN_TEXT
from deployments.process import actors, logs
from deployments.process.actors import registry
from deployments.process.loop_watch import HUNG_EXIT_CODE, watch_process
from deployments.process.loopback import keep_loopback_direct, keep_replica_calls_local
from deployments.process.sockets import server_tls
from deployments.replica import backend_env
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.channel_server import ChannelServer, LeaseCore
from deployments.replica.describe import version
from deployments.replica.groups import version_of
from deployments.replica.local_settings import settings_here
from deployments.replica.siblings import LONGEST_WAIT_S, together
from deployments.replica.startup_progress import StartupProgress, process_age_s, took
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.plain import settings_digest
from deployments.settings_files.made import cache_dir

_OPTIONAL_ENDS_S = 600.0
_COLD_S = 1.0  # fetching and converting take longer; looking for what is there takes less
logger = logging.getLogger("headrace.replica")


class ModelReplica:
    """What batch and stream replicas have in common. A constructor calls `_start_up` first and
    `_listen` last; a subclass makes its runtime hot in `_load`."""

    async def _start_up(self, args: dict[str, Any]) -> None:
        """Load the model. `args`: {"name", "settings" and "channel" as the user wrote them, and
        "group" if the model has groups}."""
        keep_replica_calls_local()
        keep_loopback_direct()
        logs.configure_from_environment(args["name"])
        context = serve.get_replica_context()
        self._name: str = args["name"]
        self._group: str = args.get("group", "")
        self._digest = settings_digest(args["settings"])
        self._settings = settings_here(args["settings"], context.world_size)
        actor = registry()
        self._progress = StartupProgress(
            self._name,
            context.replica_id.unique_id,
            lambda progress: actor.report.remote(PROGRESS.encode(progress)),
            process_age_s(),
            digest=self._digest,
        )
        self._progress.report("starting", 0.0)
        backend_env.set_compiler_cache(cache_dir())
        try:
            self._settings = await asyncio.to_thread(
                local_model, self._settings, cache_dir(), self._progress.report
            )
            self._description, self._tokenizer = await self._load(cache_dir(), self._digest)
        except Exception as fault:
            await self._progress.failed(fault)
            if self._settings.optional:
                await self._end_late()
            raise

    async def _end_late(self) -> None:
        """Wait before the process ends; then Serve starts another, which tries again."""
        logger.warning(
            "it is optional: nothing waits for it, and it is tried again in %g s",
            _OPTIONAL_ENDS_S,
            extra={"model": self._name},
        )
        await asyncio.sleep(_OPTIONAL_ENDS_S)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        """Load and warm the model. Returns its description and its tokeniser's bytes."""
        raise NotImplementedError

    async def _listen(self, core: LeaseCore, args: dict[str, Any]) -> None:
        """Let gateways connect. It is the last step before the replica is ready."""
        channel = ChannelSettings.model_validate(args["channel"])
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._server = ChannelServer(core, replica_id, tls=server_tls(channel_tls(channel)))
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        await self._server.listen(host, channel_ports(channel))
        self._loop_watch = watch_process()
        self._progress.report("ready", 1.0)
        tell_autoscaler(self._name, self._group, self._progress.spent())
        logger.info("ready: %s", took(self._progress.spent()), extra={"model": self._name})
        longest_s = min(sum(seconds for _, seconds in self._progress.spent()), LONGEST_WAIT_S)
        await together(self._name, self._digest, longest_s)

    async def _drain(self) -> None:
        """Finish all leases. Does nothing if the constructor failed before it let gateways
        connect."""
        server = getattr(self, "_server", None)
        if server is not None:
            await server.drain()

    async def _let_go(self) -> None:
        """Close the connections, and stop watching the loop."""
        watch = getattr(self, "_loop_watch", None)
        if watch is not None:
            watch.close()
        server = getattr(self, "_server", None)
        if server is not None:
            await server.close()

    def _end_process(self, reason: str) -> None:
        logger.error("%s; the replica ends", reason, extra={"model": self._name})
        for child in multiprocessing.active_children():
            child.kill()  # else an engine would go on, and hold its device's memory
        os._exit(HUNG_EXIT_CODE)

    def record_replica_metadata(self) -> dict[str, str]:
        """What gateways are told of a running replica. Serve calls it after the constructor."""
        description, address = self._description, self._server.address
        group = {"group": self._group} if self._group else {}
        return {
            "version": description.version, "digest": description.digest, "channel": address,
            "channel_versions": SPOKEN_TEXT, **group,
        }  # fmt: skip

    async def channel_key(self) -> bytes:
        """What a gateway must know to connect. Only for callers inside the cluster."""
        return self._server.key

    async def describe(self) -> tuple[bytes, bytes]:
        """The model's description, and its tokeniser's bytes (empty without one)."""
        return DESCRIPTION.encode(self._description), self._tokenizer

    async def version(self, views: list[dict[str, Any]]) -> str:
        """The version of the whole model, given the settings of each of its groups."""
        return await asyncio.to_thread(_version_of, views)


def tell_autoscaler(model: str, group: str, spent: tuple[tuple[str, float], ...]) -> None:
    """Tell the autoscaler how long the phases of a start took, if there is an autoscaler."""
    staged = dict(spent).get("staging", 0.0) < _COLD_S
    seconds = sum(seconds for _, seconds in spent)
    start = StartReading(model, group, State.STAGED if staged else State.COLD, seconds, spent)
    try:
        actors.running_autoscaler().started.remote(START.encode(start))
    except Exception as nobody:
        logger.debug("no autoscaler hears of the start: %r", nobody)


def _version_of(views: list[dict[str, Any]]) -> str:
    models = [settings_here(view, 1) for view in views]
    local = [local_model(model, cache_dir(), lambda phase, share: None) for model in models]
    return version_of([version(model) for model in local])
