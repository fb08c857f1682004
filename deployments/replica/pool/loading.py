"""How does a process that runs already take in a model: staged, loaded, compared, warmed, served?

It starts a model as the model's own replica does, with two differences: the warm-up of one that
runs batches is brief, one row of each length for `WARM_S`, and nothing is measured. A model's size
is what the process grew by while it was loaded (of one that runs on a GPU, there), or the size of
its files, whichever is more, and what an engine's cache may grow by. Nothing in Python ends a
thread, so loading that takes longer than the model's `start_timeout_s` ends the process.

An engine that serves nobody sleeps (`runtimes.types.Sleeping`): its cache is empty, and its weights
leave a GPU for the host's memory, where the pool has room for them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from deployments.contract.registry import ReplicaProgress
from deployments.contract.scaling.messages import PoolModel
from deployments.replica import backend_env, describe, device_memory
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.block_index import BlockIndex
from deployments.replica.known_costs import cost_sources
from deployments.replica.pool.serving import LoadedModel, PoolContext, ServedResident
from deployments.replica.startup import StartupProgress, settings_here
from deployments.replica.verify import gate
from deployments.settings.channel import ChannelSettings
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings_files.sources import resolve
from runtimes import catalog, warmup
from runtimes.errors import LoadError, MissingBackend
from runtimes.nvml import GpuMemory
from runtimes.types import DeviceMemory, Sleeping

WARM_S = 0.5
_MIB, _GIB = 1 << 20, 1 << 30
Progress = Callable[[str, float], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads models. Its methods block: call them in a thread. `reserved_cpus`: as in
    `backend_env.threads`. `limit_mib`: resident memory of the whole process; None: no limit.
    `gpus`: that Ray reserved; None: none, or nobody can tell. `asleep_bytes`: of the host's memory,
    for engines' weights that were on them."""

    cache_dir: Path
    reserved_cpus: float | None
    limit_mib: int | None = None
    gpus: GpuMemory | None = None
    asleep_bytes: int = 0

    def settings_of(self, model: PoolModel, progress: Progress) -> ModelSettings:
        """The model's settings, after its files were brought to this node. Raises SourceError."""
        settings = settings_here(model.args["settings"], 1)
        return local_model(settings, self.cache_dir, progress)

    def load(self, model: PoolModel, settings: ModelSettings, progress: Progress) -> LoadedModel:
        """Load the model. Raises what loading, warming or the comparison raise; then nothing is
        left of it."""
        began, before, on_gpus = time.perf_counter(), _resident_bytes(), self.on_gpus()
        found = describe.runtime_settings(
            model.name, settings, self.cache_dir, progress, self.reserved_cpus
        )
        whole = describe.with_lengths(settings, found.source)
        start = cost_sources(found, whole, self.cache_dir)
        runtime = catalog.create(start.settings)
        try:
            runtime.load()
            gate.admit(whole, start.settings, runtime)
            if start.settings.entry:
                runtime.warm()  # a class's own, which knows whether it takes zeros
            else:
                warmup.briefly(start.settings, runtime.limits(), runtime.run, WARM_S)
            version = describe.version(settings, self.cache_dir)
            self._check_limit()
        except BaseException:
            runtime.close()
            raise
        grown, now, on_gpu = _resident_bytes() - before, self.on_gpus(), False
        if now is not None and on_gpus is not None:
            taken = device_memory.growth(on_gpus, now)
            # A class of one's own may run there, and does not say so.
            hidden = bool(start.settings.entry) and now.own is not None and taken > 0
            on_gpu = hidden or runtime.limits().device != "cpu"
            grown = taken if on_gpu else grown
        size = max(grown, artifact_bytes(settings, self.cache_dir))
        took_s = time.perf_counter() - began
        return LoadedModel(model.name, model.key, settings, runtime, version, size, took_s, on_gpu)

    async def load_engine(
        self, model: PoolModel, settings: ModelSettings, progress: Progress
    ) -> LoadedModel:
        """As `load`, of a model that generates, on the loop where it is to run."""
        began, before, on_gpus = time.perf_counter(), _resident_bytes(), self.on_gpus()
        found = await asyncio.to_thread(
            describe.runtime_settings,
            model.name, settings, self.cache_dir, progress, self.reserved_cpus,
        )  # fmt: skip
        backend_env.set_engine_variables(found)
        sleeps = self.gpus is not None and self.asleep_bytes > 0
        blocks = BlockIndex()
        runtime = catalog.create_stream(replace(found, sleeps=sleeps, blocks=blocks))
        try:
            if not isinstance(runtime, Sleeping):
                raise LoadError(f"runtime {settings.runtime} shares no process with other models")
            await runtime.load()
            await runtime.warm()
            version = await asyncio.to_thread(describe.version, settings, self.cache_dir)
            limits = runtime.limits()
            self._check_limit()
        except BaseException:
            await runtime.close()
            raise
        files_bytes = await asyncio.to_thread(artifact_bytes, settings, self.cache_dir)
        now, on_gpu = self.on_gpus(), limits.device != "cpu"
        grown = _resident_bytes() - before
        if on_gpu and now is not None and on_gpus is not None:
            grown = device_memory.growth(on_gpus, now)
        # What others give back meanwhile hides what this one took, of which so much is known.
        least = files_bytes + _reserved_bytes(settings)
        size, took_s = max(grown, least) + limits.cache_bytes, time.perf_counter() - began
        # A cache that comes later is not among what it took: that is weights, of any precision.
        weights = max(grown, files_bytes) if limits.cache_bytes else files_bytes
        return LoadedModel(
            model.name, model.key, settings, runtime, version, size, took_s, on_gpu, weights,
            blocks=blocks,
        )  # fmt: skip

    def _check_limit(self) -> None:
        resident_mib = _resident_bytes() / _MIB
        if self.limit_mib is not None and resident_mib > self.limit_mib:
            raise LoadError(
                f"with it the process has {resident_mib:.0f} MiB resident, {self.limit_mib} "
                "allowed (scaling.pool.memory_limit_mib)"
            )

    def on_gpus(self) -> DeviceMemory | None:
        """What is taken there; None: there are none, or nobody can tell."""
        if self.gpus is None:
            return None
        try:
            return device_memory.read(self.gpus)
        except MissingBackend:  # the driver is gone: the model's own calls will say so
            return None


