"""How does a process that runs already take in a model: staged, loaded, compared, warmed, served?

It starts a model as the model's own replica does, with two differences: the warm-up is brief, one
row of each length for `WARM_S`, and nothing is measured. A model's size is what the process grew by
while it was loaded (of one that runs on a GPU, there), or the size of its files, whichever is more.
Nothing in Python ends a thread, so loading that takes longer than the model's `start_timeout_s`
ends the process.

To gateways a served model is a replica like any other, with a core, a worker and a channel of its
own, and it leaves like one. Its runtime stays open, for the owner to keep or close.
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

from deployments.contract.codec import SPOKEN_TEXT
from deployments.contract.registry import PoolMember, ReplicaProgress
from deployments.contract.scaling.messages import PoolModel
from deployments.process.sockets import server_tls
from deployments.replica import describe, device_memory
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.channel_server import ChannelServer
from deployments.replica.device import DeviceTurn, DeviceWorker, FailedRows, Job, hang_limits
from deployments.replica.device_memory import MemoryCap
from deployments.replica.known_costs import cost_sources
from deployments.replica.replica_core import ReplicaCore
from deployments.replica.startup import StartupProgress, settings_here
from deployments.replica.verify import gate
from deployments.replica.watchdogs import watch_hangs
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings_files.sources import resolve
from runtimes import catalog, warmup
from runtimes.errors import LoadError, MissingBackend
from runtimes.nvml import GpuMemory
from runtimes.types import DeviceMemory, Runtime

_MARGIN_S = 5.0  # that a drain gets beyond the longest runs


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in this process's memory."""

    name: str
    key: str  # digest of the settings that it was loaded with
    settings: ModelSettings  # those settings, as on this node
    runtime: Runtime
    version: str
    size_bytes: int
    load_s: float  # that loading took
    on_gpu: bool = True  # whether it takes a GPU's memory, and `size_bytes` of that


@dataclass(frozen=True, slots=True)
class PoolContext:
    """What the residents of one pool replica share."""

    replica: str  # id in Serve
    host: str  # where they listen
    after_s: float  # see `PoolMember`
    turn: DeviceTurn
    on_hang: Callable[[], None]  # ends the process


class ServedResident:
    """A served model with its channel. Make it with `serve`."""

    def __init__(self, loaded: LoadedModel, place: PoolContext) -> None:
        replicas = loaded.settings.replicas
        self._loaded = loaded
        self._began = time.monotonic()
        self._worker = DeviceWorker(
            loaded.runtime,
            replicas.slots,
            limits=hang_limits(loaded.settings),
            on_hang=place.on_hang,
            turn=place.turn,
            allow_non_finite=loaded.settings.allow_non_finite,
        )
        self._worker.failed, self._worker.cap = FailedRows(loaded.name), MemoryCap(loaded.name)
        self._core = ReplicaCore(self._worker)
        every_s = min(1.0, replicas.hang_limit_s / 4)
        self._watch = asyncio.get_running_loop().create_task(watch_hangs(self._worker, every_s))
        self._server: ChannelServer
        self.member: PoolMember

    @classmethod
    async def serve(
        cls, loaded: LoadedModel, member: str, channel: ChannelSettings, place: PoolContext
    ) -> ServedResident:
        """Serve the model. Raises OSError if no port is free; the runtime stays open then."""
        resident = cls(loaded, place)
        server = ChannelServer(resident._core, member, tls=server_tls(channel_tls(channel)))
        try:
            await server.listen(place.host, channel_ports(channel))
        except BaseException:
            await resident._end()
            raise
        resident._server = server
        resident.member = PoolMember(
            loaded.name, member, place.replica, loaded.key, loaded.version, server.address,
            loaded.settings.replicas.slots, place.after_s, SPOKEN_TEXT,
        )  # fmt: skip
        return resident

    @property
    def busy(self) -> bool:
        return self._core.inflight > 0

    @property
    def running(self) -> Job | None:
        """The batch on the device, if it is of this model."""
        return self._worker.running

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        """What is taken of the device, for this model's answers."""
        self._worker.device_memory = memory

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def key(self) -> bytes:
        return self._server.key

    async def health(self) -> None:
        """Raises what the runtime's `health` raises."""
        await self._worker.health()

    async def leave(self) -> None:
        """Drain. Returns when nothing of it runs or is connected any more."""
        replicas = self._loaded.settings.replicas
        limit_s = replicas.hang_limit_s * replicas.slots + _MARGIN_S
        try:
            async with asyncio.timeout(limit_s):
                await self._server.drain()
        finally:
            await self._server.close()
            await self._end()

    async def _end(self) -> None:
        self._watch.cancel()
        # Not on the loop: `close` waits for a running batch, whose answer the loop delivers.
        await asyncio.get_running_loop().run_in_executor(None, self._worker.close)


WARM_S = 0.5
_MIB = 1 << 20
Progress = Callable[[str, float], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads models. Its methods block: call them in a thread. `reserved_cpus`: as in
    `backend_env.threads`. `limit_mib`: resident memory of the whole process; None: no limit.
    `gpus`: that Ray reserved; None: none, or nobody can tell."""

    cache_dir: Path
    reserved_cpus: float | None
    limit_mib: int | None = None
    gpus: GpuMemory | None = None

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
        began, before, on_gpus = time.perf_counter(), _resident_bytes(), self._on_gpus()
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
            resident_mib = _resident_bytes() / _MIB
            if self.limit_mib is not None and resident_mib > self.limit_mib:
                raise LoadError(
                    f"with it the process has {resident_mib:.0f} MiB resident, {self.limit_mib} "
                    "allowed (scaling.pool.memory_limit_mib)"
                )
        except BaseException:
            runtime.close()
            raise
        grown, now, on_gpu = _resident_bytes() - before, self._on_gpus(), False
        if now is not None and on_gpus is not None:
            taken = device_memory.growth(on_gpus, now)
            # A class of one's own may run there, and does not say so.
            hidden = bool(start.settings.entry) and now.own is not None and taken > 0
            on_gpu = hidden or runtime.limits().device != "cpu"
            grown = taken if on_gpu else grown
        size = max(grown, artifact_bytes(settings, self.cache_dir))
        took_s = time.perf_counter() - began
        return LoadedModel(model.name, model.key, settings, runtime, version, size, took_s, on_gpu)

    def _on_gpus(self) -> DeviceMemory | None:
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

    async def min_bytes(self, model: PoolModel) -> int:
        """The least bytes that it takes. Raises what getting its files raises."""
        progress = self._begun(model)

        def size() -> int:
            settings = self._loader.settings_of(model, progress.report)
            return artifact_bytes(settings, self._loader.cache_dir)

        return await self._in_time(model, size)

    async def load(self, model: PoolModel) -> LoadedModel:
        """Load it. Raises what loading raises; then nothing is left of it."""
        progress = self._begun(model)

        def load() -> LoadedModel:
            settings = self._loader.settings_of(model, progress.report)
            return self._loader.load(model, settings, progress.report)

        with self._may_stall():
            return await self._in_time(model, load)

    async def _in_time(self, model: PoolModel, work: Callable[[], T]) -> T:
        """Do the work in a thread. Raises what it raises; work that takes too long ends the
        process."""
        default_s = ReplicaSettings().start_timeout_s
        limit = asyncio.timeout(model.args.get("start_timeout_s", default_s))
        try:
            async with limit:
                return await asyncio.to_thread(work)
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


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
