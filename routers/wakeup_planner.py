"""Until when does nothing happen by itself, and when must the core be woken for it?

Time brings two kinds of things: a request or a lease that must be looked at, and a replica that may
take its next lease. Both are known ahead once a step is over. Until then, if nobody is ready and
nothing waits to be raced, a newcomer can only join the queue: nothing that follows from other
events need be asked again for it. One timer is asked for, the caller's; see `types.WakeAt`.
"""

from __future__ import annotations

from math import inf

from routers.placement.speculative_copies import SpeculativeCopies
from routers.request_table import RequestTable
from routers.types import Action, WakeAt


class WakeupPlanner:
    """As of the end of the last step. `quiet_until`: before then all that happens is what the next
    newcomer does by itself, unless it is more urgent than the `most_urgent` that wait. `asked`:
    where the timer stands, inf: it does not."""

    def __init__(self) -> None:
        self.asked = inf
        self.quiet_until = -inf
        self.most_urgent: int | None = None
        self._looks_at = inf  # when time changes something about what is in the core
        self._frees_at = inf  # when a replica may take a lease

    def look(self, requests: RequestTable, racing: SpeculativeCopies) -> None:
        """Everything may have changed."""
        replicas, hedging = racing.replicas, racing.hedging
        self._looks_at = min(requests.timers.next_at(), hedging.next_at())
        self._frees_at = replicas.next_at()
        held_until = requests.held_until
        if held_until is not None and held_until < self._frees_at:
            self._frees_at = held_until
        self.quiet_until = min(self._looks_at, self._frees_at)
        self.most_urgent = urgent = requests.most_urgent()
        gives_way = urgent is not None and replicas.yielding.to(urgent) is not None
        if replicas.has_ready or hedging.waiting or gives_way or racing.settings.preempt_streams:
            self.quiet_until = -inf

    def joined(self, requests: RequestTable) -> None:
        """A newcomer waits, and nothing else has changed."""
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
        if at < self.asked:
            self.asked = at
            actions.append(WakeAt(at))
