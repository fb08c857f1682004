"""How a model's replica starts and goes, whatever it runs, and what the registry hears of it.

A constructor loads, warms and profiles before it returns, so a replica that runs is hot; which
phase it is in, how far, and why it failed, the registry hears. A replica whose device or engine
hangs ends its process (`os._exit`): Serve replaces it, and gateways retry what it had.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve

from deployments.contract import logs
from deployments.contract.channel.sockets import server_tls
from deployments.contract.description import ModelDescription
from deployments.contract.groups import version_of
from deployments.contract.loopback import keep_replica_calls_local
from deployments.contract.registry import ReplicaProgress
from deployments.contract.registry_actor import registry
from deployments.contract.scaling import actor_name
from deployments.replica import backend_env
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.channel_server import ChannelServer, LeaseCore
from deployments.replica.describe import version
from deployments.replica.start_phases import READY, StartPhases
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.load import make_paths_absolute, settings_digest
from deployments.settings.made import cache_dir
from deployments.settings.model import ModelSettings
from deployments.settings.sources import sources_folder
from runtimes.errors import RuntimeFault

HUNG_EXIT_CODE = 70
logger = logging.getLogger("headrace.replica")


class ModelReplica:
    """What batch and stream replicas have in common. A constructor calls `_start_up` and, last,
    `_listen`; a subclass says in `_load` how its runtime becomes hot."""

    async def _start_up(self, args: dict[str, Any]) -> None:
        """`args`: {"name", "settings" and "channel" as the user wrote them, "group" of a model that
        has any}."""
        keep_replica_calls_local()
        logs.configure_from_environment()
        context = serve.get_replica_context()
        self._name: str = args["name"]
        self._group: str = args.get("group", "")
        self._settings = settings_here(args["settings"], context.world_size)
        self._progress = StartupProgress(
            self._name, context.replica_id.unique_id, self._group, time.monotonic()
        )
        backend_env.set_compiler_cache(cache_dir())
        try:
            self._settings = await asyncio.to_thread(
                local_model, self._settings, cache_dir(), self._progress.tell
            )
            self._description, self._tokenizer = await self._load(
                cache_dir(), settings_digest(args["settings"])
            )
        except Exception as fault:
            await self._progress.failed(fault)
            raise

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        """The description of the loaded and warm model, and its tokeniser's bytes."""
        raise NotImplementedError

    async def _listen(self, core: LeaseCore, args: dict[str, Any]) -> None:
        """Lets gateways in, which is the last thing before the replica is ready."""
        channel = ChannelSettings.model_validate(args["channel"])
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._server = ChannelServer(core, replica_id, tls=server_tls(channel_tls(channel)))
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        await self._server.listen(host, channel_ports(channel))
        self._progress.ready()

    async def _drain(self) -> None:
        """A constructor that failed has let nobody in."""
        server = getattr(self, "_server", None)
        if server is not None:
            await server.drain()

    async def _let_go(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            await server.close()

    def _end_process(self, reason: str) -> None:
        logger.error("%s; the replica ends", reason, extra={"model": self._name})
        os._exit(HUNG_EXIT_CODE)

    def record_replica_metadata(self) -> dict[str, str]:
        """What gateways hear of a running replica. Serve calls it once the constructor is done."""
        description, address = self._description, self._server.address
        group = {"group": self._group} if self._group else {}
        return {
            "version": description.version, "digest": description.digest, "channel": address,
            **group,
        }  # fmt: skip

    async def channel_key(self) -> bytes:
        """What a gateway must know to connect; for callers inside the cluster alone."""
        return self._server.key

    async def describe(self) -> tuple[ModelDescription, bytes]:
        """The model's description and its tokeniser's bytes (empty without one)."""
        return self._description, self._tokenizer

    async def version(self, views: list[dict[str, Any]]) -> str:
        """Of the whole model, given the settings that each of its groups is started with."""
        return await asyncio.to_thread(_version_of, views)


def _version_of(views: list[dict[str, Any]]) -> str:
    models = [settings_here(view, 1) for view in views]
    local = [local_model(model, cache_dir(), lambda phase, share: None) for model in models]
    return version_of([version(model) for model in local])


def settings_here(written: dict[str, Any], replicas: int) -> ModelSettings:
    """What the user wrote, with its paths as this node has them and how many replicas share it."""
    models = {"model": copy.deepcopy(written)}
    folder = sources_folder()
    if folder is not None:
        make_paths_absolute(models, folder)
    settings = ModelSettings.model_validate(models["model"])
    fixed = {"count": max(1, replicas), "min": None, "max": None}
    counted = settings.replicas.model_copy(update=fixed)
    return settings.model_copy(update={"replicas": counted})


class StartupProgress:
    """`model`: its name; `replica`: this replica's id; `began`: when its start did, monotonic."""

    def __init__(self, model: str, replica: str, group: str, began: float) -> None:
        self._model = model
        self._replica = replica
        self._group = group
        self._times = StartPhases(began)
        self._registry = registry()
        self._phases: dict[str, None] = {}

    def tell(self, phase: str, fraction: float, detail: str = "") -> Any:
        """Sent at once; await what it returns only where it must have arrived."""
        self.mark(phase)
        passed = tuple(self._phases)
        self._phases[phase] = None
        progress = ReplicaProgress(self._model, self._replica, phase, fraction, detail, passed)
        return self._registry.report.remote(progress)

    def mark(self, phase: str) -> None:
        """It begins, which is worth knowing but not worth telling."""
        self._times.mark(phase, time.monotonic())

    def ready(self) -> None:
        """Tells the autoscaler too, how long it took; one that is away does without."""
        self.tell(READY, 1.0)
        start = self._times.reading(self._model, self._group, time.monotonic())
        try:
            actor_name.running().started.remote(start)
        except ValueError as nobody:
            logger.debug("no autoscaler hears of the start: %s", nobody)

    async def failed(self, fault: Exception) -> None:
        """What a backend says of a model is said by the caller; anything else shows where it
        arose. Returns when the registry has it: the process may end after that."""
        if not isinstance(fault, RuntimeFault):
            logger.exception("the model cannot start", extra={"model": self._model})
        await self.tell("failed", 0.0, _reason(fault))


def _reason(fault: Exception) -> str:
    """A backend's own sentence as it is; of anything else also what it is."""
    return str(fault) if isinstance(fault, RuntimeFault) else f"{type(fault).__name__}: {fault}"
