"""What gives way to an urgent row? Of all less urgent streams the one that was sent last.

Optimises device seconds: what the engine has done for a stream that has no token yet, at most the
seconds since it was sent, is done twice. So a stream of a middle priority may give way while a less
urgent one runs. Staged batches lose nothing: of those the least urgent gives way.
"""

from __future__ import annotations

from routers.policies.preemption.least_urgent import LeastUrgent
from routers.policies.preemption.types import BegunStreams
from routers.state.replica_state import AnyLease


class LeastWorkLost(LeastUrgent):
    def stops(self, begun: BegunStreams, urgent: int) -> AnyLease | None:
        latest: AnyLease | None = None
        for priority in sorted(begun.priorities(), reverse=True):
            lease = begun.last_begun(priority) if priority > urgent else None
            if lease is not None and (latest is None or lease.sent_at > latest.sent_at):
                latest = lease
        return latest
