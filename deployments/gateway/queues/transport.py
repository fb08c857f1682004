"""What a gateway asks of a replica that takes batches: one pinned call a batch, and about it.

All raise `Unreached` (nothing started: choose again), `ReplicaDied` (it may have started; a timeout
that passed counts as that) or `ReplicaFault` (the replica's own code raised, it lives on).
"""

from __future__ import annotations

from typing import Protocol

from deployments.contract.batch_wire import BatchCall, BatchReply
from deployments.gateway.queues.pinned_handles import (
    PinnedHandles,
    ReplicaDied,
    ReplicaFault,
    Unreached,
)

__all__ = ["ReplicaDied", "ReplicaFault", "ServeTransport", "Transport", "Unreached"]

_DROP_LIMIT_S = 5.0


class Transport(Protocol):
    """`timeout_s`: seconds until the replica counts as died."""

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply: ...

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        """Asks the replica to return a batch unstarted; whether it could."""

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        """Returns when a batch has started: True; False once it never will."""


class ServeTransport(PinnedHandles):
    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        reply: BatchReply = await self.ask(replica_id, "infer", timeout_s, call)
        return reply

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        return bool(await self.ask(replica_id, "drop", _DROP_LIMIT_S, gateway, lease_id))

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        return bool(await self.ask(replica_id, "opened", timeout_s, gateway, lease_id))
