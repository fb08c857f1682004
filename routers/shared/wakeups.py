"""When must the dispatcher be called again if no event comes, and when may a step be skipped?

The dispatcher has one timer (`api.actions.WakeAt`). `WakeupPlanner` asks for it at the earliest
time at which a decision may change by the clock alone. It also says until when a new request
changes nothing but the queue, so that the dispatcher need not run its other decisions. Times are
seconds on the dispatcher's clock.
"""

from __future__ import annotations

from math import inf

from routers.api.actions import Action, WakeAt
from routers.shared.assignment import Assignment
from routers.shared.core_state import State
from routers.shared.requests import RequestTable


class WakeupPlanner:
    """The wakeups as of the end of the last step."""

    def __init__(self) -> None:
        self.wakes_at = inf  # when the timer is set to fire; inf: it is not set
        # Until then a new request has no effect but its own admission and queueing, unless its
        # priority is more urgent than `most_urgent`, the most urgent that had rows waiting.
        self.quiet_until = -inf
        self.most_urgent: int | None = None
        self._next_check_at = inf  # when a request's timer or a check of a lease or replica is due
        self._next_capacity_at = inf  # when a replica may take a lease

    def look(self, state: State, assignment: Assignment, now: float) -> None:
        """Plan anew at the end of a step in which anything may have changed."""
        requests, copies = state.requests, state.copies
        batch_copies, stream_hedger = copies.schedule, state.stream_hedger.schedule
        replicas = copies.replicas
        self._next_check_at = min(
            requests.timers.next_at(),
            batch_copies.next_check_at(),
            state.silence.next_at(),
            stream_hedger.next_check_at(),
        )
        self._next_capacity_at = replicas.next_at()
        held_until = requests.held_until
        if held_until is not None and held_until < self._next_capacity_at:
            self._next_capacity_at = held_until
        if requests.next_retry_at < self._next_capacity_at:
            self._next_capacity_at = requests.next_retry_at
        self.quiet_until = min(self._next_check_at, self._next_capacity_at)
        self.most_urgent = requests.most_urgent()
        gives_way = assignment.may_preempt(now)
        races = batch_copies.candidates or stream_hedger.candidates
        if replicas.has_ready or races or gives_way or copies.settings.preempt_streams:
            self.quiet_until = -inf
        elif requests.groups.bounds and replicas.preemptible.least_urgent() is not None:
            # The most urgent rows may be too long for that replica, so that others preempt there.
            self.quiet_until = -inf

    def joined(self, requests: RequestTable) -> None:
        """A new request was queued and nothing else has changed: plan its timer."""
        at = requests.timers.next_at()
        if at < self._next_check_at:
            self._next_check_at = at
            self.quiet_until = min(at, self.quiet_until)

    def ask(self, waits: bool, actions: list[Action]) -> None:
        """Append a `WakeAt`, unless the timer is set to the same time or an earlier one. `waits`:
        rows wait, or leases wait to be copied, so that a replica's becoming free matters."""
        at = self._next_check_at
        if waits and self._next_capacity_at < at:
            at = self._next_capacity_at
        if at < self.wakes_at:
            self.wakes_at = at
            actions.append(WakeAt(at))
