"""What a gateway still asks of a model's replicas through Ray Serve: which run, and their keys.

A handle's router hears of the running replicas (`contract/pin_router`); a replica's key comes by a
call pinned to it, whose id rides in `session_id`. Everything else goes over the channel. A model
that a pool replica serves has a key of its own there.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any

from ray import serve

from deployments.contract.app_names import POOL_APP, POOL_DEPLOYMENT, model_deployment
from deployments.contract.pool import pool_replica_of
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
        self._pool_replicas: dict[str, str] = {}

    async def seed(self, groups: Sequence[str]) -> None:
        """Starts the groups' routers, where they have not been: the running sets arrive from then
        on. A handle's options do that, where a call would queue at Serve, which starts a replica
        for it."""
        for group in groups:
            if group not in self._handles:
                handle: Any = serve.get_deployment_handle(
                    model_deployment(group), app_name=self._app
                )
                self._handles[group] = handle.options(method_name="channel_key")

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self._groups = {replica.replica_id: replica.group() for replica in listed}
        self._pool_replicas = {r.replica_id: uid for r in listed if (uid := pool_replica_of(r))}
        super().follow(listed)

    async def _key_of(self, replica_id: str) -> bytes:
        """Raises what Serve raises where the replica is gone, KeyError where it is not listed."""
        inside = self._pool_replicas.get(replica_id)
        if inside is not None:
            return await _pool_key(inside, replica_id)
        pinned = self._handles[self._groups[replica_id]].options(session_id=replica_id)
        key: bytes = await pinned.remote()
        return key


@cache
def _pool() -> Any:
    """The handle of the pool's replicas, one for this process."""
    handle: Any = serve.get_deployment_handle(POOL_DEPLOYMENT, app_name=POOL_APP)
    return handle.options(method_name="channel_key")


def follow_pool() -> None:
    """Starts the router of the pool's replicas: its directory is kept from then on."""
    _pool()


async def _pool_key(replica: str, member: str) -> bytes:
    """Raises what Serve raises where the pool replica is gone, or does not serve it any more."""
    key: bytes = await _pool().options(session_id=replica).remote(member)
    return key
