"""What would the dispatcher have done? The real one, run on virtual time against modelled replicas.

Arrivals are passed in and taken one by one as their time comes, so every run is decided by its
input (a seeded generator, a recorded trace) and holds only what is live. Several gateways, each
with a core of its own, share the replicas and know of each other what replies say. A replica that
dies loses what it holds, and is found out after `detect_s`. Nothing here sleeps or reads a clock.
It models neither the network's queueing nor the gateway's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from routers.dispatcher import Dispatcher
from routers.settings import DispatcherSettings
from routers.simulation.devices import BatchReplica, Device
from routers.simulation.engines import EngineReplica
from routers.simulation.streams import StreamReplica
from routers.simulation.traffic import (
    Arrival,
    Door,
    Follow,
    Keeper,
    Observer,
    Outcome,
    SimLease,
    SimOutcome,
)
from routers.types import (
    Abort,
    Action,
    Arrive,
    Cancel,
    Closed,
    Dispatch,
    Event,
    Evict,
    LeaseEnd,
    Opened,
    Progress,
    Reason,
    Reject,
    Replica,
    ReplicaKind,
    Replicas,
    Report,
    Request,
    Snapshot,
    Tick,
    Tokens,
    WakeAt,
)

__all__ = ["Arrival", "Core", "Device", "Outcome", "SimOutcome", "World", "run", "simulate"]

AnyReplica = BatchReplica | StreamReplica | EngineReplica


class Core(Protocol):
    """What schedules at a gateway: the dispatcher, or what it is compared with."""

    def step(self, event: Event, now: float) -> list[Action]: ...

    def snapshot(self, now: float) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class World:
    """What surrounds the requests. `core` makes a gateway's; `inspect` is called with one after
    each of its steps; `built` takes in each replica, as it is made."""

    devices: tuple[Device, ...]
    gateways: int = 1
    detect_s: float = 0.0
    follow: Follow | None = None
    door: Door | None = None
    core: Callable[[DispatcherSettings], Core] = Dispatcher
    inspect: Callable[[Any], None] | None = None
    built: list[AnyReplica] | None = None


@dataclass(slots=True, eq=False)
class _Gateway:
    """`timer`: when its core wants to be woken; `wakes`: times at which the agenda will ask."""

    name: str
    core: Core
    timer: float = inf
    wakes: set[float] = field(default_factory=set)
    parcels: dict[int, SimLease] = field(default_factory=dict)


class _Simulation:
    """The scene of `simulation.devices`. The agenda holds (when, order of entry, act, what)."""

    def __init__(self, settings: DispatcherSettings, world: World, witness: Observer) -> None:
        self.now = 0.0
        self.gateways = [_Gateway(f"g{n}", world.core(settings)) for n in range(world.gateways)]
        self._named = {gateway.name: gateway for gateway in self.gateways}
        self._world = world
        self._witness = witness
        self._pads = settings.pads
        self._agenda: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._entries = 0
        self._live: dict[int, SimOutcome] = {}
        self._requests = 0
        self._replicas: dict[str, AnyReplica] = {}  # all that ever ran
        self._running: dict[str, AnyReplica] = {}  # those believed to
        for device in world.devices:
            self._plan(device)

    def at(self, when: float, act: Callable[[Any], None], what: Any) -> None:
        self._entries += 1
        heappush(self._agenda, (when, self._entries, act, what))

    def run(self, arrivals: Iterable[Arrival]) -> None:
        agenda, coming = self._agenda, iter(arrivals)
        upcoming = next(coming, None)
        while agenda or upcoming is not None:
            if upcoming is None or (agenda and agenda[0][0] <= upcoming.at):
                self.now, _, act, what = heappop(agenda)
                act(what)
                continue
            if upcoming.at < self.now:
                raise ValueError(f"arrivals must ascend: {upcoming.at} after {self.now}")
            self.now = upcoming.at
            self._arrive(upcoming)
            upcoming = next(coming, None)

    # -- callers

    def _arrive(self, arrival: Arrival) -> None:
        self._requests += 1
        request_id, now, lengths = self._requests, self.now, arrival.lengths
        fate = self._live[request_id] = SimOutcome(arrival, (1 << len(lengths)) - 1)
        self._witness.arrived(fate, now)
        door = self._world.door
        if door is not None and (wait_s := door(arrival, now)) > 0.0:
            self._refuse(Reject(request_id, Reason.TENANT_FULL, wait_s))
            return
        if arrival.leaves_at < inf:
            self.at(arrival.leaves_at, self._leave, request_id)
        request = Request(
            request_id, lengths, now, now + arrival.slo_s, now + arrival.timeout_s,
            arrival.tenant, arrival.priority, arrival.retryable, "", arrival.weight,
            arrival.tenant_rows, arrival.session, arrival.generation,
        )  # fmt: skip
        self._step(self.gateways[arrival.gateway], Arrive(request))

    def _leave(self, request_id: int) -> None:
        fate = self._live.get(request_id)
        if fate is not None:
            fate.left = True
            self._end(request_id, fate)
            self._step(self.gateways[fate.arrival.gateway], Cancel(request_id))

    def _row_done(self, of: tuple[int, int], fate: SimOutcome) -> None:
        request_id, row = of
        bit = 1 << row
        if not fate.missing & bit:
            return  # it has ended otherwise, or a copy was quicker
        fate.missing ^= bit
        if not fate.missing:
            fate.answered_at = self.now
            fate.answers += 1
            self._end(request_id, fate)

    def _refuse(self, action: Reject | Evict) -> None:
        fate = self._live[action.request_id]
        fate.reason, fate.retry_after_s = action.reason, action.retry_after_s
        fate.answers += 1
        self._end(action.request_id, fate)

    def _end(self, request_id: int, fate: SimOutcome) -> None:
        fate.missing = 0
        del self._live[request_id]
        self._witness.ended(fate, self.now)
        follow = self._world.follow
        if follow is not None and (next_one := follow(fate, self.now)) is not None:
            self.at(next_one.at, self._arrive, next_one)

    # -- the cores

    def _step(self, gateway: _Gateway, event: Event) -> None:
        for action in gateway.core.step(event, self.now):
            kind = type(action)
            if kind is Dispatch:
                self._send(gateway, action)  # type: ignore[arg-type]
            elif kind is WakeAt:
                self._wake_at(gateway, action.at)  # type: ignore[union-attr]
            elif kind is Abort:
                self._abort(gateway, action)  # type: ignore[arg-type]
            else:
                self._refuse(action)  # type: ignore[arg-type]
        if self._world.inspect is not None:
            self._world.inspect(gateway.core)

    def _wake_at(self, gateway: _Gateway, when: float) -> None:
        gateway.timer = when
        if when not in gateway.wakes:
            gateway.wakes.add(when)
            self.at(when, self._wake, gateway)

    def _wake(self, gateway: _Gateway) -> None:
        gateway.wakes.discard(self.now)
        if gateway.timer == self.now:
            gateway.timer = inf
            self._step(gateway, Tick())

    def _send(self, gateway: _Gateway, lease: Dispatch) -> None:
        members = [(self._live[request_id], row) for request_id, row in lease.rows]
        lengths = [fate.arrival.lengths[row] for fate, row in members]
        rows, tokens, longest = len(lengths), sum(lengths), max(lengths)
        width, padded = (longest, rows * longest) if self._pads else (-(-tokens // rows), tokens)
        parcel = SimLease(gateway.name, lease, members, width, tokens, padded)
        gateway.parcels[lease.lease_id] = parcel
        if lease.tied:
            self._watch(parcel)
            self._watch(gateway.parcels.get(lease.copy_of))
        self._witness.sent(parcel, self.now)
        replica = self._replicas[lease.replica_id]
        self.at(self.now + replica.device.transport_s / 2, replica.receive, parcel)

    def _watch(self, parcel: SimLease | None) -> None:
        """Ask its replica to tell when it starts, or at once if it has."""
        if parcel is not None and not parcel.watched:
            parcel.watched = True
            if parcel.started:
                transport_s = self._replicas[parcel.lease.replica_id].device.transport_s
                self.at(self.now + transport_s, self.opened, parcel)

    def _abort(self, gateway: _Gateway, action: Abort) -> None:
        replica = self._replicas[action.replica_id]
        parcel = gateway.parcels.get(action.lease_id)
        if parcel is not None:
            self.at(self.now + replica.device.transport_s / 2, replica.abort, parcel)

    # -- what replicas report (the scene)

    def opened(self, parcel: SimLease) -> None:
        self._step(self._named[parcel.gateway], Opened(parcel.lease.lease_id))

    def progressed(self, moved: tuple[SimLease, float, Tokens]) -> None:
        parcel, held, tokens = moved
        gateway, lease_id = self._named[parcel.gateway], parcel.lease.lease_id
        if lease_id in gateway.parcels:
            self._note(parcel, tokens)
            self._step(gateway, Progress(lease_id, 0.0, held, tokens))

    def _note(self, parcel: SimLease, tokens: Tokens) -> None:
        for fate, _ in parcel.members:
            fate.tokens = tokens
            if tokens.output and fate.first_at is None:
                fate.first_at = self.now

    def closed(self, closed: tuple[SimLease, LeaseEnd, Report]) -> None:
        parcel, end, report = closed
        gateway, lease_id = self._named[parcel.gateway], parcel.lease.lease_id
        del gateway.parcels[lease_id]
        if report.tokens.output:
            self._note(parcel, report.tokens)
        if end is LeaseEnd.DONE:
            for of, (fate, _) in zip(parcel.lease.rows, parcel.members, strict=True):
                self._row_done(of, fate)
        self._step(gateway, Closed(lease_id, end, report))

    def served(self, parcel: SimLease, service_s: float) -> None:
        self._witness.served(parcel, service_s, self.now)

    def died(self, device: Device) -> None:
        self.at(self.now + self._world.detect_s, self._bury, self._running[device.replica_id])

    # -- the running set

    def _plan(self, device: Device) -> None:
        replica = self._made(device)
        if self._world.built is not None:
            self._world.built.append(replica)
        self.at(device.joins_at, self._join, replica)
        if device.dies_at < inf:
            self.at(device.dies_at, replica.die, None)

    def _made(self, device: Device) -> AnyReplica:
        if device.engine is not None:
            return EngineReplica(device, device.engine, self)
        streams = device.kind is ReplicaKind.STREAM
        return StreamReplica(device, self) if streams else BatchReplica(device, self)

    def _join(self, replica: AnyReplica) -> None:
        replica_id = replica.device.replica_id
        self._replicas[replica_id] = self._running[replica_id] = replica
        self._publish()

    def _bury(self, replica: AnyReplica) -> None:
        del self._running[replica.device.replica_id]
        replica.lose_all()
        self._publish()

    def _publish(self) -> None:
        """Every gateway is told the running set, once for all that changes at one moment."""
        if self._agenda and self._agenda[0][0] == self.now and self._agenda[0][2] == self._join:
            return
        running = tuple([_as_listed(replica.device) for replica in self._running.values()])
        for gateway in self.gateways:
            self._step(gateway, Replicas(running))


def _as_listed(device: Device) -> Replica:
    engine = device.engine
    if engine is not None:
        capacity = float(engine.cache_tokens)
        return Replica(device.replica_id, capacity, ReplicaKind.STREAM, engine.max_sequences)
    capacity = device.capacity if device.kind is ReplicaKind.STREAM else float(device.slots)
    return Replica(device.replica_id, capacity, device.kind)


def run(
    settings: DispatcherSettings, arrivals: Iterable[Arrival], world: World, witness: Observer
) -> tuple[Snapshot, ...]:
    """Run until nothing is left to happen; what each core holds then. Same input, same course.

    `arrivals` ascend in time and may be endless no longer than `follow` and patience let them be.
    Raises ValueError when they do not ascend.
    """
    simulation = _Simulation(settings, world, witness)
    simulation.run(arrivals)
    return tuple(each.core.snapshot(simulation.now) for each in simulation.gateways)


def simulate(
    settings: DispatcherSettings,
    arrivals: Iterable[Arrival],
    devices: Iterable[Device],
    *,
    detect_s: float = 0.0,
    inspect: Callable[[Dispatcher], None] | None = None,
) -> Outcome:
    """One gateway, every fate kept: for tests. Otherwise as `run`."""
    keeper = Keeper()
    world = World(tuple(devices), detect_s=detect_s, inspect=inspect)
    ends = run(settings, arrivals, world, keeper)
    return Outcome(tuple(keeper.fates), tuple(keeper.batches), ends)
