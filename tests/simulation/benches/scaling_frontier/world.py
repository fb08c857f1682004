"""A model's replicas and its queue over a day on virtual time, one request after the other.

Every replica works on one request at a time; first come, first served, and what could not be
started in time is refused as it comes and counts as missed: what the gateway's dispatcher does with
`late: refuse`. Every policy gets this queue; one that grows without bound would make those that
look at it ask for all that there is. Requests are bound to the replica that is free first as they
come, which is late binding as long as all are alike. A policy is asked each second and its order is
carried out at once; a replica counts from the order to its exit.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple, Protocol

import numpy as np

from tests.simulation.benches.scaling_frontier.load import Load

STEP_S = 1.0
MOST = 64  # replicas, whoever decides
DRAIN_S = 2.0  # from told to go and idle to gone


class Observation(NamedTuple):
    """Of the second that has passed: offered_s and offered_sq_s2, the work of what came and the sum
    of its squares; requests; busy_s, replica seconds of work; missed: requests that were refused.
    Now: running and queued requests; backlog_s, work that waits; oldest_wait_s; replicas that are
    hot, starting and draining; target."""

    offered_s: float
    offered_sq_s2: float
    requests: int
    busy_s: float
    missed: int
    running: int
    queued: int
    backlog_s: float
    oldest_wait_s: float
    hot: int
    starting: int
    draining: int
    target: int


class Policy(Protocol):
    """Decides how many replicas there should be; asked each second."""

    def wants(self, seen: Observation, now: float) -> int: ...


@dataclass(frozen=True, slots=True)
class Starts:
    """How long a replica takes from the order to its first request: log-normal, `median_s`."""

    median_s: float = 35.0
    sigma: float = 0.1

    def draws(self, seed: int) -> Callable[[], float]:
        rng = random.Random(seed)
        return lambda: self.median_s * rng.lognormvariate(0.0, self.sigma)


@dataclass(frozen=True, slots=True)
class Played:
    """misses: requests not in time, over what was offered. changes: how often the target moved;
    reversals: how often it moved back within ten minutes. targets: at each second."""

    offered: int
    in_time: int
    missed: int
    replica_h: float
    changes: int
    reversals: int
    targets: np.ndarray
    missed_at: np.ndarray

    @property
    def misses(self) -> float:
        return self.missed / max(1, self.offered)


class Queue:
    """The requests and the hot replicas, each the time at which it is free."""

    def __init__(self, load: Load) -> None:
        self._arrivals = list(
            zip(load.times.tolist(), load.costs.tolist(), load.waits.tolist(), strict=True)
        )
        self._next = 0
        self._waiting: deque[tuple[float, float, float]] = deque()  # (starts, came, cost)
        self.free: list[float] = []
        self.committed_s = 0.0
        self.in_time = self.missed = 0

    def play(self, bound: int) -> None:
        """All arrivals before the one of that index."""
        free, waiting = self.free, self._waiting
        missed, committed_s = 0, 0.0
        for came, cost, wait in self._arrivals[self._next : bound]:
            first = free[0] if free else came + wait + 1.0
            if first <= came:
                heapreplace(free, came + cost)
            elif first <= came + wait:
                heapreplace(free, first + cost)
                waiting.append((first, came, cost))
            else:
                missed += 1
                continue
            committed_s += cost
        self.committed_s += committed_s
        self.in_time += bound - self._next - missed
        self.missed += missed
        self._next = bound

    def running(self, now: float) -> tuple[int, float]:
        """Replicas that work, and seconds of work that all have before them."""
        ahead = [free - now for free in self.free if free > now]
        return len(ahead), sum(ahead)

    def queued(self, now: float) -> tuple[int, float, float]:
        """Requests that wait, their work, and how long the first has waited."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            waiting.popleft()
        if not waiting:
            return 0, 0.0, 0.0
        return len(waiting), sum([cost for _, _, cost in waiting]), now - waiting[0][1]

    def join(self, at: float) -> None:
        heappush(self.free, at)

    def leave(self, now: float) -> float:
        """The replica that is idle, or free first, goes; when it has finished."""
        return max(now, heappop(self.free))