class PoolLoading:
    """Brings models into this process. `report` sends a `ReplicaProgress`; `may_stall` is entered
    while a model is loaded, see `LoopWatch`."""

    def __init__(
        self,
        loader: ModelLoader,
        place: PoolContext,
        report: Callable[[ReplicaProgress], Any],
        may_stall: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._loader = loader
        self._place = place
        self._report = report
        self._may_stall = may_stall
        self._number = itertools.count(1)
        self._progress: dict[str, StartupProgress] = {}
        # One at a time, or what one takes and gives back would be measured as another's.
        self._measured = asyncio.Lock()

    async def min_bytes(self, model: PoolModel) -> int:
        """The least bytes that it takes, an engine's cache included where its options say that.
        Raises what getting its files raises."""
        progress = self._begun(model)

        def size() -> int:
            settings = self._loader.settings_of(model, progress.report)
            return artifact_bytes(settings, self._loader.cache_dir) + _reserved_bytes(settings)

        return await self._in_time(model, asyncio.to_thread(size))

    async def load(self, model: PoolModel) -> LoadedModel:
        """Load it. Raises what loading raises; then nothing is left of it."""
        report = self._begun(model).report

        async def load() -> LoadedModel:
            settings = await asyncio.to_thread(self._loader.settings_of, model, report)
            if settings.task == catalog.GENERATE:
                return await self._loader.load_engine(model, settings, report)
            return await asyncio.to_thread(self._loader.load, model, settings, report)

        async with self._measured:
            with self._may_stall():
                return await self._in_time(model, load())

    async def sleep(self, model: PoolModel, loaded: LoadedModel) -> LoadedModel:
        """Put an engine to sleep that has nothing to do. Raises RunError."""
        assert isinstance(loaded.runtime, Sleeping)
        async with self._measured:
            began, before = time.perf_counter(), self._loader.on_gpus()
            freed = loaded.runtime.limits().cache_bytes
            await self._in_time(model, loaded.runtime.sleep())
            took_s = loaded.wake_s or time.perf_counter() - began
            now = self._loader.on_gpus()
        if loaded.on_gpu and now is not None and before is not None:
            freed = max(0, device_memory.growth(now, before))  # others' batches may take some
        left = max(0, loaded.size_bytes - freed)
        return replace(loaded, asleep_bytes=left, wake_s=took_s)

    async def wake(self, model: PoolModel, loaded: LoadedModel) -> LoadedModel:
        """Wake an engine. Raises RunError; then it is to be closed."""
        assert isinstance(loaded.runtime, Sleeping)
        async with self._measured:
            began = time.perf_counter()
            with self._may_stall():
                await self._in_time(model, loaded.runtime.wake())
            return replace(loaded, asleep_bytes=None, wake_s=time.perf_counter() - began)

    async def _in_time(self, model: PoolModel, work: Awaitable[T]) -> T:
        """Wait for the work. Raises what it raises; work that takes too long ends the process."""
        default_s = ReplicaSettings().start_timeout_s
        limit = asyncio.timeout(model.args.get("start_timeout_s", default_s))
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                self._place.on_hang()
            raise

    async def serve(self, model: PoolModel, loaded: LoadedModel) -> ServedResident:
        """Let gateways use it. Raises OSError if it cannot listen."""
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
    files = catalog.files(settings.runtime, resolve(settings.source), settings.task)
    return sum(file.stat().st_size for file in files)


def _reserved_bytes(settings: ModelSettings) -> int:
    """Of an engine's cache that is there once it is loaded, as its options say."""
    return int((settings.options.get("kv_cache_gib") or 0) * _GIB)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
