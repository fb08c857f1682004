"""The replica with the fewest leases, here and as far as is known for other gateways.

As in most load balancers, no prediction, so a slow replica gets as much as a fast one, and
one with a long batch counts like one with a short one. Among equals the one used longest ago.
Source: least outstanding requests as in Envoy and NGINX (`least_conn`), over all instead of two.
"""

from __future__ import annotations

from routers.state.ready_replicas import BUSY, IDLE, leases_in_flight
from routers.state.replica_state import ReplicaState


class LeastLoaded:
    def place(self, replica: ReplicaState, now: float) -> tuple[int, float, float]:
        inflight = leases_in_flight(replica, now)
        return (BUSY if inflight else IDLE), inflight, replica.last_used

    def score(self, replica: ReplicaState, now: float, batch_s: float) -> float:
        return leases_in_flight(replica, now)

    def answered(self, replica: ReplicaState, now: float) -> None:
        """Nothing is learnt of it here."""
