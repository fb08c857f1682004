"""How does a process that runs already take in a model: staged, loaded, compared, warmed, served?

It starts a model as the model's own replica does, with two differences. The warm-up is brief, one
row of each length for `WARM_S`, because the model is wanted at once; other shapes are compiled when
they come. And nothing is measured: gateways know the model's costs from its own replicas.

A model's size is the process's growth while it was loaded, or the size of its files, whichever is
more. Other models' work may make the first too large, and memory that was free already may make it
too small. Nothing in Python ends a thread, so fetching or loading that takes longer than the
model's `start_timeout_s` ends the process.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from deployments.contract.registry import ReplicaProgress
from deployments.contract.scaling.messages import PoolModel
from deployments.replica import describe
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.known_costs import start_of
from deployments.replica.local_settings import settings_here
from deployments.replica.pool.resident import LoadedModel, Place, ServedResident
from deployments.replica.startup_progress import StartupProgress
from deployments.replica.verify import gate
from deployments.settings.channel import ChannelSettings
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings_files.sources import resolve
from runtimes import catalog, source, warmup
from runtimes.errors import LoadError

WARM_S = 0.5
_MIB = 1 << 20
Progress = Callable[[str, float], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads models. Its methods block: call them in a thread. `reserved_cpus`: as in
    `processors.threads`. `limit_mib`: resident memory of the whole process; None: no limit."""

    cache_dir: Path
    reserved_cpus: float | None
    limit_mib: int | None = None

    def settings_of(self, model: PoolModel, progress: Progress) -> ModelSettings:
        """The model's settings, after its files were brought to this node. Raises SourceError, and
        LoadError for a model that generates."""
        settings = settings_here(model.args["settings"], 1)
        if settings.task == catalog.GENERATE:
            raise LoadError(f"model {model.name} generates text; the pool runs batches alone")
        return local_model(settings, self.cache_dir, progress)

    def load(self, model: PoolModel, settings: ModelSettings, progress: Progress) -> LoadedModel:
        """Load the model. Raises what loading, warming or the comparison raise; then nothing is
        left of it."""
        began, before = time.perf_counter(), _resident_bytes()
        start = start_of(
            describe.runtime_settings(
                model.name, settings, self.cache_dir, progress, self.reserved_cpus
            ),
            settings,
            self.cache_dir,
        )
        runtime = catalog.create(start.settings)
        try:
            runtime.load()
            gate.admit(settings, start.settings, runtime)
            warmup.briefly(start.settings, runtime.limits(), runtime.run, WARM_S)
            version = describe.version(settings, self.cache_dir)
            self._hold_to_limit()
        except BaseException:
            runtime.close()
            raise
        size = max(_resident_bytes() - before, artifact_bytes(settings, self.cache_dir))
        took_s = time.perf_counter() - began
        return LoadedModel(model.name, model.key, settings, runtime, version, size, took_s)

    def _hold_to_limit(self) -> None:
        """Raises LoadError if the process is over its limit with the model that was loaded."""
        resident_mib = _resident_bytes() / _MIB
        if self.limit_mib is not None and resident_mib > self.limit_mib:
            raise LoadError(
                f"with it the process has {resident_mib:.0f} MiB resident, {self.limit_mib} "
                "allowed (scaling.pool.memory_limit_mib)"
            )


class PoolLoading:
    """Implements `residents.Loading`. `report` sends a `ReplicaProgress`; `may_stall` is entered
    while a model is loaded, see `LoopWatch`."""

    def __init__(
        self,
        loader: ModelLoader,
        place: Place,
        report: Callable[[ReplicaProgress], Any],
        may_stall: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._loader = loader
        self._place = place
        self._report = report
        self._may_stall = may_stall
        self._number = itertools.count(1)
        self._progress: dict[str, StartupProgress] = {}

    async def min_bytes(self, model: PoolModel) -> int:
        progress = self._begun(model)

        def size() -> int:
            settings = self._loader.settings_of(model, progress.report)
            return artifact_bytes(settings, self._loader.cache_dir)

        return await self._in_time(model, size)

    async def load(self, model: PoolModel) -> LoadedModel:
        progress = self._begun(model)

        def load() -> LoadedModel:
            settings = self._loader.settings_of(model, progress.report)
            return self._loader.load(model, settings, progress.report)

        with self._may_stall():
            return await self._in_time(model, load)

    async def _in_time(self, model: PoolModel, work: Callable[[], T]) -> T:
        """Do the work in a thread. Raises what it raises; work that takes too long ends the
        process."""
        limit_s = model.args.get("start_timeout_s", ReplicaSettings().start_timeout_s)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await asyncio.to_thread(work)
        except TimeoutError:
            if limit.expired():
                self._place.on_hang()
            raise

    async def serve(self, model: PoolModel, loaded: LoadedModel) -> ServedResident:
        member = f"{self._place.replica}.{next(self._number)}"
        channel = ChannelSettings.model_validate(model.args["channel"])
        resident = await ServedResident.serve(loaded, member, channel, self._place)
        self._begun(model).report("ready", 1.0)
        del self._progress[model.name]
        return resident

    def _begun(self, model: PoolModel) -> StartupProgress:
        """The progress of the model's load that is under way, or of a new one."""
        known = self._progress.get(model.name)
        if known is None:
            replica = f"{self._place.replica}.{model.name}"
            known = self._progress[model.name] = StartupProgress(model.name, replica, self._report)
        return known


def artifact_bytes(settings: ModelSettings, cache_dir: Path) -> int:
    """Bytes of the model's files on this node, the least that its weights take; 0 without files."""
    if settings.source is None or settings.runtime == "synthetic":
        return 0
    found = source.inspect(resolve(settings.source), cache_dir)
    return sum(file.stat().st_size for file in found.files)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
