"""The Ray Serve deployment of a model that generates: wires a stream runtime to the stream core.

The runtime is an engine that batches by itself; its output is sent after each of its steps. An
engine that makes no step while requests run ends the process (`stalls`), and so does an engine that
has died in a process of its own. For gateways both are a lost replica: they count the loss against
its prompts, and run again those that had not begun to answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.replica import backend_env, describe
from deployments.replica.hang_limits import hang_limits
from deployments.replica.processors import reserved_cpus
from deployments.replica.stalls import watch_stalls
from deployments.replica.startup import ModelReplica
from deployments.replica.stream_core import StreamCore
from routers.shared_engines import WAITING_SHARE
from runtimes import catalog
from runtimes.stream_profiling import measure
from runtimes.types import StreamRuntime


class StreamReplica(ModelReplica):
    """See `ModelReplica`."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        await self._start_up(args)
        at_once = self._runtime.limits().max_sequences
        self._core = StreamCore(
            self._runtime, at_once * WAITING_SHARE, at_once, on_death=self._end_process
        )
        limits = hang_limits(self._settings)
        self._watch = asyncio.get_running_loop().create_task(
            watch_stalls(self._core, limits, self._end_process, min(1.0, limits.max_s / 4))
        )
        await self._listen(self._core, args)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        name, model = self._name, self._settings
        settings = describe.runtime_settings(
            name, model, cache_dir, self._progress.report, reserved_cpus()
        )
        backend_env.set_engine_variables(settings)
        self._runtime: StreamRuntime = catalog.create_stream(settings)
        await self._runtime.load()
        await self._runtime.warm()
        self._progress.report("profiling", 0.0)
        profile = await measure(name, self._runtime, model.profile_s)
        return describe.describe_stream(name, model, digest, self._runtime, profile)

    async def check_health(self) -> None:
        await self._core.health()

    async def __del__(self) -> None:
        """Attributes may be missing, because a constructor that failed did not set them."""
        await self._drain()
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.cancel()
        core = getattr(self, "_core", None)
        if core is not None:
            await core.close()
        await self._let_go()
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            await runtime.close()
