"""The replicas of a simulated shared pool, and how they hold the one model that is simulated.

Each has a process from its order until it has left; it is told what to hold and then takes the
time of a load until it serves the model, of which it is one more replica, of the group `pool`. What
other models would want there is not simulated (`tests.simulation.benches.swapping` does that).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from autoscaling.types import PoolDecision, PoolReading, ResidentReading
from deployments.settings.groups import POOL_GROUP
from deployments.tools.simulate.fleet import Make
from routers.simulation.running_set import Drain, Join, Order

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
