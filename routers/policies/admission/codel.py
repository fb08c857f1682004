"""Does a flow's queue stand, so that what has waited too long in it should go?

A queue that empties now and then holds a burst and does no harm. A queue whose shortest wait over a
whole interval exceeds the target *stands*: it only adds delay. While it stands, a request that has
waited over twice the target is shed when its turn comes. There is one watch for each flow ever
seen, as in fq_codel (RFC 8290), because a fair queue has as many queues as flows. It needs no
forecast and no deadline, so it also works where those are wrong. O(1) a call.

Source: CoDel as in folly's `Codel.cpp`, without the square-root schedule; unlike there, a finding
older than a pause longer than an interval is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from routers.api.requests import FlowKey, FlowWork
from routers.api.settings import AdmissionParameters, CodelParameters, DispatcherSettings, Mode
from routers.policies.admission.types import AtTurn, RequestView


@dataclass(slots=True, init=False)
class Watch:
    """One flow's interval. `min_s`: the shortest wait seen in the running interval, which ends at
    `ends_at`. `stands`: what the interval before has found."""

    min_s: float
    ends_at: float
    stands: bool

    def __init__(self, min_s: float = inf, ends_at: float = -inf, stands: bool = False) -> None:
        self.min_s, self.ends_at, self.stands = min_s, ends_at, stands


_NOTHING_SEEN: Final = Watch()


class Codel(AtTurn):
    """Keeps one `Watch` a flow."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: dict[FlowKey, Watch] = {}
        self._settings = CodelParameters()
        self._frozen = False

    def mode(self, admission: AdmissionParameters) -> Mode:
        return admission.codel.mode

    def tune(self, settings: DispatcherSettings) -> None:
        self._settings, self._frozen = settings.admission.codel, settings.frozen

    def look(
        self, seen: Watch, request: RequestView, wait_s: float, now: float
    ) -> tuple[Watch, bool]:
        watch, stands = seen, seen.stands
        if not self._frozen:
            watch, stands = self._with_sample(watch, wait_s, now)
        return watch, stands and wait_s > 2.0 * self._settings.target_s

    def seen(self, flow: FlowKey) -> Watch:
        return self._watches.get(flow, _NOTHING_SEEN)

    def learn(self, flow: FlowKey, seen: Watch) -> None:
        self._watches[flow] = seen

    def value(self, capacity: float, now: float) -> float:
        """How many flows' queues stand, as last found."""
        return len(self._standing())

    def by_flow(self, now: float) -> tuple[FlowWork, ...]:
        return tuple((*flow, 1.0) for flow in self._standing())

    def _standing(self) -> list[FlowKey]:
        return [flow for flow, watch in self._watches.items() if watch.stands]

    def _with_sample(self, watch: Watch, wait_s: float, now: float) -> tuple[Watch, bool]:
        """The watch after one more sample, and whether the queue stands. The first sample of an
        interval sheds nothing."""
        if now <= watch.ends_at:
            if wait_s < watch.min_s:
                watch = Watch(wait_s, watch.ends_at, watch.stands)
            return watch, watch.stands
        settings = self._settings
        paused = now > watch.ends_at + settings.interval_s
        stands = watch.min_s > settings.target_s and not paused
        return Watch(wait_s, now + settings.interval_s, stands), False
