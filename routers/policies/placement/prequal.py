"""The cold replica with the lowest latency, or where all are hot the one with the fewest requests.

Hot is who has more in flight than most were lately found to have (`_HOT` quantile): there latency
tells nothing any more. Instead of probes, what replicas say with each answer: their requests in
flight, and how slow they are. Source: Wydrowski et al., Load is not what you should balance:
Introducing Prequal (NSDI'24), its hot-cold lexicographic rule.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from routers.state.ready_replicas import IDLE, STREAM, requests_in_flight, speed_band
from routers.state.replica_state import ReplicaState

_HOT = 0.84  # as the paper found best
_SAMPLES = 100
_FAR = 1e6  # seconds: above any latency, so that the hot come after the cold


class Prequal:
    """Keeps the last samples of requests in flight, in order and as they came."""

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self._sorted: list[float] = []

    def place(self, replica: ReplicaState, now: float) -> tuple[int, float, float]:
        inflight = requests_in_flight(replica)
        self._note(inflight)
        latency = speed_band(replica)
        return (STREAM, inflight, latency) if inflight else (IDLE, latency, replica.last_used)

    def score(self, replica: ReplicaState, now: float, batch_s: float) -> float:
        inflight = requests_in_flight(replica)
        if inflight and inflight >= self._limit():
            return _FAR * (1.0 + inflight)
        return (1.0 + inflight) * batch_s * replica.slowdown

    def _limit(self) -> float:
        return self._sorted[int(_HOT * (len(self._sorted) - 1))]

    def _note(self, inflight: float) -> None:
        insort(self._sorted, inflight)
        self._came.append(inflight)
        if len(self._came) > _SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._came.popleft())]
