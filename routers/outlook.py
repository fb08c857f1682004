"""Until when does nothing happen by itself, and when must the core be woken for it?

Time brings two kinds of things: a request or a lease that must be looked at, and a replica that may
take its next lease. Both are known ahead once a step is over. Until then, if nobody is ready and
nothing waits to be raced, a newcomer can only join the queue: nothing that follows from other
events need be asked again for it. One timer is asked for, the caller's; see `types.WakeAt`.
"""

from __future__ import annotations

from math import inf

from routers.racing import Racing
from routers.requests import Requests
from routers.types import Action, WakeAt


class Outlook:
    """As of the end of the last step. `looks_at`: when time changes something about what is in the
    core; `frees_at`: when a replica may take a lease; inf: never. `asked`: where the timer stands,
    inf: it does not."""

    def __init__(self) -> None:
        self.asked = inf
        self._looks_at = inf
        self._frees_at = inf
        self._is_idle = False  # a replica, or a copy, is waiting for something to do

    def is_quiet(self, now: float) -> bool:
        """Whether all that can happen now is what the next event does by itself."""
        return now < self._looks_at and now < self._frees_at and not self._is_idle

    def look(self, requests: Requests, racing: Racing) -> None:
        """Everything may have changed."""
        replicas, hedging = racing.replicas, racing.hedging
        self._looks_at = min(requests.timers.next_at(), hedging.next_at())
        self._frees_at = replicas.next_at()
        held_until = requests.held_until
        if held_until is not None and held_until < self._frees_at:
            self._frees_at = held_until
        stops = racing.settings.preempt_streams
        self._is_idle = replicas.has_ready or bool(hedging.waiting) or stops

    def joined(self, requests: Requests) -> None:
        """A newcomer waits, and nothing else has changed."""
        at = requests.timers.next_at()
        if at < self._looks_at:
            self._looks_at = at

    def ask(self, waits: bool, actions: list[Action]) -> None:
        """Ask for a timer, unless one that is early enough is outstanding. `waits`: something does,
        for a replica."""
        at = self._looks_at
        if waits and self._frees_at < at:
            at = self._frees_at
        if at < self.asked:
            self.asked = at
            actions.append(WakeAt(at))
