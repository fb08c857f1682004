"""Does a flow's queue stand, so that what has waited too long in it should go?

A queue that drains now and then is a burst and does no harm; one whose shortest wait over a whole
interval exceeds the target only adds delay. While it stands, what has waited over twice the target
is shed when its turn comes. One watch a flow, as in fq_codel (RFC 8290): a fair queue has as many
queues as flows. It needs no forecast and no deadline, so it also works where those are wrong.
Source: CoDel as in folly's `Codel.cpp`, without the square-root schedule; unlike there, what was
found before a pause longer than an interval is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from routers.admission.verdicts import Verdicts
from routers.settings import CodelSettings
from routers.types import FlowKey


@dataclass(slots=True)
class _Watch:
    """least_s: the shortest wait of the interval that runs. stands: what the one before found."""

    least_s: float = inf
    ends_at: float = -inf
    stands: bool = False


class Codel:
    """One watch a flow ever seen, O(1) a call."""

    def __init__(self, settings: CodelSettings, *, frozen: bool = False) -> None:
        self.verdicts = Verdicts(settings.mode)
        self._watches: dict[FlowKey, _Watch] = {}
        self.tune(settings, frozen=frozen)

    def tune(self, settings: CodelSettings, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.verdicts.tune(settings.mode)

    def sheds(self, flow: FlowKey, wait_s: float, now: float) -> bool:
        """Whether a request whose turn has come after `wait_s` is shed instead. Each is asked about
        once, before the batch is filled: what is shed leaves its place to the next."""
        if self.verdicts.off:
            return False
        watch = self._watches.get(flow)
        if watch is None:
            watch = self._watches[flow] = _Watch()
        stands = watch.stands if self.frozen else self._stands(watch, wait_s, now)
        return stands and wait_s > 2.0 * self.settings.target_s and self.verdicts.no()

    def standing(self) -> list[FlowKey]:
        """Flows whose queues stand, as last found."""
        return [flow for flow, watch in self._watches.items() if watch.stands]

    def _stands(self, watch: _Watch, wait_s: float, now: float) -> bool:
        """Take in a sample; the first of an interval sheds nothing."""
        if now <= watch.ends_at:
            if wait_s < watch.least_s:
                watch.least_s = wait_s
            return watch.stands
        settings = self.settings
        paused = now > watch.ends_at + settings.interval_s
        watch.stands = watch.least_s > settings.target_s and not paused
        watch.least_s, watch.ends_at = wait_s, now + settings.interval_s
        return False
