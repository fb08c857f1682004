"""The quickest of the cold replicas, or where all are hot the one with the fewest leases.

Hot is who has as many leases in flight as few were lately found to have (`_HOT` quantile): there
latency tells nothing any more. Instead of probes, what replicas say with each answer: their leases
in flight, and how slow they are. A replica is called hot or cold when something happens to it.
Source: Wydrowski et al., Load is not what you should balance: Introducing Prequal (NSDI'24), its
hot-cold lexicographic rule.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf

from routers.state.ready_replicas import BUSY, IDLE, OVERRUN, leases_in_flight, speed_band
from routers.state.replica_state import ReplicaState

_HOT = 0.84  # as the paper found best
_SAMPLES = 100
_FAR = 1e6  # seconds: above any latency, so that the hot come after the cold


class Prequal:
    """Keeps the last samples of leases in flight, in order and as they came."""

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self._sorted: list[float] = []

    def place(self, replica: ReplicaState, now: float) -> tuple[int, float, float]:
        inflight = leases_in_flight(replica, now)
        if not inflight:
            return IDLE, speed_band(replica), replica.last_used
        if inflight >= self._limit():
            return OVERRUN, inflight, speed_band(replica)
        return BUSY, (1.0 + inflight) * replica.slowdown, inflight

    def score(self, replica: ReplicaState, now: float, batch_s: float) -> float:
        inflight = leases_in_flight(replica, now)
        if inflight and inflight >= self._limit():
            return _FAR * (1.0 + inflight)
        return (1.0 + inflight) * batch_s * replica.slowdown

    def answered(self, replica: ReplicaState, now: float) -> None:
        inflight = leases_in_flight(replica, now)
        insort(self._sorted, inflight)
        self._came.append(inflight)
        if len(self._came) > _SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._came.popleft())]

    def _limit(self) -> float:
        """Leases from which on a replica is hot; more than it may have until some have answered."""
        return self._sorted[int(_HOT * (len(self._sorted) - 1))] if self._sorted else inf
