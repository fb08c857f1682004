"""What gives way to an urgent row? The least urgent work that may, where it is less urgent.

Late batches are less urgent than any on time. Of streams of the least urgent priority that runs,
the one that began last gives way: it loses least. Optimises the wait of the most urgent rows.
Source: preemptive priorities; vLLM stops sequences in the same order.
"""

from __future__ import annotations

from routers.policies.preemption.types import PreemptionView
from routers.state.preemptible import standing
from routers.state.replica_state import Lease, ReplicaState


class LeastUrgent:
    def gives_back(self, view: PreemptionView, urgent: int, now: float) -> ReplicaState | None:
        replica = view.least_urgent(urgent)
        return None if replica is None or standing(replica) <= (0, urgent) else replica

    def stops(self, view: PreemptionView, urgent: int, now: float) -> Lease | None:
        least = max(view.streams.priorities(), default=0)
        return view.last_begun(least) if least > urgent else None
