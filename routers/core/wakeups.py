"""When must the core be called again though nothing happens?"""

from __future__ import annotations

from math import inf

from routers.api.actions import Action, WakeAt
from routers.core.core_state import State
from routers.core.request_table import RequestTable


class WakeupPlanner:
    """As of the end of the last step. `quiet_until`: before then all that happens is what the next
    new request does by itself, unless it is more urgent than the `most_urgent` that wait. `asked`:
    where the timer stands, inf: it does not."""

    def __init__(self) -> None:
        self.wakes_at = inf
        self.quiet_until = -inf
        self.most_urgent: int | None = None
        self._looks_at = inf  # when time changes something about what is in the core
        self._frees_at = inf  # when a replica may take a lease

    def look(self, state: State) -> None:
        """Everything may have changed."""
        requests, copies = state.requests, state.copies
        batch_copies, stream_copies = copies.schedule, state.stream_copies.schedule
        replicas = copies.replicas
        self._looks_at = min(
            requests.timers.next_at(),
            batch_copies.next_check_at(),
            state.silence.next_at(),
            stream_copies.next_check_at(),
        )
        self._frees_at = replicas.next_at()
        held_until = requests.held_until
        if held_until is not None and held_until < self._frees_at:
            self._frees_at = held_until
        if requests.tries_at < self._frees_at:
            self._frees_at = requests.tries_at
        self.quiet_until = min(self._looks_at, self._frees_at)
        self.most_urgent = urgent = requests.most_urgent()
        gives_way = urgent is not None and replicas.preemptible.for_priority(urgent) is not None
        races = batch_copies.candidates or stream_copies.candidates
        if replicas.has_ready or races or gives_way or copies.settings.preempt_streams:
            self.quiet_until = -inf

    def joined(self, requests: RequestTable) -> None:
        """A new request waits, and nothing else has changed."""
        at = requests.timers.next_at()
        if at < self._looks_at:
            self._looks_at = at
            self.quiet_until = min(at, self.quiet_until)

    def ask(self, waits: bool, actions: list[Action]) -> None:
        """Ask for a timer, unless one that is early enough is outstanding. `waits`: something does,
        for a replica."""
        at = self._looks_at
        if waits and self._frees_at < at:
            at = self._frees_at
        if at < self.wakes_at:
            self.wakes_at = at
            actions.append(WakeAt(at))
