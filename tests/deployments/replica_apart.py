"""A model's replica in a process of its own, without Ray, and a gateway's `Stand` that reaches it.

What a replica costs is then not the gateway's, and batches travel as they do under Serve: on a
connection of the real channel, kept by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from in_process import Stand

from deployments.gateway.queues.connections import TcpReplicaChannel
from deployments.process.replica_directory import RunningReplica
from deployments.replica import describe
from deployments.replica.channel_server import ChannelServer
from deployments.replica.device import DeviceWorker, HangLimits
from deployments.replica.replica_core import ReplicaCore
from deployments.settings.model import ModelSettings
from runtimes import catalog


class FarReplica:
    """Where it listens, and with what key."""

    def __init__(self, address: str, key: bytes) -> None:
        self.address, self.key = address, key

    def __str__(self) -> str:
        return f"{self.address} {self.key.hex()}"

    @classmethod
    def read(cls, line: str) -> FarReplica:
        address, key = line.split()
        return cls(address, bytes.fromhex(key))

    async def key_of(self, replica_id: str) -> bytes:
        return self.key


@asynccontextmanager
async def replica_of(
    name: str, settings: dict[str, Any], cache_dir: Path
) -> AsyncIterator[FarReplica]:
    """The model's only replica, in this process."""
    model = ModelSettings.model_validate(settings)
    runtime = catalog.create(
        describe.runtime_settings(name, model, cache_dir, lambda phase, share: None)
    )
    runtime.load()
    limits = HangLimits(model.replicas.hang_limit_s)
    worker = DeviceWorker(runtime, model.replicas.slots, limits=limits, on_hang=lambda: None)
    server = ChannelServer(ReplicaCore(worker), f"{name}-0")
    await server.listen("127.0.0.1")
    try:
        yield FarReplica(server.address, server.key)
    finally:
        await server.close()
        worker.close()


class FarChannel(TcpReplicaChannel):
    """`cores`: of this process, which get nothing."""

    def __init__(self, gateway: str, replica: FarReplica) -> None:
        super().__init__(gateway, replica.key_of)
        self.cores: dict[str, Any] = {}


class StandApart(Stand):
    """Of one model, whose only replica is `replica`."""

    def __init__(
        self, name: str, settings: dict[str, Any], cache_dir: Path, replica: FarReplica, **more: Any
    ) -> None:
        self._replica = replica
        super().__init__({name: settings}, cache_dir, **more)

    def channel(self) -> Any:
        return FarChannel(self.identity.gateway, self._replica)

    def run_replicas(self, name: str, ids: list[str]) -> None:
        digest = self.models._table_of(name)[name].announced.digest
        known = (("digest", digest), ("channel", self._replica.address))
        self.books[name].update([RunningReplica(each, known) for each in ids])

    async def reached(self, name: str) -> None:
        """Returns once the connection stands."""
        async with asyncio.timeout(10.0):
            while not self.channels[name].reached:  # noqa: ASYNC110 - at a start alone
                await asyncio.sleep(0.001)
