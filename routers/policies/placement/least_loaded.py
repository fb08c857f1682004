"""Which replica is asked first? The one with the fewest leases, of all gateways as far as known.

As in most load balancers it predicts nothing: a slow replica gets as much as a fast one, and a long
batch counts like a short one. Among equals, the replica used longest ago. Source: least outstanding
requests as in Envoy and NGINX (`least_conn`), over all replicas instead of two.
"""

from __future__ import annotations

from routers.state.ready_replicas import Placement, leases_in_flight
from routers.state.replica_state import BUSY, IDLE, AnyReplica


class LeastLoaded(Placement):
    """Compares replicas by leases in flight."""

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        inflight = leases_in_flight(replica, now)
        return (BUSY if inflight else IDLE), inflight, replica.last_used

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return leases_in_flight(replica, now)
