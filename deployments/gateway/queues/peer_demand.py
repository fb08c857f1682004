"""What has this gateway last told each replica of its queue, and heard there of others' queues?

With hundreds of tenants the list of what waits is longer than the rest of a call, and batches may
be shorter than what it costs to send. So it is told again only when it is old, or when nothing
waits any more; an answer that says nothing of it means what was heard before.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf

from routers.staging import TELL_S
from routers.types import FlowWork


@dataclass(slots=True)
class _Peer:
    told_at: float = -inf
    heard: tuple[FlowWork, ...] = ()


class PeerDemand:
    """By replica id; times are the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def tell(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica says of what waits here; None: nothing new."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.told_at < TELL_S:
            return None
        peer.told_at = now
        return waiting

    def not_heard(self, replica_id: str) -> None:
        """A call may not have arrived."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.told_at = -inf

    def hear(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits elsewhere, given what an answer says of it."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.heard = waiting
        return peer.heard

    def forget(self, running: Set[str]) -> None:
        """Replicas that are gone."""
        self._peers = {uid: peer for uid, peer in self._peers.items() if uid in running}
