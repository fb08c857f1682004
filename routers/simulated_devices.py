"""How does a simulated replica treat the batches that it is sent?

As the real one does: `Staging` says which starts and which go back, one runs at a time, a message
takes half of the transport time each way, an unstarted batch that nobody waits for is dropped. What
the device itself does is modelled: its time for a batch, by how much that varies (`pace`), when it
dies or hangs. It models neither the network's queueing nor the replica's own work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from routers.simulated_traffic import Fate
from routers.staging import Staged, Staging, Turn
from routers.types import Dispatch, LeaseEnd, ReplicaKind, Report


@dataclass(frozen=True, slots=True)
class Device:
    """A replica that runs from `joins_at` to `dies_at`.

    `service_s(rows, width)` is its time for a batch, the width being the longest row or, where
    batches are packed, their mean; `pace(now)` is what that time is multiplied with. From
    `hangs_at` on it finishes nothing, and is given up `hang_limit_s` after it began. A stream
    replica holds `capacity` tokens instead of `slots` batches.
    """

    replica_id: str
    service_s: Callable[[int, int], float]
    slots: int = 2
    transport_s: float = 0.001
    joins_at: float = 0.0
    dies_at: float = inf
    pace: Callable[[float], float] | None = None
    hangs_at: float = inf
    hang_limit_s: float = 30.0
    kind: ReplicaKind = ReplicaKind.BATCH
    capacity: float = 0.0

    def time_s(self, rows: int, width: int, now: float) -> float:
        seconds = self.service_s(rows, width)
        return seconds if self.pace is None else seconds * self.pace(now)


@dataclass(slots=True, eq=False)
class Flight:
    """A lease between its dispatch and its end; see `simulated_traffic.Load`."""

    gateway: str
    lease: Dispatch
    members: list[tuple[Fate, int]]
    width: int
    tokens: int
    padded_tokens: int


class Scene(Protocol):
    """What a replica needs of the simulation around it."""

    @property
    def now(self) -> float: ...

    def at(self, when: float, act: Callable[[Any], None], what: Any) -> None:
        """Call `act(what)` at that time."""

    def opened(self, flight: Flight) -> None: ...

    def progressed(self, flight: Flight) -> None:
        """A stream is half-way through."""

    def closed(self, end: tuple[Flight, LeaseEnd, Report]) -> None: ...

    def served(self, flight: Flight, service_s: float) -> None: ...

    def died(self, device: Device) -> None:
        """Everybody will find out; `lose_all` is called then."""


class BatchReplica:
    """One that is sent batches. Answers go to the scene half of the transport time later."""

    def __init__(self, device: Device, scene: Scene) -> None:
        self.device = device
        self._scene = scene
        self._staging = Staging(device.slots)
        self._held: dict[tuple[str, int], Flight] = {}
        self._started_at = 0.0
        self._dead = False
        self._buried = False

    def receive(self, flight: Flight) -> None:
        if self._buried:
            self._scene.closed((flight, LeaseEnd.LOST, Report()))
            return
        lease, gateway = flight.lease, flight.gateway
        self._held[gateway, lease.lease_id] = flight
        batch = Staged(gateway, lease.lease_id, lease.rank, lease.predicted_s, lease.charges)
        waiting = lease.waiting if not lease.copy_of else None  # of which a copy says nothing
        self._perform(self._staging.arrive(batch, waiting, self._scene.now))

    def abort(self, flight: Flight) -> None:
        """Nobody waits for it: dropped if it has not started, else left alone."""
        gateway, lease_id = flight.gateway, flight.lease.lease_id
        if not self._dead and self._staging.drop(gateway, lease_id):
            del self._held[gateway, lease_id]
            self._answer(flight, LeaseEnd.ABORTED, self._report(gateway))

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._scene.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        held, self._held = list(self._held.values()), {}
        for flight in held:
            self._scene.closed((flight, LeaseEnd.LOST, Report()))

    # -- the device

    def _perform(self, turn: Turn) -> None:
        if turn.start is not None:
            self._start(self._held[turn.start.gateway, turn.start.lease_id])
        for back in turn.returned:
            flight = self._held.pop((back.gateway, back.lease_id))
            self._answer(flight, LeaseEnd.BUSY, self._report(back.gateway))

    def _start(self, flight: Flight) -> None:
        scene, device = self._scene, self.device
        now = self._started_at = scene.now
        for fate, _ in flight.members:
            fate.started_at = now
        service_s = device.time_s(len(flight.members), flight.width, now)
        scene.at(now + device.transport_s / 2, scene.opened, flight)
        if now + service_s <= device.hangs_at:
            scene.at(now + service_s, self._finish, (flight, service_s))
        else:
            scene.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def _finish(self, run: tuple[Flight, float]) -> None:
        if self._dead:
            return
        flight, service_s = run
        gateway = flight.gateway
        del self._held[gateway, flight.lease.lease_id]
        turn = self._staging.finish(service_s, self._scene.now)
        self._scene.served(flight, service_s)
        report = self._report(gateway, service_s, flight.padded_tokens)
        self._answer(flight, LeaseEnd.DONE, report)
        self._perform(turn)

    def _report(self, gateway: str, service_s: float = 0.0, padded_tokens: int = 0) -> Report:
        now, transport_s = self._scene.now, self.device.transport_s
        return self._staging.report(gateway, now, service_s, padded_tokens, transport_s)

    def _answer(self, flight: Flight, end: LeaseEnd, report: Report) -> None:
        scene = self._scene
        scene.at(scene.now + self.device.transport_s / 2, scene.closed, (flight, end, report))
