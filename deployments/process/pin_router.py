"""Sends each Serve call to the replica that it is pinned to, and keeps the replica directory.

Requests do not go through Serve (docs/data-channel.md). Serve carries a gateway's call for a
replica's key; the id of that replica is in the call's `session_id`, its *pin*. The router overrides
`_choose_replica_for_request` (as Serve's in-tree capacity-queue router does), because Serve's own
routing tasks, queue-length probes and backoff would send the call to any replica. A call whose
replica is gone fails at once with `ReplicaGone`; nothing waits inside Serve. A call without a pin
(`describe`) goes to any running replica, in turn.

The private API of Serve that this uses is tested by tests/integration/test_ray_contract.py. Imports
of `replica_directory` stand inside functions, see there.
"""

from __future__ import annotations

import itertools
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter
from ray.serve.request_router import RunningReplica as ServeReplica


def _directory(key: str) -> Any:
    from deployments.process.replica_directory import directory_for

    return directory_for(key)


def _entry(replica: ServeReplica) -> Any:
    from deployments.process.replica_directory import RunningReplica

    metadata = tuple(sorted((k, str(v)) for k, v in replica.replica_metadata.items()))
    return RunningReplica(replica.replica_id.unique_id, metadata)


def _gone(uid: str) -> Exception:
    from deployments.process.replica_directory import ReplicaGone

    return ReplicaGone(uid)


class PinRouter(RequestRouter):
    """Serve's request router for replicas of models and of the shared pool."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`key`: of the directory to keep, "application/deployment"."""
        self._directory = _directory(kwargs["key"])
        self._by_uid: dict[str, ServeReplica] = {}
        self._turn = itertools.count()

    def update_replicas(self, replicas: list[ServeReplica]) -> None:
        super().update_replicas(replicas)
        self._by_uid = {r.replica_id.unique_id: r for r in replicas}
        self._directory.update([_entry(r) for r in replicas])

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._by_uid.pop(replica_id.unique_id, None)
        self._directory.drop(replica_id.unique_id)

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> ServeReplica:
        uid = pending_request.metadata.session_id
        if not uid:
            return await self._any()
        replica = self._by_uid.get(uid)
        if replica is None or is_retry:
            raise _gone(uid)
        return replica

    async def _any(self) -> ServeReplica:
        while not self._by_uid:
            self._replicas_updated_event.clear()
            await self._replicas_updated_event.wait()
        replicas = list(self._by_uid.values())
        return replicas[next(self._turn) % len(replicas)]

    async def choose_replicas(
        self, candidate_replicas: list[ServeReplica], pending_request: PendingRequest | None = None
    ) -> list[list[ServeReplica]]:
        """Required by the base class, but unused: `_choose_replica_for_request` routes each
        call."""
        return [list(candidate_replicas)]
