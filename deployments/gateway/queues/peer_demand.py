"""What of their queues gateways tell each other by way of the replicas, and how often.

A call to a replica says what waits at its gateway, an answer what waits at the others. Unit:
predicted seconds by flow. It decides nothing: the dispatcher is told what was last known.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf

from routers.api.requests import FlowWork
from routers.staging import REPORT_EVERY_S


@dataclass(slots=True)
class _Peer:
    last_reported: float = -inf
    known: tuple[FlowWork, ...] = ()


class PeerDemand:
    """What other gateways have waiting at each replica, and when it was last told what waits here.

    With hundreds of tenants the list of what waits is longer than the rest of a call, and batches
    may be shorter than what it costs to send. So it is sent again only when it is old, or when
    nothing waits any more; an answer without one means the last known. By replica id; times are
    the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def to_report(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica reports of what waits here; None: nothing new."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.last_reported < REPORT_EVERY_S:
            return None
        peer.last_reported = now
        return waiting

    def report_lost(self, replica_id: str) -> None:
        """A call may not have arrived: the next one reports again."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.last_reported = -inf

    def update(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits elsewhere, given what an answer reports of it."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.known = waiting
        return peer.known

    def forget(self, running: Set[str]) -> None:
        """Replicas that are gone."""
        self._peers = {uid: peer for uid, peer in self._peers.items() if uid in running}
