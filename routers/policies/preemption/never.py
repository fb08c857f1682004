"""What gives way to an urgent row? Nothing that was sent: priorities hold in the queue alone."""

from __future__ import annotations

from routers.policies.preemption.types import PreemptionView
from routers.state.replica_state import Lease, ReplicaState


class Never:
    def gives_back(self, view: PreemptionView, urgent: int, now: float) -> ReplicaState | None:
        return None

    def stops(self, view: PreemptionView, urgent: int, now: float) -> Lease | None:
        return None
