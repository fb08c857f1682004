"""Simulates Serve's part in scaling: replicas, and a shared pool's, start, serve and drain.

As Serve does: missing replicas start at once, each in a time drawn from a measured distribution; of
surplus replicas those that do not serve yet are stopped first, then the newest; a lost replica is
replaced. A replica counts from its order until it has left. A pool's replica is told what to hold
and takes the time of a load until it serves the model, as one more replica of the group `pool`;
what other models would want there is not simulated. How many there should be is the autoscaler's
decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import inf, log
from random import Random

from autoscaling.types import PoolDecision, PoolReading, ResidentReading
from deployments.settings.groups import POOL_GROUP
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


_SIZE = 1  # bytes of the model: nothing else wants the room


@dataclass(slots=True, eq=False)
class _PoolReplica:
    """`resident`: the model's replica in it, "": it holds nothing; `serves_s`: from when on."""

    name: str
    ordered_s: float
    up_s: float
    goes: bool = False
    resident: str = ""
    load_s: float = 0.0
    serves_s: float = 0.0
    leaving: bool = False


class SimPool:
    """`start_s`, `load_s`: of a process, of the model into it."""

    def __init__(
        self, model: str, make: Make, start_s: Callable[[], float], load_s: Callable[[], float],
        memory_bytes: int,
    ) -> None:  # fmt: skip
        self._model = model
        self._make = make
        self._start_s, self._load_s = start_s, load_s
        self._memory_bytes = memory_bytes
        self._replicas: list[_PoolReplica] = []
        self._made = 0

    def begin(self, count: int) -> None:
        for _ in range(count):
            self._add(0.0, 0.0)

    def follow(self, decision: PoolDecision, now: float) -> Iterator[Order]:
        staying = [each for each in self._replicas if not each.goes]
        for _ in range(decision.replicas - len(staying)):
            self._add(now, now + self._start_s())
        for each in staying[decision.replicas :]:
            each.goes = True
        for each in self._replicas:
            wanted = self._model in decision.residents.get(each.name, ()) and not each.goes
            if wanted and not each.resident and each.up_s <= now:
                yield self._loaded(each, now)
            elif each.resident and not wanted and not each.leaving:
                each.leaving = True
                yield Drain(each.resident)
        self._replicas = [each for each in self._replicas if each.resident or not each.goes]

    def left(self, name: str) -> None:
        for each in self._replicas:
            if each.resident == name:
                each.resident, each.leaving = "", False

    def _add(self, now: float, up_s: float) -> None:
        self._replicas.append(_PoolReplica(f"{POOL_GROUP}-{self._made}", now, up_s))
        self._made += 1

    def _loaded(self, replica: _PoolReplica, now: float) -> Join:
        replica.load_s = self._load_s()
        replica.serves_s = now + replica.load_s
        self._made += 1
        replica.resident = f"{replica.name}.{self._made}"
        return Join(self._make(POOL_GROUP, replica.resident, self._made, replica.serves_s))

    # -- what it is

    def readings(self, busy: Collection[str], now: float) -> list[PoolReading]:
        """Of those that are up. `busy`: replicas of the model that have work."""
        return [self._reading(each, busy, now) for each in self._replicas if each.up_s <= now]

    def _reading(self, replica: _PoolReplica, busy: Collection[str], now: float) -> PoolReading:
        if not replica.resident:
            return PoolReading(replica.name, (), self._memory_bytes)
        resident = ResidentReading(
            self._model, replica.serves_s <= now and not replica.leaving, _SIZE, replica.load_s,
            replica.serves_s, replica.resident in busy,
        )  # fmt: skip
        return PoolReading(replica.name, (resident,), self._memory_bytes - _SIZE)

    @property
    def size(self) -> int:
        return len(self._replicas)

    def hot(self, now: float) -> int:
        return sum(bool(r.resident) and r.serves_s <= now and not r.leaving for r in self._replicas)
