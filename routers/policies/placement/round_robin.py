"""Which replica is asked first? Of those that may take a lease, the one used longest ago."""

from __future__ import annotations

from routers.state.ready_replicas import Placement, leases_in_flight
from routers.state.replica_state import BUSY, IDLE, AnyReplica


class RoundRobin(Placement):
    """Compares replicas by their last use."""

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        return (BUSY if leases_in_flight(replica, now) else IDLE), replica.last_used, 0.0

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return replica.last_used
