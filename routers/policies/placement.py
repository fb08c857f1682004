"""Placement: which of the replicas that may take a lease is asked first?

Replicas are kept in this order by `state.ready_replicas`. The core's record of a replica derives
from `ReplicaView`, the numbers that a placement may know: nothing is copied, and only the core
assigns them. A model's settings choose a placement by name (`policies.placement`).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import deque
from math import inf, log
from typing import Final

# The kinds of ready replicas that each group has: the placement says which kind a healthy one is;
# unhealthy ones are SPARE.
IDLE: Final = 0
DUE: Final = 1
OVERRUN: Final = 2
BUSY: Final = 3
SPARE: Final = 4

# Replicas whose slowdowns differ by less than this factor take turns
_SPEED_BAND: Final = log(1.25)
_MUCH_SLOWER: Final = 1.5  # times its group's pace
_READING: Final = 4096.0  # prompt tokens yet to be read that weigh as much as a full replica


class Foreign:
    """What other gateways have at a replica, as of its last report."""

    def __init__(self) -> None:
        self.leases = 0
        self.until = 0.0  # predicted end of what they have started there
        self.shared = False  # they hold leases there, or have work waiting for it
        self.seen_until = 0.0  # until then the replica counts as one that they use


class ReplicaView:
    """A replica that may take a lease now."""

    def __init__(self) -> None:
        self.slowdown = 1.0  # its measured seconds over its group's predictions
        self.last_used = 0  # id of the last lease that it was sent
        # Its place among the idle replicas of its group, where several gateways each have an order
        # of their own; None: idle replicas take turns.
        self.preference: int | None = None
        self.foreign = Foreign()
        self.side_by_side = False  # it runs its leases side by side, as streams; else in turn
        self.finish_at = 0.0  # predicted end of its last lease; 0.0 where they run side by side
        self.reading = 0.0  # prompt tokens that it has yet to read; 0.0 where it runs batches

    @abstractmethod
    def holds(self) -> int:
        """Leases of this gateway that it holds."""

    @abstractmethod
    def busy_share(self) -> float:
        """How busy it is, 0..1."""

    def in_flight(self, now: float) -> float:
        """Leases that it holds, plus those of other gateways as of its last report until their
        predicted end."""
        foreign = self.foreign
        return float(self.holds() + (foreign.leases if foreign.until > now else 0))

    def finish_in_s(self, now: float, next_s: float) -> float:
        """Predicted seconds until it would have finished a typical lease of its group, of `next_s`
        seconds, that is sent to it now."""
        if self.side_by_side:
            return next_s * self.pace() * (1.0 + self.busy_share())
        own_s = next_s * self.slowdown
        if not self.holds() and self.foreign.until <= now:
            return own_s
        return abs(self.finish_at - now) + own_s

    def pace(self) -> float:
        """How many times slower a replica is taken to be whose leases run side by side. A small
        slowdown is as likely due to its prompts as to the replica, and counts as none."""
        return self.slowdown if self.slowdown > _MUCH_SLOWER else 1.0

    def speed_band(self) -> float:
        """Its slowdown, in steps of equal factors: replicas of one band take turns."""
        return float(round(log(self.slowdown) / _SPEED_BAND)) if self.slowdown > 0.0 else 0.0

    def turn(self) -> float:
        """Which of the idle replicas of one speed band is used next: the one used longest ago, or,
        where several gateways use them, the first in this gateway's order."""
        return float(self.last_used if self.preference is None else self.preference)


class Placement:
    """Which replica is asked first? A class and no protocol, whose methods cost more compiled."""

    @abstractmethod
    def place(self, replica: ReplicaView, now: float) -> tuple[int, float, float]:
        """The kind of a healthy replica (not `SPARE`), and its two keys within that kind, lowest
        first. The first key of a `DUE` replica is a time, not before `now`; once that has passed,
        the replica is placed again. The others keep their place until something about them
        changes."""

    @abstractmethod
    def score(self, replica: ReplicaView, now: float, batch_s: float) -> float:
        """Of the first replicas of all kinds, the one with the lowest score is asked. `batch_s`:
        predicted seconds of the next batch of its group."""

    def answered(self, replica: ReplicaView, now: float) -> None:
        """The replica has answered a lease and reported what it holds: the one event that a
        placement learns from."""
        return


class FinishFirst(Placement):
    """The default: the one predicted to finish first, its remaining work plus a batch.

    The batch is predicted at the replica's own speed. Idle replicas of about the same speed take
    turns, or have an order where gateways share them (`ReplicaView.preference`). A replica that
    is some seconds beyond its predicted finish is expected to take as many seconds more. Stream
    replicas are compared by the share of their room that is taken and by the prompts that they have
    yet to read; one that is much slower than its group is penalised by as much.
    """

    def place(self, replica: ReplicaView, now: float) -> tuple[int, float, float]:
        if replica.side_by_side:
            load = replica.busy_share() + replica.reading / _READING
            return BUSY, (1.0 + load) * replica.pace(), replica.last_used
        held, finish_at = replica.holds(), replica.finish_at
        if not held and replica.foreign.until <= now:
            return IDLE, replica.speed_band(), replica.turn()
        if finish_at >= now:
            return DUE, finish_at, held
        return OVERRUN, -finish_at, held

    def score(self, replica: ReplicaView, now: float, batch_s: float) -> float:
        return replica.finish_in_s(now, batch_s)


class LeastLoaded(Placement):
    """The one with the fewest leases, of all gateways as far as known.

    As in most load balancers it predicts nothing: a slow replica gets as much as a fast one, and a
    long batch counts like a short one. Among equals, the replica used longest ago. Source: least
    outstanding requests as in Envoy and NGINX (`least_conn`), over all replicas instead of two.
    """

    def place(self, replica: ReplicaView, now: float) -> tuple[int, float, float]:
        inflight = replica.in_flight(now)
        return (BUSY if inflight else IDLE), inflight, replica.last_used

    def score(self, replica: ReplicaView, now: float, batch_s: float) -> float:
        return replica.in_flight(now)


class RoundRobin(Placement):
    """The one used longest ago."""

    def place(self, replica: ReplicaView, now: float) -> tuple[int, float, float]:
        return (BUSY if replica.in_flight(now) else IDLE), replica.last_used, 0.0

    def score(self, replica: ReplicaView, now: float, batch_s: float) -> float:
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

    def place(self, replica: ReplicaView, now: float) -> tuple[int, float, float]:
        inflight = replica.in_flight(now)
        if not inflight:
            return IDLE, replica.speed_band(), replica.turn()
        if inflight >= self._limit():
            return OVERRUN, inflight, replica.speed_band()
        return BUSY, (1.0 + inflight) * replica.slowdown, inflight

    def score(self, replica: ReplicaView, now: float, batch_s: float) -> float:
        inflight = replica.in_flight(now)
        if inflight and inflight >= self._limit():
            return _FAR * (1.0 + inflight)
        return (1.0 + inflight) * batch_s * replica.slowdown

    def answered(self, replica: ReplicaView, now: float) -> None:
        """Sample its leases in flight."""
        inflight = replica.in_flight(now)
        insort(self._sorted, inflight)
        self._came.append(inflight)
        if len(self._came) > _SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._came.popleft())]

    def _limit(self) -> float:
        """Leases in flight from which on a replica is hot; inf until the first answer."""
        return self._sorted[int(_HOT * (len(self._sorted) - 1))] if self._sorted else inf
