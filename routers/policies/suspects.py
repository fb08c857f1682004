"""May a row that was on a replica when that was lost be tried on this one now?

One of them may be what ended the replica. Each travels alone, so that a second loss has one cause,
and while its time allows not where that loss would leave nobody: it waits for a replica besides
that is well and tries no such row itself. Half of its own time, `hold_s` at most: then it is tried
all the same, because most replicas are lost for other reasons. Where one replica is all that there
ever was, nothing is waited for. Replicas that stream run rows beside each other, and hold none
back.
"""

from __future__ import annotations

from math import inf

from routers.state.formed_batch import ReplicaCapacity
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row

MOST_RUNS = 3
"""How often a row is run at most, whatever the reasons: the first lease, a copy of it or a lease
more because it was lost, and one lease more. Whoever runs a row again asks this number."""

_SHARE = 0.5  # of what a request has left


class Suspects:
    """`hold_s`: the longest that a row is held back."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self.hold_s = 0.0
        self._replicas = replicas
        self._replaced_by = -inf  # another replica is expected until then

    def lost(self, replica: ReplicaState, now: float) -> None:
        """A row comes back from a lease that was lost with this replica."""
        if any(each is not replica and not each.draining for each in self._replicas.by_id.values()):
            self._replaced_by = now + self.hold_s

    def held_until(self, row: Row, now: float) -> float:
        """The row is suspected, and waits from now on: until then where it would risk the last
        replica."""
        if self._replicas.running <= 1 and now >= self._replaced_by:
            return row.held_until
        return now + min(self.hold_s, _SHARE * (row.tracked.request.expires - now))

    def may_go_at(self, row: Row, capacity: ReplicaCapacity, now: float) -> float:
        """When it may be tried on this replica, once that holds nothing: now, or when it is held
        back no longer; inf: not while others run."""
        if not capacity.allows(row.avoid):
            return inf
        if now >= row.held_until or capacity.streams:
            return now
        for replica in self._replicas.by_id.values():
            if _remains(replica) and replica.spec.replica_id != capacity.replica_id:
                return now
        return row.held_until


def may_run_again(row: Row, lease: Lease, now: float) -> bool:
    """Of one that the lease was lost with, which is counted. One that had begun alone may not;
    where it had not begun, something else has ended its replica."""
    request = row.tracked.request
    if not request.retryable or request.expires <= now or row.losses + row.copied >= MOST_RUNS:
        return False
    had_begun = lease.opened or lease.replica.streams or bool(request.avoid)
    return not (row.retried and had_begun)


def may_run_after_failure(row: Row, now: float) -> bool:
    """Of one on which the model failed while its replica went on: once more."""
    request = row.tracked.request
    if not request.retryable or request.expires <= now or row.failed:
        return False
    return row.losses + row.copied < MOST_RUNS


def _remains(replica: ReplicaState) -> bool:
    """Whether it goes on serving whatever becomes of the rows that are tried."""
    return not (replica.draining or replica.unhealthy or replica.retries_held)