class Fleet:
    """Replicas from the order to the exit. `lived_s`: of those that are gone, less the moments at
    which those that are there were ordered. `borrowed`: of the hot ones, those of a pool, which
    counts them itself."""

    def __init__(self, queue: Queue, start_s: Callable[[], float], hot: int) -> None:
        self._queue, self._start_s = queue, start_s
        self.starting: list[float] = []  # when each is hot, the order of their orders
        self.draining: list[float] = []
        self.lived_s = 0.0
        self.borrowed = 0
        self.target = hot
        queue.free[:] = [0.0] * hot

    @property
    def hot(self) -> int:
        return len(self._queue.free) - self.borrowed

    def order(self, target: int, now: float) -> None:
        """What still starts goes before what runs, the newest first."""
        self.target = target
        more = target - self.hot - len(self.starting)
        for _ in range(more):
            self.starting.append(now + self._start_s())
            self.lived_s -= now
        for _ in range(-more):
            if self.starting:
                self.starting.pop()
                self.lived_s += now
            else:
                self.lived_s += self._drain(now)

    def _drain(self, now: float) -> float:
        exits_at = self._queue.leave(now) + DRAIN_S
        heappush(self.draining, exits_at)
        return exits_at

    def until(self, now: float) -> None:
        """Those that become hot or are gone before then."""
        ready = [at for at in self.starting if at < now]
        if ready:
            self.starting = [at for at in self.starting if at >= now]
            for at in ready:
                self._queue.join(at)
        while self.draining and self.draining[0] < now:
            heappop(self.draining)

    def replica_s(self, now: float) -> float:
        return self.lived_s + now * (self.hot + len(self.starting))


class Model:
    """One load, its queue, its replicas and who decides on them."""

    def __init__(self, load: Load, policy: Policy, start_s: Callable[[], float], hot: int) -> None:
        self.queue = Queue(load)
        self.fleet = Fleet(self.queue, start_s, hot)
        self.steps = int(load.seconds / STEP_S)
        self._policy = policy
        self._ends = np.searchsorted(load.times, STEP_S * np.arange(1, self.steps + 1)).tolist()
        self._work = _per_step(load.costs, self._ends)
        self._squares = _per_step(load.costs**2, self._ends)
        self._learn = int(load.learn_s / STEP_S)
        self._uncounted = 0, 0, 0.0
        self._came = 0
        self._done_s = 0.0
        self.targets = np.empty(self.steps, dtype=int)
        self.missed_at = np.empty(self.steps, dtype=int)

    def step(self, step: int) -> None:
        """A second passes, then the policy is asked."""
        now, missed = STEP_S * (step + 1), self.queue.missed
        self.fleet.until(now)
        self.queue.play(self._ends[step])
        self.missed_at[step] = self.queue.missed - missed
        wanted = min(MOST, max(1, self._policy.wants(self._observed(step, now), now)))
        if wanted != self.fleet.target:
            self.fleet.order(wanted, now)
        self.targets[step] = wanted
        if step + 1 == self._learn:
            self._count_from_here(now)

    def _observed(self, step: int, now: float) -> Observation:
        fleet, came, done_s = self.fleet, self._came, self._done_s
        running, ahead_s = self.queue.running(now)
        self._came, self._done_s = self._ends[step], self.queue.committed_s - ahead_s
        return Observation(
            self._work[step], self._squares[step], self._came - came,
            max(0.0, self._done_s - done_s), int(self.missed_at[step]), running,
            *self.queue.queued(now), fleet.hot, len(fleet.starting),
            len(fleet.draining), fleet.target,
        )  # fmt: skip

    def _count_from_here(self, now: float) -> None:
        queue = self.queue
        self._uncounted = queue.in_time, queue.missed, self.fleet.replica_s(now)

    def played(self) -> Played:
        """Of what is counted."""
        queue, (in_time, missed, replica_s) = self.queue, self._uncounted
        in_time, missed = queue.in_time - in_time, queue.missed - missed
        replica_s = self.fleet.replica_s(self.steps * STEP_S) - replica_s
        targets = self.targets[self._learn :]
        return Played(
            in_time + missed, in_time, missed, replica_s / 3600, *moves(targets), targets,
            self.missed_at[self._learn :],
        )  # fmt: skip


def play(load: Load, policy: Policy, starts: Starts, seed: int = 1, hot: int = 1) -> Played:
    """The whole load, with `hot` replicas at its begin; at least one stays."""
    model = Model(load, policy, starts.draws(seed), hot)
    for step in range(model.steps):
        model.step(step)
    return model.played()


def _per_step(values: np.ndarray, ends: Sequence[int]) -> list[float]:
    """Sums over each step's requests."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return [float(each) for each in np.diff(sums[np.array([0, *ends])])]


def moves(targets: np.ndarray, within_s: float = 600.0) -> tuple[int, int]:
    """How often the target moved, and how often the other way within that time of the last move."""
    at = np.flatnonzero(np.diff(targets))
    up = np.diff(targets)[at] > 0
    turned = (up[1:] != up[:-1]) & (np.diff(at) * STEP_S < within_s)
    return len(at), int(turned.sum())
