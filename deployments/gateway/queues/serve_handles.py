"""What does a gateway ask of a model's replicas through Ray Serve? Which run, and their keys.

A handle's router fills the directory of running replicas (`contract/pin_router`). A replica's key
is asked for by a call that is pinned to that replica: its id travels in `session_id`. Everything
else goes over the data channel. A model on a replica of the shared pool has a key of its own there.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any

from ray import serve

from deployments.contract.app_names import POOL_APP, POOL_DEPLOYMENT, model_deployment
from deployments.gateway.queues.pool_replicas import pool_replica_of
from deployments.gateway.queues.replica_channel import TcpReplicaChannel
from deployments.process.replica_directory import RunningReplica


class ServeChannel(TcpReplicaChannel):
    """The channel to the replicas of all groups of a model's application, in one event loop."""

    def __init__(
        self, app: str, gateway: str, *, speaks: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(gateway, self._key_of, speaks=speaks, tls=tls)
        self._app = app
        self._handles: dict[str, Any] = {}  # by group
        self._groups: dict[str, str] = {}  # by replica
        self._pool_replicas: dict[str, str] = {}  # by replica: the pool replica that it is part of

    async def seed(self, groups: Sequence[str]) -> None:
        """Start the routers of these groups, unless they have been: from then on the directories
        list the running replicas. Setting a handle's options starts its router. A call would too,
        but it would queue at Serve, and Serve would start a replica for it."""
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
        """The replica's key. Raises what Serve raises where the replica is gone, KeyError where it
        is not listed."""
        inside = self._pool_replicas.get(replica_id)
        if inside is not None:
            return await _pool_key(inside, replica_id)
        pinned = self._handles[self._groups[replica_id]].options(session_id=replica_id)
        key: bytes = await pinned.remote()
        return key


@cache
def _pool() -> Any:
    """The handle of the shared pool's replicas, one for this process."""
    handle: Any = serve.get_deployment_handle(POOL_DEPLOYMENT, app_name=POOL_APP)
    return handle.options(method_name="channel_key")


def follow_pool() -> None:
    """Start the router of the shared pool's replicas: from then on its directory is kept."""
    _pool()


async def _pool_key(replica: str, member: str) -> bytes:
    """The key of a member of a pool replica. Raises what Serve raises where the pool replica is
    gone, or does not serve the member any more."""
    key: bytes = await _pool().options(session_id=replica).remote(member)
    return key
