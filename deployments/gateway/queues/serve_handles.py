"""What a gateway still asks of a model's replicas through Ray Serve: which run, and their keys.

A handle's router hears of the running replicas (`contract/pin_router`); a replica's key comes by a
call pinned to it, whose id rides in `session_id`. Everything else goes over the channel.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from ray import serve

from deployments.contract.app_names import MODEL_DEPLOYMENT
from deployments.gateway.queues.replica_channel import TcpReplicaChannel


class ServeChannel(TcpReplicaChannel):
    """The channel to the replicas of a model's application; of one event loop."""

    def __init__(
        self, app: str, gateway: str, *, speaks: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(gateway, self._key_of, speaks=speaks, tls=tls)
        self._handle: Any = serve.get_deployment_handle(MODEL_DEPLOYMENT, app_name=app)

    async def seed(self, timeout_s: float) -> None:
        """Starts the router (a handle alone does not): the running set arrives from then on."""
        describe: Any = self._handle.options(method_name="describe")
        await asyncio.wait_for(_result(describe.remote()), timeout_s)

    async def _key_of(self, replica_id: str) -> bytes:
        """Raises what Serve raises where the replica is gone."""
        pinned = self._handle.options(method_name="channel_key", session_id=replica_id)
        key: bytes = await _result(pinned.remote())
        return key


async def _result(response: Any) -> Any:
    return await response
