"""May another late request wait, or is there no idle moment left that could serve it?

Capacity for late work is half of what idle moments could serve before it expires: the share of the
replicas' time that on-time work has lately left, times the time the new request has, times the
replicas. A system that has just started, or idles, has all of it; in lasting overload on-time work
takes all the time, and a new request that would be late is refused at once instead of expiring
slowly. One whose deadline passes while it waits may count on all idle moments. It cannot latch:
what opens it is time that passes without on-time work. It says nothing of who is late, and a device
that hangs counts as idle: what waits for that one is bounded by `max_late_rows` and expires.
"""

from __future__ import annotations

from collections.abc import Sequence

from routers.api.requests import FlowWork
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.estimates.averages import DecayingRate
from routers.policies.admission.types import LateWork, OnceLate, window_s

_IDLE_SHARE = 0.5
_NOISE = 0.02  # so little is no idle time, but the ripple of the average
_WINDOW_S = 2.0


class BestEffortCapacity(OnceLate):
    def __init__(self) -> None:
        super().__init__()
        self._on_time = DecayingRate(_WINDOW_S)
        self._fixed_s: float | None = None
        self._frozen = False

    def mode(self, admission: AdmissionParameters) -> Mode:
        return admission.feasibility

    def tune(self, settings: DispatcherSettings) -> None:
        self._on_time.window_s = window_s(_WINDOW_S, settings)
        self._fixed_s = settings.admission.best_effort_capacity_s
        self._frozen = settings.frozen

    def refuses(self, late: LateWork, now: float) -> bool:
        work_s = late.work_s if late.is_new else _IDLE_SHARE * late.work_s
        return work_s > self.capacity_s(late.left_s, late.capacity, now)

    def served(self, work: Sequence[FlowWork], now: float, *, late: bool) -> None:
        """On-time rows had a replica for so long: from dispatch, or the end of the lease before it,
        to the answer; of a mixed batch all of it."""
        if not (late or self._frozen):
            self._on_time.add(sum([seconds for _, _, seconds in work]), now)

    def value(self, capacity: float, now: float) -> float:
        """Share of the replicas' time that on-time work leaves, 0 to 1."""
        taken = self._on_time.value if self._frozen else self._on_time.read(now)
        left = 1.0 - taken / (capacity or 1.0)
        return max(0.0, left - _NOISE) / (1.0 - _NOISE)

    def capacity_s(self, time_left_s: float, capacity: float, now: float) -> float:
        """Predicted device seconds of late work that may wait."""
        if self._fixed_s is not None:
            return self._fixed_s
        return _IDLE_SHARE * self.value(capacity, now) * time_left_s * (capacity or 1.0)
