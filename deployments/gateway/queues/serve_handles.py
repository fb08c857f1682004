"""What a gateway still asks of a model's replicas through Ray Serve: which run, and their keys.

A handle's router hears of the running replicas (`contract/pin_router`); a replica's key comes by a
call pinned to it, whose id rides in `session_id`. Everything else goes over the channel.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

from ray import serve

from deployments.contract.app_names import model_deployment
from deployments.contract.replica_directory import RunningReplica
from deployments.gateway.queues.replica_channel import TcpReplicaChannel


class ServeChannel(TcpReplicaChannel):
    """The channel to the replicas of a model's application, of all its groups; of one event
    loop."""

    def __init__(
        self, app: str, gateway: str, *, speaks: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(gateway, self._key_of, speaks=speaks, tls=tls)
        self._app = app
        self._handles: dict[str, Any] = {}
        self._groups: dict[str, str] = {}
        self._starting: list[asyncio.Task[Any]] = []

    async def seed(self, groups: Sequence[str], timeout_s: float) -> None:
        """Starts the groups' routers (a handle alone does not), where they have not been: the
        running sets arrive from then on. Returns when a replica of any has answered; those of the
        others may come up later, or never."""
        starting = [self._start_router(group) for group in groups if group not in self._handles]
        if not starting:
            return
        self._starting += starting
        done, _ = await asyncio.wait(
            starting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            self._stop_starting()
            raise TimeoutError(f"no replica of {self._app} answered within {timeout_s:g} s")
        done.pop().result()

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self._groups = {replica.replica_id: replica.group() for replica in listed}
        super().follow(listed)

    def close(self) -> None:
        self._stop_starting()
        super().close()

    def _stop_starting(self) -> None:
        for task in self._starting:
            task.cancel()
        self._starting = []

    def _start_router(self, group: str) -> asyncio.Task[Any]:
        handle: Any = serve.get_deployment_handle(model_deployment(group), app_name=self._app)
        self._handles[group] = handle
        describe: Any = handle.options(method_name="describe")
        return asyncio.get_running_loop().create_task(_result(describe.remote()))

    async def _key_of(self, replica_id: str) -> bytes:
        """Raises what Serve raises where the replica is gone."""
        handle = self._handles[self._groups[replica_id]]
        pinned = handle.options(method_name="channel_key", session_id=replica_id)
        key: bytes = await _result(pinned.remote())
        return key


async def _result(response: Any) -> Any:
    return await response
