"""The Ray Serve deployment of a model that generates: wires a stream runtime to the stream core.

As `BatchReplica`, but what runs inside is an engine that batches by itself, and what comes of its
requests goes out on one stream a gateway. The constructor loads, warms and profiles before it
returns, so a replica that runs is hot. An engine that makes no step while requests run ends the
process (`os._exit`): Serve replaces the replica, and gateways run again what had not begun to
answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ray import serve

from deployments.contract import logs
from deployments.contract.description import ModelDescription
from deployments.contract.loopback import keep_replica_calls_local
from deployments.contract.stream_wire import GenerateCall, StepMessage
from deployments.replica import backend_env, describe
from deployments.replica.startup_progress import StartupProgress
from deployments.replica.stream_core import StreamCore, watch_stalls
from deployments.settings import ModelSettings
from runtimes import catalog
from runtimes.stream_profiling import Profile, measure
from runtimes.types import StreamRuntime

HUNG_EXIT_CODE = 70
_ROOM = 2  # requests taken for each that the engine runs at once: the others wait in the engine
logger = logging.getLogger("headrace.replica")


class StreamReplica:
    """`args` as of `BatchReplica`."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        logs.configure(args["log"]["level"], args["log"]["format"])
        self._name: str = args["name"]
        self._settings = ModelSettings.model_validate(args["settings"])
        self._progress = StartupProgress(
            self._name, serve.get_replica_context().replica_id.unique_id
        )
        try:
            profile = await self._start(Path(args["cache_dir"]))
            self._description, self._tokenizer = describe.describe_stream(
                self._name, self._settings, args["digest"], self._runtime, profile
            )
        except Exception as fault:
            await self._progress.failed(fault)
            raise
        self._core = StreamCore(self._runtime, self._runtime.limits().max_sequences * _ROOM)
        limit_s = self._settings.replicas.hang_limit_s
        self._watch = asyncio.get_running_loop().create_task(
            watch_stalls(self._core, limit_s, self._stalled, min(1.0, limit_s / 4))
        )
        self._progress.tell("ready", 1.0)

    async def _start(self, cache_dir: Path) -> Profile:
        backend_env.set_compiler_cache(cache_dir)
        settings = describe.runtime_settings(
            self._name, self._settings, cache_dir, self._progress.tell
        )
        backend_env.set_engine_variables(settings)
        self._runtime: StreamRuntime = catalog.create_stream(settings)
        await self._runtime.load()
        await self._runtime.warm()
        return await measure(self._name, self._runtime, self._settings.profile_s)

    def _stalled(self) -> None:
        logger.error(
            "the engine made no step within hang_limit_s; the replica ends",
            extra={"model": self._name},
        )
        os._exit(HUNG_EXIT_CODE)

    def record_replica_metadata(self) -> dict[str, str]:
        return {"version": self._description.version, "digest": self._description.digest}

    async def begin(self, call: GenerateCall) -> bool:
        """See `StreamCore.begin`."""
        return self._core.begin(call)

    async def abort(self, gateway: str, lease_ids: list[int]) -> int:
        """How many of them ran; see `StreamCore.abort`."""
        return sum(self._core.abort(gateway, lease_id) for lease_id in lease_ids)

    async def messages(self, gateway: str) -> AsyncIterator[StepMessage]:
        """See `StreamCore.messages`."""
        stream = self._core.messages(gateway)
        try:
            async for message in stream:
                yield message
        finally:
            await stream.aclose()

    async def describe(self) -> tuple[ModelDescription, bytes]:
        """The model's page and its tokeniser's bytes (empty without one)."""
        return self._description, self._tokenizer

    async def check_health(self) -> None:
        await self._core.health()

    async def __del__(self) -> None:
        """A constructor that failed leaves some of these unmade."""
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.cancel()
        core = getattr(self, "_core", None)
        if core is not None:
            await core.close()
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            await runtime.close()
