"""How does a model that is loaded in a pool replica serve gateways, and leave?

To gateways it is a replica like any other, with a core and a channel of its own, and it leaves like
one: what it has begun ends first, streams too. Its runtime stays open, for the owner to keep or
close. Batches of all models take turns on the device; engines make their steps beside them. An
engine that dies takes its connections with it, so that gateways see a lost replica, and no other
model's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.contract.codec import SPOKEN_TEXT
from deployments.contract.registry import PoolMember
from deployments.process.sockets import server_tls
from deployments.replica.block_index import BlockIndex
from deployments.replica.channel_server import ChannelServer
from deployments.replica.device import DeviceTurn, DeviceWorker, FailedRows, Job, hang_limits
from deployments.replica.device_memory import MemoryCap
from deployments.replica.replica_core import ReplicaCore
from deployments.replica.stream_core import StreamCore
from deployments.replica.watchdogs import watch_hangs, watch_stalls
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.model import ModelSettings
from routers.stream.staging import WAITING_SHARE
from runtimes.types import DeviceMemory, Runtime, Sleeping

_MARGIN_S = 5.0  # that a drain gets beyond the longest runs


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in this process's memory."""

    name: str
    key: str  # digest of the settings that it was loaded with
    settings: ModelSettings  # those settings, as on this node
    runtime: Runtime | Sleeping
    version: str
    size_bytes: int  # while it can serve
    load_s: float  # that loading took
    on_gpu: bool = True  # whether it takes a GPU's memory, and `size_bytes` of that
    weights_bytes: int = 0  # of an engine: of the host's memory, where a GPU's is given back
    asleep_bytes: int | None = None  # an engine that sleeps: where `size_bytes` were; None: awake
    wake_s: float = 0.0  # of an engine: its last waking, before that falling asleep; 0.0: neither
    blocks: BlockIndex | None = None  # of an engine: what it tells of its cache

    @property
    def held_bytes(self) -> int:
        """As it is now."""
        return self.size_bytes if self.asleep_bytes is None else self.asleep_bytes

    @property
    def host_bytes(self) -> int:
        """Of the host's memory, besides."""
        return self.weights_bytes if self.asleep_bytes is not None and self.on_gpu else 0

    async def close(self) -> None:
        if isinstance(self.runtime, Sleeping):
            await self.runtime.close()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self.runtime.close)


@dataclass(frozen=True, slots=True)
class PoolContext:
    """What the residents of one pool replica share."""

    replica: str  # id in Serve
    host: str  # where they listen
    after_s: float  # see `PoolMember`
    turn: DeviceTurn
    on_hang: Callable[[], None]  # ends the process


class ServedResident:
    """A served model with its channel. Make it with `serve`. `core`: takes its work in;
    `work_s`: the longest that what it has begun may take."""

    def __init__(self, loaded: LoadedModel, core: ReplicaCore | StreamCore, work_s: float) -> None:
        self._loaded, self._core, self._work_s = loaded, core, work_s
        self._began = time.monotonic()
        self._watch: asyncio.Task[None] | None = None
        self._server: ChannelServer
        self.member: PoolMember

    @classmethod
    async def serve(
        cls, loaded: LoadedModel, member: str, channel: ChannelSettings, place: PoolContext
    ) -> ServedResident:
        """Serve the model. Raises OSError if no port is free; the runtime stays open then."""
        engine = isinstance(loaded.runtime, Sleeping)
        resident = (_EngineResident if engine else _BatchResident)(loaded, place)
        server = ChannelServer(resident._core, member, tls=server_tls(channel_tls(channel)))
        resident._server = server
        try:
            await server.listen(place.host, channel_ports(channel))
        except BaseException:
            await resident._end()
            raise
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
        return None

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        """What is taken of the device, for this model's answers."""
        raise NotImplementedError

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def key(self) -> bytes:
        return self._server.key

    async def health(self) -> None:
        """Raises what the runtime's `health` raises."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Drain. Returns when nothing of it runs or is connected any more."""
        try:
            async with asyncio.timeout(self._work_s + _MARGIN_S):
                await self._server.drain()
        finally:
            await self._server.close()
            await self._end()

    async def _end(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


class _BatchResident(ServedResident):
    def __init__(self, loaded: LoadedModel, place: PoolContext) -> None:
        assert not isinstance(loaded.runtime, Sleeping)
        replicas = loaded.settings.replicas
        worker = self._worker = DeviceWorker(
            loaded.runtime,
            replicas.slots,
            limits=hang_limits(loaded.settings),
            on_hang=place.on_hang,
            turn=place.turn,
            allow_non_finite=loaded.settings.allow_non_finite,
        )
        worker.failed, worker.cap = FailedRows(loaded.name), MemoryCap(loaded.name)
        super().__init__(loaded, ReplicaCore(worker), replicas.hang_limit_s * replicas.slots)
        every_s = min(1.0, replicas.hang_limit_s / 4)
        self._watch = asyncio.get_running_loop().create_task(watch_hangs(worker, every_s))

    @property
    def running(self) -> Job | None:
        return self._worker.running

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        self._worker.device_memory = memory

    async def health(self) -> None:
        await self._worker.health()

    async def _end(self) -> None:
        await super()._end()
        # Not on the loop: `close` waits for a running batch, whose answer the loop delivers.
        await asyncio.get_running_loop().run_in_executor(None, self._worker.close)


class _EngineResident(ServedResident):
    def __init__(self, loaded: LoadedModel, place: PoolContext) -> None:
        assert isinstance(loaded.runtime, Sleeping)
        at_once = loaded.runtime.limits().max_sequences
        core = self._streams = StreamCore(
            loaded.runtime, at_once * WAITING_SHARE, at_once, on_death=self._died,
            blocks=loaded.blocks,
        )  # fmt: skip
        super().__init__(loaded, core, loaded.settings.max_timeout_s)
        limits = hang_limits(loaded.settings)
        watching = watch_stalls(
            core, limits, lambda reason: place.on_hang(), min(1.0, limits.max_s / 4)
        )
        self._watch = asyncio.get_running_loop().create_task(watching)

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        self._streams.device_memory = memory

    async def health(self) -> None:
        await self._streams.health()

    def _died(self, reason: str) -> None:
        self._server.cut(reason)

    async def _end(self) -> None:
        await super()._end()
        await self._streams.close()
