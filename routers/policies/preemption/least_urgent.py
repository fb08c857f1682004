"""What gives way to an urgent row? The least urgent work that may, where it is less urgent.

Late batches are less urgent than any on time. Of streams of the least urgent priority that runs,
the one that began last gives way: it loses least. Optimises the wait of the most urgent rows.
Source: preemptive priorities; vLLM stops sequences in the same order.
"""

from __future__ import annotations

from routers.policies.preemption.types import BegunStreams
from routers.state.replica_state import AnyLease


class LeastUrgent:
    def gives_back(self, least: tuple[int, int], urgent: int) -> bool:
        return least > (0, urgent)

    def stops(self, begun: BegunStreams, urgent: int) -> AnyLease | None:
        least = max(begun.priorities(), default=0)
        return begun.last_begun(least) if least > urgent else None
