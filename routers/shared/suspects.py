"""May a row that was on a replica when that replica was lost be tried on this one now?

Such a row may be what ended the replica. It travels alone, so that a second loss has one possible
cause. While its time allows, it is not tried where a second loss would leave no replica: it waits
until another replica is well and tries no such row itself. It waits for half of the time that it
has left, `hold_s` at most, and is then tried all the same, because most replicas are lost for other
reasons. Where there has only ever been one replica, it does not wait. Streams run side by side, and
none is held back: their scheduler does not ask.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from routers.api.requests import Reason
from routers.state.replica_state import AnyReplica
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row

MAX_RUNS: Final = 3
"""How often a row is run at most, whatever the reasons: its first lease; a copy of that lease, or
another lease because the first was lost; and one lease more. Whatever runs a row again must keep
this bound."""

_HELD_SHARE: Final = 0.5  # of the time that a request has left


class Suspects:
    """Which rows are held back, and until when. `hold_s`: the longest that a row is held back."""

    def __init__(self, replicas: ReplicaSet[Any]) -> None:
        self.hold_s = 0.0
        self._replicas = replicas
        self._replaced_by = -inf  # another replica is expected until then

    def lost(self, replica: AnyReplica, now: float) -> None:
        """A row comes back from a lease that was lost with this replica."""
        if any(each is not replica and not each.draining for each in self._replicas.by_id.values()):
            self._replaced_by = now + self.hold_s

    def held_until(self, row: Row, now: float) -> float:
        """The row is suspected from now on. Until the time returned, it is not tried where its loss
        would leave no well replica."""
        if self._replicas.running <= 1 and now >= self._replaced_by:
            return row.held_until
        return now + min(self.hold_s, _HELD_SHARE * (row.tracked.request.expires - now))

    def may_go_at(self, row: Row, replica_id: str, now: float) -> float:
        """When the row may be tried on this replica, which it is allowed to be: now, or when it is
        no longer held back."""
        if now >= row.held_until:
            return now
        for replica in self._replicas.by_id.values():
            if replica.remains() and replica.spec.replica_id != replica_id:
                return now
        return row.held_until


def may_run_again(row: Row, now: float, *, had_begun: bool) -> bool:
    """Whether a row may run again after its lease was lost, a loss that is already counted. A row
    that had begun alone may not; if it had not begun, something else has ended its replica."""
    request = row.tracked.request
    if row.shown or not request.retryable or request.expires <= now:
        return False
    if row.losses + row.copied >= MAX_RUNS:
        return False
    return not (row.isolated and had_begun)


def end_reason(row: Row) -> Reason:
    """Why the request of a row ends whose lease was lost and that may not run again."""
    return Reason.INTERRUPTED if row.shown else Reason.LOST


def may_run_after_failure(row: Row, now: float) -> bool:
    """Whether a row may run again on which the model failed while its replica went on: once."""
    request = row.tracked.request
    if row.shown or not request.retryable or request.expires <= now or row.failed:
        return False
    return row.losses + row.copied < MAX_RUNS
