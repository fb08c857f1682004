"""What gives way to an urgent row? Nothing that was sent: priorities hold in the queue alone."""

from __future__ import annotations

from routers.policies.preemption.types import BegunStreams
from routers.state.replica_state import AnyLease


class Never:
    def gives_back(self, least: tuple[int, int], urgent: int) -> bool:
        return False

    def stops(self, begun: BegunStreams, urgent: int) -> AnyLease | None:
        return None
