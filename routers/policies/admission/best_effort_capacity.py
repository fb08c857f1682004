"""May another late request wait, or is there no idle moment left that could serve it?

The capacity for late work is half of what idle moments could serve before the new request expires:
the share of the replicas' time that on-time work has lately left, times the seconds that the
request has, times the replicas. A system that has just started, or is idle, has all of that
capacity. In lasting overload on-time work takes all the time, and a new request that would be late
is refused at once instead of expiring slowly. A request that was waiting when its deadline passed
may count on all idle moments, not on half of them.

Unit: predicted device seconds. It cannot latch, because what opens it again is time that passes
without on-time work. It does not say who is late. A device that hangs counts as idle; the late rows
that wait for it are bounded by `max_late_rows`, and expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routers.api.requests import FlowWork
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.estimates.averages import DecayingRate
from routers.policies.admission.types import FlowView, LateWork, OnceLate, window_s

_IDLE_SHARE: Final = 0.5  # of what idle moments could serve, that new requests may count on
_NOISE: Final = 0.02  # an idle share up to this is only the ripple of the average
_WINDOW_S: Final = 2.0


class BestEffortCapacity(OnceLate):
    """Keeps a decaying rate of the device seconds that on-time work takes."""

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

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[FlowView] = ()
    ) -> None:
        """On-time rows had a replica for so long: from dispatch, or from the end of the lease
        before, to the answer. A batch with on-time and late rows counts whole."""
        if not (late or self._frozen):
            sum_s = 0.0
            for _, _, seconds in work:
                sum_s += seconds
            self._on_time.add(sum_s, now)

    def value(self, capacity: float, now: float) -> float:
        """The share of the replicas' time that on-time work leaves, 0 to 1: all of it where none of
        those that run now takes such rows."""
        if not capacity:
            return 1.0
        taken = self._on_time.value if self._frozen else self._on_time.read(now)
        left = 1.0 - taken / capacity
        return max(0.0, left - _NOISE) / (1.0 - _NOISE)

    def capacity_s(self, time_left_s: float, capacity: float, now: float) -> float:
        """Predicted device seconds of late work that may wait."""
        if self._fixed_s is not None:
            return self._fixed_s
        return _IDLE_SHARE * self.value(capacity, now) * time_left_s * (capacity or 1.0)
