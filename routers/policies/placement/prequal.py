"""Which replica is asked first? The quickest cold one; if all are hot, the least loaded one.

A replica is *hot* when it has at least as many leases in flight as the `_HOT` quantile of those
lately seen; its latency tells nothing then. Instead of by probes, leases in flight and slowness are
learnt from each answer. A replica is placed among the hot or the cold ones when something happens
to it.

Source: Wydrowski et al., Load is not what you should balance: Introducing Prequal (NSDI'24), its
hot-cold lexicographic rule.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf
from typing import Final

from routers.state.ready_replicas import Placement, leases_in_flight, preference, speed_band
from routers.state.replica_state import BUSY, IDLE, OVERRUN, AnyReplica

_HOT: Final = 0.84  # as the paper found best
_SAMPLES: Final = 100
_FAR: Final = 1e6  # seconds: above any latency, so that hot replicas come after cold ones


class Prequal(Placement):
    """Keeps the last samples of leases in flight, sorted and in the order in which they came."""

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self._sorted: list[float] = []

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        inflight = leases_in_flight(replica, now)
        if not inflight:
            return IDLE, speed_band(replica), preference(replica)
        if inflight >= self._limit():
            return OVERRUN, inflight, speed_band(replica)
        return BUSY, (1.0 + inflight) * replica.slowdown, inflight

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        inflight = leases_in_flight(replica, now)
        if inflight and inflight >= self._limit():
            return _FAR * (1.0 + inflight)
        return (1.0 + inflight) * batch_s * replica.slowdown

    def answered(self, replica: AnyReplica, now: float) -> None:
        """Sample its leases in flight."""
        inflight = leases_in_flight(replica, now)
        insort(self._sorted, inflight)
        self._came.append(inflight)
        if len(self._came) > _SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._came.popleft())]

    def _limit(self) -> float:
        """Leases in flight from which on a replica is hot; inf until the first answer."""
        return self._sorted[int(_HOT * (len(self._sorted) - 1))] if self._sorted else inf
