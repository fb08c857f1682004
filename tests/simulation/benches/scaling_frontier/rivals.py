"""What autoscaling is compared with: Kubernetes' HPA, Knative's KPA, a fixed number, clairvoyance.

Each as its documentation and source describe it, on what it would be given: HPA the utilisation of
replicas or what each has under way (as KEDA would give it), KPA what is under way. `target` is what
is swept. Sources: Kubernetes "Horizontal Pod Autoscaling" and pkg/controller/podautoscaler
(`ComputeReplicasForMetrics`, unready pods count 0 on the way up), knative/serving
pkg/autoscaler/scaling/autoscaler.go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor

import numpy as np

from tests.simulation.benches.scaling_frontier.load import Load
from tests.simulation.benches.scaling_frontier.world import DRAIN_S, Observation

SCATTER = 0.9


@dataclass(slots=True)
class Static:
    """Always as many."""

    replicas: int

    def wants(self, seen: Observation, now: float) -> int:
        return self.replicas


@dataclass(slots=True)
class Hpa:
    """Every 15 s on the last 15 s' mean; nothing within 10 % of the target; up to twice as many or
    4 more, whichever is more; down to the most that was wanted in 300 s. by_concurrency: on
    requests under way a replica, else on its utilisation."""

    target: float
    by_concurrency: bool = False
    every_s: float = 15.0
    tolerance: float = 0.1
    down_window_s: float = 300.0
    _sum: float = 0.0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def wants(self, seen: Observation, now: float) -> int:
        self._sum += seen.running + seen.queued if self.by_concurrency else seen.busy_s
        if now % self.every_s:
            return seen.target
        mean, self._sum = self._sum / self.every_s, 0.0
        ready, all_of_them = max(1, seen.hot), max(1, seen.hot + seen.starting)
        wanted = self._recommended(mean, ready, all_of_them, seen.target)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] <= now - self.down_window_s:
            self._wanted.popleft()
        if wanted < seen.target:
            return min(seen.target, max(each for _, each in self._wanted))
        return min(wanted, max(2 * seen.target, seen.target + 4))

    def _recommended(self, mean: float, ready: int, there: int, current: int) -> int:
        ratio = mean / ready / self.target
        if abs(ratio - 1.0) <= self.tolerance:
            return current
        if ratio < 1.0:
            return max(1, ceil(ratio * ready))
        tempered = mean / there / self.target
        if tempered < 1.0 or abs(tempered - 1.0) <= self.tolerance:
            return current
        return max(current, ceil(tempered * there))


@dataclass(slots=True)
class Kpa:
    """Every 2 s on the mean of 60 s; while the mean of 6 s asks for twice what is ready, and 60 s
    after, on that and never down. delay_s: of Knative's `scale-down-delay`."""

    target: float
    delay_s: float = 0.0
    stable_s: int = 60
    panic_s: int = 6
    threshold: float = 2.0
    _seen: deque[int] = field(default_factory=lambda: deque(maxlen=60))
    _panic_until: float = -1.0
    _panic_most: int = 0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def wants(self, seen: Observation, now: float) -> int:
        self._seen.append(seen.running + seen.queued)
        if now % 2:
            return seen.target
        wanted = self._without_delay(max(1, seen.hot), now)
        if not self.delay_s:
            return wanted
        self._wanted.append((now, wanted))
        while self._wanted[0][0] <= now - self.delay_s:
            self._wanted.popleft()
        return max(each for _, each in self._wanted)

    def _without_delay(self, ready: int, now: float) -> int:
        recent = list(self._seen)
        stable = self._bounded(sum(recent) / len(recent), ready)
        recent = recent[-self.panic_s :]
        panic = self._bounded(sum(recent) / len(recent), ready)
        if panic / ready >= self.threshold:
            self._panic_most = self._panic_most if now < self._panic_until else 0
            self._panic_until = now + self.stable_s
        if now >= self._panic_until:
            return stable
        self._panic_most = max(self._panic_most, panic, stable)
        return self._panic_most

    def _bounded(self, concurrency: float, ready: int) -> int:
        """At most a thousand times as many, at least half."""
        return max(1, floor(ready / 2), min(1000 * ready, ceil(concurrency / self.target)))


class Informed:
    """Is told the true rate at each instant, and nothing of the future: no policy that has to
    measure can be better than this where bursts cannot be foreseen. Sized for the rate with room
    for its scatter and none busier than the target; down after 30 s."""

    def __init__(self, load: Load, target: float, hold_s: int = 30) -> None:
        if load.busy_at is None:
            raise ValueError(f"nobody knows the true rate of the load {load.name!r}")
        self._wanted = np.ceil(
            np.maximum(load.busy_at / target, load.busy_at + SCATTER * np.sqrt(load.busy_at))
        ).astype(int)
        self._hold_s = hold_s

    def wants(self, seen: Observation, now: float) -> int:
        end = min(int(now) + 1, len(self._wanted))
        return int(self._wanted[max(0, end - self._hold_s) : end].max())


class Clairvoyant:
    """Knows what comes: a replica is ordered so that it is hot when it is needed, and goes when it
    has been of no use for as long as another start would take. share: of the work of each window
    that it wants to have room for; below 1.0 it misses some, to be cheap."""

    def __init__(
        self, load: Load, start_s: float, share: float = 1.0, margin_s: float = 1.0
    ) -> None:
        self._plan = plan_of(load, start_s, share, margin_s)

    def wants(self, seen: Observation, now: float) -> int:
        return int(self._plan[min(int(now), len(self._plan) - 1)])


WINDOWS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def plan_of(load: Load, start_s: float, share: float, margin_s: float) -> np.ndarray:
    """Replicas to have ordered at each second: of each second the most that any window of up to
    16 s that ends in it needs, for all of it to be started before it has waited too long."""
    needed = share * needed_at(load)
    levels = np.maximum(1, np.ceil(needed)).astype(int)
    ahead = ceil(1.25 * start_s + margin_s)
    gap = ceil(start_s + DRAIN_S)
    plan = np.ones(len(levels), dtype=int)
    for level in range(2, levels.max() + 1):
        plan += _ordered(levels >= level, ahead, gap)
    return plan


def needed_at(load: Load) -> np.ndarray:
    """Replicas, as a fraction, that each second needs for all to be in time."""
    step = WINDOWS_S[0]
    bins = int(load.seconds / step)
    work = np.histogram(load.times, bins, (0.0, bins * step), weights=load.costs)[0]
    sums = np.concatenate(([0.0], np.cumsum(work)))
    slack_s = float(np.median(load.waits)) / 2
    needed = np.zeros(bins)
    for window in WINDOWS_S:
        width = int(window / step)
        rate = (sums[width:] - sums[:-width]) / (window + slack_s)
        spread = np.full(bins, 0.0)
        for offset in range(width):  # the capacity must be there for all of the window
            here = slice(offset, offset + len(rate))
            np.maximum(spread[here], rate, out=spread[here])
        np.maximum(needed, spread, out=needed)
    per_second = int(1.0 / step)
    return needed[: bins // per_second * per_second].reshape(-1, per_second).max(axis=1)


def _ordered(on: np.ndarray, ahead: int, gap: int) -> np.ndarray:
    """Ones from `ahead` before each time that it is on; gaps that are no longer are bridged."""
    at = np.flatnonzero(on)
    runs = np.split(at, np.flatnonzero(np.diff(at) > gap + ahead) + 1)
    ones = np.zeros(len(on), dtype=int)
    for run in runs:
        ones[max(0, run[0] - ahead) : run[-1] + 1] = 1
    return ones
