"""A loaded model that a pool replica serves, with a core, a worker and a channel of its own.

To gateways it is a replica like any other, and it leaves like one: staged batches are returned, the
running one runs to its end. Its runtime stays open, for the owner to keep or close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.contract.pool import PoolMember
from deployments.contract.version import SPOKEN_TEXT
from deployments.process.sockets import server_tls
from deployments.replica.channel_server import ChannelServer
from deployments.replica.device import DeviceTurn, DeviceWorker, Job
from deployments.replica.hang_limits import hang_limits
from deployments.replica.replica_core import ReplicaCore, watch_hangs
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.model import ModelSettings
from runtimes.types import Runtime

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


@dataclass(frozen=True, slots=True)
class Place:
    """What the residents of one pool replica share."""

    replica: str  # id in Serve
    host: str  # where they listen
    after_s: float  # see `PoolMember`
    turn: DeviceTurn
    on_hang: Callable[[], None]  # ends the process


class Resident(Protocol):
    """A served model. `age_s`: seconds since it began to serve."""

    @property
    def member(self) -> PoolMember: ...
    @property
    def busy(self) -> bool: ...
    @property
    def age_s(self) -> float: ...
    @property
    def running(self) -> Job | None: ...

    def key(self) -> bytes: ...
    async def health(self) -> None: ...
    async def leave(self) -> None: ...


class ServedResident:
    """A `Resident` with its channel. Make it with `serve`."""

    def __init__(self, loaded: LoadedModel, place: Place) -> None:
        replicas = loaded.settings.replicas
        self._loaded, self._place = loaded, place
        self._began = time.monotonic()
        self._worker = DeviceWorker(
            loaded.runtime,
            replicas.slots,
            limits=hang_limits(loaded.settings),
            on_hang=place.on_hang,
            turn=place.turn,
            allow_non_finite=loaded.settings.allow_non_finite,
        )
        self._core = ReplicaCore(self._worker)
        every_s = min(1.0, replicas.hang_limit_s / 4)
        self._watch = asyncio.get_running_loop().create_task(watch_hangs(self._worker, every_s))
        self._server: ChannelServer
        self.member: PoolMember

    @classmethod
    async def serve(
        cls, loaded: LoadedModel, member: str, channel: ChannelSettings, place: Place
    ) -> ServedResident:
        """Serve the model. Raises OSError if no port is free; the runtime stays open then."""
        resident = cls(loaded, place)
        server = ChannelServer(resident._core, member, tls=server_tls(channel_tls(channel)))
        try:
            await resident._listen(server, channel_ports(channel))
        except BaseException:
            await resident._end()
            raise
        return resident

    async def _listen(self, server: ChannelServer, ports: Sequence[int]) -> None:
        await server.listen(self._place.host, ports)
        loaded, place = self._loaded, self._place
        self._server = server
        self.member = PoolMember(
            loaded.name, server.replica_id, place.replica, loaded.key, loaded.version,
            server.address, loaded.settings.replicas.slots, place.after_s,
            SPOKEN_TEXT,
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        return self._core.inflight > 0

    @property
    def running(self) -> Job | None:
        """The batch on the device, if it is of this model."""
        return self._worker.running

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
