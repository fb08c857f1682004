"""Which simulated replicas run, and what gateways are told of it.

Replicas are planned, join, and are listed until they die and are found out, or drain. One that
drains is told so first and its gateways half of the transport time later: what they send meanwhile
goes back unstarted, what it has taken in is finished, and when its gateways have said that no more
comes it is gone. Every gateway is told the whole set, once for all that changes at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from routers.api.requests import Replica, ReplicaKind
from routers.api.snapshot import Snapshot
from routers.simulation.devices import Environment, SimBatchReplica, SimDevice
from routers.simulation.stream_replica import SimStreamReplica

AnyReplica = SimBatchReplica | SimStreamReplica


@dataclass(frozen=True, slots=True)
class Join:
    """This replica serves from its `joins_at` on, which is not in the past."""

    device: SimDevice


@dataclass(frozen=True, slots=True)
class Drain:
    """It is given no further lease, and leaves once it holds none; one that has not joined yet
    never does."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """It dies at once, and is found out later; one that has not joined yet never does."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Expect:
    """Gateways hear that, while no replica runs, one is expected to in so many seconds; 0: nobody
    knows. See `api.events.CapacityExpected`."""

    in_s: float


Order = Join | Drain | Kill | Expect


class Controller(Protocol):
    """Decides who joins and leaves during a run."""

    def reconcile(self, now: float, cores: tuple[Snapshot, ...]) -> Iterable[Order]:
        """`cores`: of each gateway, as they are now."""

    def left(self, replica_id: str, now: float) -> None:
        """It is there no more: it has drained, was found dead, or was told to leave before it
        joined."""


class Surroundings(Environment, Protocol):
    """What the set needs of the simulation around it."""

    def listed(self, replicas: tuple[Replica, ...]) -> None:
        """Every gateway is told."""

    def next_at_once(self) -> Callable[..., None] | None:
        """What happens next, if it does at this very moment."""


class RunningSet:
    """`replicas`: all that ever joined. `left(id, now)` hears of those that are gone."""

    def __init__(
        self,
        environment: Surroundings,
        detect_s: float,
        left: Callable[[str, float], None] | None = None,
    ) -> None:
        self.replicas: dict[str, AnyReplica] = {}
        self._environment = environment
        self._detect_s = detect_s
        self._left = left
        self._coming: dict[str, AnyReplica] = {}
        self._listed: dict[str, AnyReplica] = {}
        self._present: set[str] = set()
        self._unheard: set[str] = set()  # they drain, and their gateways may not know yet

    def plan(self, device: SimDevice) -> AnyReplica:
        environment, replica = self._environment, self._made(device)
        self._coming[device.replica_id] = replica
        environment.at(device.joins_at, self._join, replica)
        if device.dies_at < inf:
            environment.at(device.dies_at, replica.die, None)
        return replica

    def drain(self, replica_id: str) -> None:
        environment = self._environment
        if self._coming.pop(replica_id, None) is not None:
            self._gone(replica_id)
        elif replica_id in self._listed and replica_id not in self._unheard:
            replica = self.replicas[replica_id]
            self._unheard.add(replica_id)
            replica.leave()
            transport_s = replica.device.transport_s
            environment.at(environment.now + transport_s / 2, self._unlist, replica_id)
            environment.at(environment.now + transport_s, self._say_goodbye, replica)

    def kill(self, replica_id: str) -> None:
        if self._coming.pop(replica_id, None) is not None:
            self._gone(replica_id)
        elif replica_id in self._present:
            self.replicas[replica_id].die()

    def died(self, device: SimDevice) -> None:
        """It is found out later; one that is not there dies unnoticed."""
        if device.replica_id in self._present:
            replica = self.replicas[device.replica_id]
            self._environment.at(self._environment.now + self._detect_s, self._bury, replica)

    def emptied(self, device: SimDevice) -> None:
        """It drains, and holds nothing any more."""
        if device.replica_id not in self._unheard:
            self._gone(device.replica_id)

    def _made(self, device: SimDevice) -> AnyReplica:
        if device.engine is not None:
            return SimStreamReplica(device, device.engine.engine(), self._environment)
        return SimBatchReplica(device, self._environment)

    def _join(self, replica: AnyReplica) -> None:
        replica_id = replica.device.replica_id
        if self._coming.pop(replica_id, None) is not None:
            self.replicas[replica_id] = self._listed[replica_id] = replica
            self._present.add(replica_id)
        self._publish()

    def _unlist(self, replica_id: str) -> None:
        if self._listed.pop(replica_id, None) is not None:
            self._publish()

    def _say_goodbye(self, replica: AnyReplica) -> None:
        """Its gateways know, and what they had sent before has come."""
        replica_id = replica.device.replica_id
        self._unheard.discard(replica_id)
        if replica.idle:
            self._gone(replica_id)

    def _bury(self, replica: AnyReplica) -> None:
        replica_id = replica.device.replica_id
        self._listed.pop(replica_id, None)
        replica.lose_all()
        self._publish()
        self._gone(replica_id)

    def _gone(self, replica_id: str) -> None:
        was_there = replica_id in self._present or replica_id not in self.replicas
        self._present.discard(replica_id)
        if was_there and self._left is not None:
            self._left(replica_id, self._environment.now)

    def _publish(self) -> None:
        if self._environment.next_at_once() == self._join:
            return
        self._environment.listed(
            tuple([_as_listed(replica.device) for replica in self._listed.values()])
        )


def _as_listed(device: SimDevice) -> Replica:
    engine = device.engine
    if engine is not None:
        capacity = float(engine.cache_tokens)
        kind, most = ReplicaKind.STREAM, engine.max_sequences
        return Replica(device.replica_id, capacity, kind, most, device.group)
    return Replica(device.replica_id, float(device.slots), group=device.group)
