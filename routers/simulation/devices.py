"""How does a simulated replica treat the batches that it is sent?

As the real one does: `Staging` says which starts and which go back, one runs at a time, a message
takes half of the transport time each way, an unstarted batch that nobody waits for is dropped. What
the device itself does is modelled: its time for a batch, by how much that varies (`drag`), when it
dies or hangs. It models neither the network's queueing nor the replica's own work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from routers.simulation.traffic import SimLease
from routers.staging import Staged, Staging, Turn
from routers.types import LeaseEnd, ReplicaKind, Report, Tokens


@dataclass(frozen=True, slots=True)
class Engine:
    """How a replica that batches by itself works; see `simulation.engines`. `told_every`: output
    tokens of a sequence between two messages to its gateway, the first one apart. `chunk_tokens`:
    the most that one sequence reads in a step, 0: as much as the step has left."""

    base_s: float
    sequence_s: float
    token_s: float
    cache_tokens: int
    max_sequences: int = 256
    step_tokens: int = 2048
    block_tokens: int = 16
    told_every: int = 16
    chunk_tokens: int = 0

    def profile(self) -> tuple[tuple[int, int, float], ...]:
        """(running sequences, tokens of the step, seconds), as measured while warming up."""
        running = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= self.max_sequences]
        decodes = [(n, n, self.base_s + n * self.sequence_s) for n in running]
        most = self.step_tokens
        return (*decodes, (1, most, self.base_s + most * self.token_s))


@dataclass(frozen=True, slots=True)
class Device:
    """A replica that runs from `joins_at` to `dies_at`.

    `service_s(rows, width)` is its time for a batch, the width being the longest row or, where
    batches are packed, their mean; `drag(now)` is what that time is multiplied with. From
    `hangs_at` on it finishes nothing, and is given up `hang_limit_s` after it began. A stream
    replica holds `capacity` tokens instead of `slots` batches; one with an `engine` has that one's
    times and cache.
    """

    replica_id: str
    service_s: Callable[[int, int], float]
    slots: int = 2
    transport_s: float = 0.001
    joins_at: float = 0.0
    dies_at: float = inf
    drag: Callable[[float], float] | None = None
    hangs_at: float = inf
    hang_limit_s: float = 30.0
    kind: ReplicaKind = ReplicaKind.BATCH
    capacity: float = 0.0
    engine: Engine | None = None

    def time_s(self, rows: int, width: int, now: float) -> float:
        seconds = self.service_s(rows, width)
        return seconds if self.drag is None else seconds * self.drag(now)


class Environment(Protocol):
    """What a replica needs of the simulation around it."""

    @property
    def now(self) -> float: ...

    def at(self, when: float, act: Callable[[Any], None], what: Any) -> None:
        """Call `act(what)` at that time."""

    def opened(self, parcel: SimLease) -> None: ...

    def progressed(self, moved: tuple[SimLease, float, Tokens]) -> None:
        """A stream holds so much, and has had so many tokens so far."""

    def closed(self, end: tuple[SimLease, LeaseEnd, Report]) -> None: ...

    def served(self, parcel: SimLease, service_s: float) -> None: ...

    def died(self, device: Device) -> None:
        """Everybody will find out; `lose_all` is called then."""


class BatchReplica:
    """One that is sent batches. Answers go to the scene half of the transport time later."""

    def __init__(self, device: Device, scene: Environment) -> None:
        self.device = device
        self._scene = scene
        self._staging = Staging(device.slots)
        self._held: dict[tuple[str, int], SimLease] = {}
        self._started_at = 0.0
        self._dead = False
        self._buried = False

    def receive(self, parcel: SimLease) -> None:
        if self._buried:
            self._scene.closed((parcel, LeaseEnd.LOST, Report()))
            return
        lease, gateway = parcel.lease, parcel.gateway
        self._held[gateway, lease.lease_id] = parcel
        batch = Staged(gateway, lease.lease_id, lease.rank, lease.predicted_s, lease.charges)
        waiting = lease.waiting if not lease.copy_of else None  # of which a copy says nothing
        self._perform(self._staging.arrive(batch, waiting, self._scene.now))

    def abort(self, parcel: SimLease) -> None:
        """Nobody waits for it: dropped if it has not started, else left alone."""
        gateway, lease_id = parcel.gateway, parcel.lease.lease_id
        if not self._dead and self._staging.drop(gateway, lease_id):
            del self._held[gateway, lease_id]
            self._answer(parcel, LeaseEnd.ABORTED, self._report(gateway))

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._scene.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        held, self._held = list(self._held.values()), {}
        for parcel in held:
            self._scene.closed((parcel, LeaseEnd.LOST, Report()))

    # -- the device

    def _perform(self, turn: Turn) -> None:
        if turn.start is not None:
            self._start(self._held[turn.start.gateway, turn.start.lease_id])
        for back in turn.returned:
            parcel = self._held.pop((back.gateway, back.lease_id))
            self._answer(parcel, LeaseEnd.BUSY, self._report(back.gateway))

    def _start(self, parcel: SimLease) -> None:
        scene, device = self._scene, self.device
        now = self._started_at = scene.now
        for fate, _ in parcel.members:
            fate.started_at = now
        service_s = device.time_s(len(parcel.members), parcel.width, now)
        parcel.started = True
        if parcel.watched:
            scene.at(now + device.transport_s / 2, scene.opened, parcel)
        if now + service_s <= device.hangs_at:
            scene.at(now + service_s, self._finish, (parcel, service_s))
        else:
            scene.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def _finish(self, run: tuple[SimLease, float]) -> None:
        if self._dead:
            return
        parcel, service_s = run
        gateway = parcel.gateway
        del self._held[gateway, parcel.lease.lease_id]
        turn = self._staging.finish(service_s, self._scene.now)
        self._scene.served(parcel, service_s)
        report = self._report(gateway, service_s, parcel.padded_tokens)
        self._answer(parcel, LeaseEnd.DONE, report)
        self._perform(turn)

    def _report(self, gateway: str, service_s: float = 0.0, padded_tokens: int = 0) -> Report:
        now, transport_s = self._scene.now, self.device.transport_s
        return self._staging.report(gateway, now, service_s, padded_tokens, transport_s)

    def _answer(self, parcel: SimLease, end: LeaseEnd, report: Report) -> None:
        scene = self._scene
        scene.at(scene.now + self.device.transport_s / 2, scene.closed, (parcel, end, report))
