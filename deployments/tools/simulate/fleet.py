"""Simulates Serve's part in scaling: replicas are ordered, start, serve and drain.

As Serve does: missing replicas start at once, each in a time drawn from a measured distribution; of
surplus replicas those that do not serve yet are stopped first, then the newest; a lost replica is
replaced. A replica counts from its order until it has left. How many there should be is decided by
the autoscaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, log
from random import Random

from loadtests.traffic.scenario_scaling import StartPart
from routers.simulation.devices import SimDevice
from routers.simulation.running_set import Drain, Join, Order

_P90 = 1.2815515655446004  # of the standard normal distribution

Make = Callable[[str, str, int, float], SimDevice]
"""Of group, name, serial number and time from which it serves."""


class StartTime:
    """Seconds, drawn anew for each start: log-normal, by median and 90th percentile."""

    def __init__(self, part: StartPart, rng: Random) -> None:
        self._mu = log(part.median_s)
        self._sigma = (log(part.p90_s) - self._mu) / _P90
        self._rng = rng

    def __call__(self) -> float:
        return self._rng.lognormvariate(self._mu, self._sigma)


@dataclass(slots=True, eq=False)
class FleetReplica:
    """One replica. `serves_s`: from when on it does, if nothing happens."""

    name: str
    group: str
    ordered_s: float
    serves_s: float
    drains: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    target: int
    hot: int
    starting: int
    draining: int


class Fleet:
    """`targets`: what Serve was asked for, by group."""

    def __init__(self, make: Make, start_s: Callable[[], float]) -> None:
        self.targets: dict[str, int] = {}
        self._make = make
        self._start_s = start_s
        self._replicas: dict[str, FleetReplica] = {}
        self._made = 0

    # -- orders

    def begin(self, group: str, count: int) -> Iterator[Order]:
        """They serve from the start."""
        self.targets[group] = count
        for _ in range(count):
            yield self._started(group, 0.0, 0.0)

    def follow(self, group: str, target: int, now: float) -> Iterator[Order]:
        """What Serve does for this number of replicas; what was lost is made good too."""
        self.targets[group] = target
        replicas = [replica for replica in self.of(group) if not replica.drains]
        for _ in range(target - len(replicas)):
            yield self._started(group, now, now + self._start_s())
        for replica in sorted(replicas, key=lambda each: self._goes_last(each, now))[target:]:
            replica.drains = True
            yield Drain(replica.name)

    def _started(self, group: str, now: float, serves_s: float) -> Join:
        name = f"{group}-{self._made}" if group else f"r{self._made}"
        self._replicas[name] = FleetReplica(name, group, now, serves_s, told=serves_s <= 0.0)
        device = self._make(group, name, self._made, serves_s)
        self._made += 1
        return Join(device)

    @staticmethod
    def _goes_last(replica: FleetReplica, now: float) -> tuple[bool, float]:
        """The oldest that serves sorts first."""
        return replica.serves_s > now, replica.ordered_s

    # -- what happened

    def left(self, name: str) -> None:
        self._replicas.pop(name, None)

    def newly_hot(self, now: float) -> list[FleetReplica]:
        """Those whose start has ended since this was asked last."""
        found = [each for each in self._replicas.values() if not each.told and each.serves_s <= now]
        for replica in found:
            replica.told = True
        return found

    # -- how many

    def of(self, group: str) -> list[FleetReplica]:
        return [replica for replica in self._replicas.values() if replica.group == group]

    def all(self) -> list[FleetReplica]:
        return list(self._replicas.values())

    def serving(self, now: float) -> list[FleetReplica]:
        """The oldest first."""
        found = [
            each for each in self._replicas.values() if each.serves_s <= now and not each.drains
        ]
        return sorted(found, key=lambda each: each.serves_s)

    def counts(self, group: str, now: float) -> Counts:
        replicas = self.of(group)
        draining = sum(replica.drains for replica in replicas)
        starting = sum(not replica.drains and replica.serves_s > now for replica in replicas)
        hot = len(replicas) - draining - starting
        return Counts(self.targets.get(group, 0), hot, starting, draining)

    def next_serves_s(self) -> float:
        """When the next one that starts does; inf: none starts."""
        return min(
            (each.serves_s for each in self._replicas.values() if not each.told), default=inf
        )
