"""What is a preemption policy shown, and what does it answer?

Two sorts of work may be taken back for an on-time row that waits. On a batch replica: a batch that
is staged there unstarted. One lease more than fits is sent, and the replica, whose rule is to
return its least urgent staged batch, returns it. No work is lost and no message is added. On a
stream replica, where settings allow it: a lease of whose answer no token has come, and nothing has
been given to its caller, whose rows are all retryable and were not stopped before.

The view offers nothing else, so that no policy can lose work. A policy says what gives way, if
anything does; the core sends, recalls and counts. A batch that leads because its priority had been
passed over too long is never taken back, and no batch is while such a one is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routers.estimates.groups import ReplicaGroup
from routers.state.preemptible import PreemptibleReplicas, PreemptibleStreams
from routers.state.replica_state import Lease, ReplicaState
from routers.state.request_queue import RequestQueue

_TRIES = 4  # leases of a priority that are looked at


@dataclass(frozen=True, slots=True)
class PreemptionView:
    """What was sent and might be taken back."""

    replicas: PreemptibleReplicas  # that are full, by the batch that each would return
    streams: PreemptibleStreams  # by priority
    waiting: RequestQueue

    def least_urgent(self, urgent: int) -> ReplicaState | None:
        """Of the replicas that take a row which waits with the priority `urgent`, the one that
        would return the least urgent batch; None where none would return one."""
        lanes = self.waiting.on_time[urgent : urgent + 1]

        def takes(group: ReplicaGroup) -> bool:
            lengths = group.lengths
            return lengths is None or any(lane.seconds_in(lengths) > 0.0 for lane in lanes)

        return self.replicas.least_urgent(takes)

    def last_begun(self, priority: int) -> Lease | None:
        """Of the stream leases of this priority that may be stopped, the one that began last; None
        where there is none among the latest few."""
        for tries, lease in enumerate(self.streams.latest_first(priority)):
            if tries == _TRIES:
                break
            if _may_stop(lease):
                return lease
        return None


class Preemption(Protocol):
    """What gives way to a row of the priority `urgent` that waits on time?"""

    def gives_back(self, view: PreemptionView, urgent: int, now: float) -> ReplicaState | None:
        """The full batch replica that returns its least urgent staged batch; None: none does."""
        ...

    def stops(self, view: PreemptionView, urgent: int, now: float) -> Lease | None:
        """The stream lease that is stopped, so that its row waits again; None: none is."""
        ...


def _may_stop(lease: Lease) -> bool:
    """Not while another lease of its replica is being recalled, not a lease that may not run again
    or whose first token has come, and not a row that was stopped before or of whose answer its
    caller has had a part."""
    running = lease.running
    if (
        lease.non_preemptible
        or not lease.live
        or (running is not None and running.first_at is not None)
        or any(other.recalled for other in lease.replica.leases.values())
    ):
        return False
    rows = lease.members()
    return all(r.tracked.request.retryable and not (r.stopped or r.shown) for r in rows)
