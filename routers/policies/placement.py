"""Placement: which of the replicas that may take a lease is asked first?

Replicas are kept in this order by `state.ready_replicas`. A model's settings choose a placement by
name (`policies.placement`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf
from typing import Final

from routers.state.ready_replicas import Placement, leases_in_flight, preference, speed_band
from routers.state.replica_state import BUSY, IDLE, OVERRUN, AnyReplica


class FinishFirst(Placement):
    """The default: the one predicted to finish first, its remaining work plus a batch.

    The batch is predicted at the replica's own speed. Idle replicas of about the same speed take
    turns, or have an order where gateways share them (`ready_replicas.preference`). A replica that
    is some seconds beyond its predicted finish is expected to take as many seconds more. Stream
    replicas are compared by the share of their room that is taken and by the prompts that they have
    yet to read; one that is much slower than its group is penalised by as much.
    """

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        return replica.place_by_finish(now)

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return replica.finish_in_s(now, batch_s)


class LeastLoaded(Placement):
    """The one with the fewest leases, of all gateways as far as known.

    As in most load balancers it predicts nothing: a slow replica gets as much as a fast one, and a
    long batch counts like a short one. Among equals, the replica used longest ago. Source: least
    outstanding requests as in Envoy and NGINX (`least_conn`), over all replicas instead of two.
    """

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        inflight = leases_in_flight(replica, now)
        return (BUSY if inflight else IDLE), inflight, replica.last_used

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return leases_in_flight(replica, now)


class RoundRobin(Placement):
    """The one used longest ago."""

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        return (BUSY if leases_in_flight(replica, now) else IDLE), replica.last_used, 0.0

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return replica.last_used


_HOT: Final = 0.84  # as the paper found best
_SAMPLES: Final = 100
_FAR: Final = 1e6  # seconds: above any latency, so that hot replicas come after cold ones


class Prequal(Placement):
    """The quickest cold one; if all are hot, the least loaded one.

    A replica is *hot* when it has at least as many leases in flight as the `_HOT` quantile of those
    lately seen; its latency tells nothing then. Instead of by probes, leases in flight and slowness
    are learnt from each answer. A replica is placed among the hot or the cold ones when something
    happens to it. Keeps the last samples of leases in flight, sorted and in the order in which they
    came.

    Source: Wydrowski et al., Load is not what you should balance: Introducing Prequal (NSDI'24),
    its hot-cold lexicographic rule.
    """

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
