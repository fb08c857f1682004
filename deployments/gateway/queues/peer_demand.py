"""What do gateways tell each other of their queues through the replicas, and how often?

A call to a replica reports what waits at its gateway; a reply reports what waits at the others. The
unit is predicted seconds, by flow. With hundreds of tenants the report is longer than the rest of a
call, and sending it may cost more than a short batch takes. So a gateway reports again only when
its last report is older than `REPORT_EVERY_S`, or when nothing waits any more; a reply without a
report means that the last one still holds. Decides nothing: the dispatcher is told what was known
last.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf

from routers.api.requests import FlowWork
from routers.staging import REPORT_EVERY_S


@dataclass(slots=True)
class _Peer:
    """A replica, as a messenger between gateways."""

    last_reported: float = -inf  # when it was last told what waits here
    known: tuple[FlowWork, ...] = ()  # what it last said of the other gateways' queues


class PeerDemand:
    """What each replica was told of this gateway's queue, and has said of the others'. Times are
    seconds on the caller's clock."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}  # by replica

    def to_report(
        self, replica_id: str, waiting: tuple[FlowWork, ...], now: float
    ) -> tuple[FlowWork, ...] | None:
        """What a call to this replica reports of the work that waits here; None: nothing, the last
        report still holds."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting and now - peer.last_reported < REPORT_EVERY_S:
            return None
        peer.last_reported = now
        return waiting

    def report_lost(self, replica_id: str) -> None:
        """A call with a report may not have arrived: the next call reports again."""
        peer = self._peers.get(replica_id)
        if peer is not None:
            peer.last_reported = -inf

    def update(self, replica_id: str, waiting: tuple[FlowWork, ...] | None) -> tuple[FlowWork, ...]:
        """What waits at other gateways, after a reply that reports `waiting` (None: as before)."""
        peer = self._peers.setdefault(replica_id, _Peer())
        if waiting is not None:
            peer.known = waiting
        return peer.known

    def forget(self, running: Set[str]) -> None:
        """Forget all replicas but those that run."""
        self._peers = {uid: peer for uid, peer in self._peers.items() if uid in running}
