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


def _directories() -> Any:
    from deployments.process import replica_directory

    return replica_directory


class PinRouter(RequestRouter):
    """Serve's request router for replicas of models and of the shared pool."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`key`: of the directory to keep, "application/deployment"."""
        self._directory = _directories().directory_for(kwargs["key"])
        self._by_uid: dict[str, ServeReplica] = {}
        self._turn = itertools.count()

    def update_replicas(self, replicas: list[ServeReplica]) -> None:
        super().update_replicas(replicas)
        self._by_uid = {r.replica_id.unique_id: r for r in replicas}
        entry = _directories().RunningReplica
        self._directory.update(
            [
                entry(uid, tuple(sorted((k, str(v)) for k, v in r.replica_metadata.items())))
                for uid, r in self._by_uid.items()
            ]
        )

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._by_uid.pop(replica_id.unique_id, None)
        self._directory.drop(replica_id.unique_id)

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> ServeReplica:
        uid = pending_request.metadata.session_id
        if not uid:
            while not self._by_uid:
                self._replicas_updated_event.clear()
                await self._replicas_updated_event.wait()
            running = list(self._by_uid.values())
            return running[next(self._turn) % len(running)]
        replica = self._by_uid.get(uid)
        if replica is None or is_retry:
            raise _directories().ReplicaGone(uid)
        return replica

    async def choose_replicas(
        self, candidate_replicas: list[ServeReplica], pending_request: PendingRequest | None = None
    ) -> list[list[ServeReplica]]:
        """Required by the base class, but unused: `_choose_replica_for_request` routes each
        call."""
        return [list(candidate_replicas)]
