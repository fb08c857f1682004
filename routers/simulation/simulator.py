"""The real dispatcher, run on virtual time against modelled replicas.

Arrivals are passed in and taken one by one as their time comes, so every run is decided by its
input (a seeded generator, a recorded trace) and holds only what is live. Several gateways, each
with a core of its own, share the replicas and know of each other what replies say. A replica that
dies loses what it holds, and is found out after `detect_s`; more may join and some leave while it
runs (`running_set`). Nothing here sleeps or reads a clock.
It models neither the network's queueing nor the gateway's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from routers.api.actions import Abort, Action, Dispatch, Evict, Reject, WakeAt
from routers.api.events import (
    AdaptersHeld,
    Arrive,
    BlocksHeld,
    Cancel,
    CapacityExpected,
    Closed,
    Event,
    GatewayPlace,
    Heard,
    Opened,
    PeersServed,
    Progress,
    Replicas,
    Tick,
)
from routers.api.requests import (
    LeaseEnd,
    Reason,
    Replica,
    ReplicaKind,
    Report,
    Request,
    Tokens,
)
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import Snapshot
from routers.schedulers import AnyScheduler, scheduler_of
from routers.simulation.devices import SimDevice
from routers.simulation.running_set import (
    AnyReplica,
    Controller,
    Drain,
    Expect,
    Join,
    Kill,
    Order,
    RunningSet,
)
from routers.simulation.traffic import (
    Arrival,
    Door,
    Follow,
    SimLease,
    SimObserver,
    SimOutcome,
    SimRecorder,
    SimResult,
)
from routers.stream.staging import SharedEngines, TokenPrices

__all__ = ["Arrival", "Core", "SimDevice", "SimOutcome", "SimResult", "World", "run", "simulate"]


class Core(Protocol):
    """What schedules at a gateway: the dispatcher, or what it is compared with."""

    def step(self, event: Event, now: float) -> list[Action]: ...

    def snapshot(self, now: float) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class World:
    """What surrounds the requests. `core` makes a gateway's; `inspect` is called with one after
    each of its steps; `built` takes in each replica, as it is made. `controller` is asked every
    `reconcile_every_s` from 0 to `reconcile_until_s`, and on while requests are under way."""

    devices: tuple[SimDevice, ...]
    gateways: int = 1
    detect_s: float = 0.0
    follow: Follow | None = None
    door: Door | None = None
    core: Callable[[DispatcherSettings], Core] = scheduler_of
    inspect: Callable[[Any], None] | None = None
    built: list[AnyReplica] | None = None
    controller: Controller | None = None
    reconcile_every_s: float = 1.0
    reconcile_until_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Gateway:
    """`timer`: when its core wants to be woken; `wakes`: times at which the agenda will ask."""

    name: str
    core: Core
    engines: SharedEngines = field(default_factory=SharedEngines)
    prices: TokenPrices = field(default_factory=TokenPrices)
    timer: float = inf
    wakes: set[float] = field(default_factory=set)
    leases: dict[int, SimLease] = field(default_factory=dict)


class _Simulation:
    """The environment of `simulation.devices`. The agenda holds (when, order of entry, act,
    what)."""

    def __init__(self, settings: DispatcherSettings, world: World, observer: SimObserver) -> None:
        self.now = 0.0
        self.gateways = [_Gateway(f"g{n}", world.core(settings)) for n in range(world.gateways)]
        self._named = {gateway.name: gateway for gateway in self.gateways}
        self._world = world
        self._observer = observer
        self._pads = settings.pads
        self._generation = settings.generation
        self._agenda: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._entries = 0
        self._live: dict[int, SimOutcome] = {}
        self._requests = 0
        self._listed: tuple[Replica, ...] = ()
        controller = world.controller
        self._set = RunningSet(
            self, world.detect_s, None if controller is None else controller.left
        )
        self._replicas = self._set.replicas
        for device in world.devices:
            self._plan(device)
        if controller is not None:
            self.at(0.0, self._reconcile, controller)
        if world.gateways > 1:
            for index, gateway in enumerate(self.gateways):
                self._step(gateway, GatewayPlace(index, world.gateways))

    def at(self, when: float, act: Callable[[Any], None], what: Any) -> None:
        if when < inf:
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
        outcome = self._live[request_id] = SimOutcome(arrival, (1 << len(lengths)) - 1)
        self._observer.arrived(outcome, now)
        door = self._world.door
        if door is not None and (wait_s := door(arrival, now)) > 0.0:
            self._refuse(Reject(request_id, Reason.TENANT_FULL, wait_s))
            return
        if arrival.leaves_at < inf:
            self.at(arrival.leaves_at, self._leave, request_id)
        request = Request(
            request_id, lengths, now, now + arrival.slo_s, now + arrival.timeout_s,
            arrival.tenant, arrival.priority, arrival.retryable, arrival.weight,
            arrival.tenant_rows, arrival.session, arrival.generation, arrival.attempt == 1,
            streams=arrival.streams and arrival.generation is not None,
        )  # fmt: skip
        self._step(self.gateways[arrival.gateway], Arrive(request))

    def _leave(self, request_id: int) -> None:
        outcome = self._live.get(request_id)
        if outcome is not None:
            outcome.left = True
            self._end(request_id, outcome)
            self._step(self.gateways[outcome.arrival.gateway], Cancel(request_id))

    def _row_done(self, of: tuple[int, int], outcome: SimOutcome) -> None:
        request_id, row = of
        bit = 1 << row
        if not outcome.missing & bit:
            return  # it has ended otherwise, or a copy was quicker
        outcome.missing ^= bit
        if not outcome.missing:
            outcome.answered_at = self.now
            outcome.answers += 1
            self._end(request_id, outcome)

    def _refuse(self, action: Reject | Evict) -> None:
        outcome = self._live[action.request_id]
        outcome.reason, outcome.retry_after_s = action.reason, action.retry_after_s
        outcome.answers += 1
        self._end(action.request_id, outcome)

    def _end(self, request_id: int, outcome: SimOutcome) -> None:
        outcome.missing = 0
        del self._live[request_id]
        self._observer.ended(outcome, self.now)
        follow = self._world.follow
        if follow is not None and (next_one := follow(outcome, self.now)) is not None:
            self.at(next_one.at, self._arrive, next_one)

    # -- the cores

    def _step(self, gateway: _Gateway, event: Event) -> None:
        for action in gateway.core.step(event, self.now):
            if isinstance(action, Dispatch):
                self._send(gateway, action)
            elif isinstance(action, WakeAt):
                self._wake_at(gateway, action.at)
            elif isinstance(action, Abort):
                self._abort(gateway, action)
            else:
                self._refuse(action)
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
        lengths = [outcome.arrival.lengths[row] for outcome, row in members]
        rows, tokens, longest = len(lengths), sum(lengths), max(lengths)
        width, padded = (longest, rows * longest) if self._pads else (-(-tokens // rows), tokens)
        sim_lease = SimLease(gateway.name, lease, members, width, tokens, padded)
        gateway.leases[lease.lease_id] = sim_lease
        if lease.tied or lease.alone or lease.tells_start:
            self._watch(sim_lease)
        if lease.tied:
            self._watch(gateway.leases.get(lease.copy_of))
        self._observer.sent(sim_lease, self.now)
        to = self._replicas[lease.replica_id]
        if to.device.engine is not None:
            sim_lease.prices = self._prices(gateway)
        self.at(self.now + to.device.transport_s / 2, to.receive, sim_lease)

    def _prices(self, gateway: _Gateway) -> tuple[float, float]:
        now, core = self.now, gateway.core
        return gateway.prices.at(self._generation, lambda: core.snapshot(now), now)

    def _watch(self, sim_lease: SimLease | None) -> None:
        """Ask its replica to tell when it starts, or at once if it has."""
        if sim_lease is not None and not sim_lease.watched:
            sim_lease.watched = True
            if sim_lease.started:
                transport_s = self._replicas[sim_lease.dispatch.replica_id].device.transport_s
                self.at(self.now + transport_s, self.opened, sim_lease)

    def _abort(self, gateway: _Gateway, action: Abort) -> None:
        replica = self._replicas[action.replica_id]
        sim_lease = gateway.leases.get(action.lease_id)
        if sim_lease is not None:
            sim_lease.aborted = True
            self.at(self.now + replica.device.transport_s / 2, replica.abort, sim_lease)

    # -- what replicas report (the environment)

    def opened(self, sim_lease: SimLease) -> None:
        self._step(self._named[sim_lease.gateway], Opened(sim_lease.dispatch.lease_id))

    def progressed(self, moved: tuple[SimLease, float, Tokens, Tokens]) -> None:
        sim_lease, held, tokens, given = moved
        gateway, lease_id = self._named[sim_lease.gateway], sim_lease.dispatch.lease_id
        if lease_id in gateway.leases:
            self._note(sim_lease, tokens)
            self._step(gateway, Progress(lease_id, 0.0, held, tokens, given))

    def said(self, words: tuple[str, str, Report | None]) -> None:
        name, replica_id, report = words
        said = Heard(replica_id) if report is None else PeersServed(replica_id, report)
        self._step(self._named[name], said)

    def held(self, words: tuple[str, AdaptersHeld | BlocksHeld]) -> None:
        name, event = words
        self._step(self._named[name], event)

    def _note(self, sim_lease: SimLease, tokens: Tokens) -> None:
        if sim_lease.aborted:
            return
        for outcome, _ in sim_lease.members:
            outcome.tokens = tokens
            if tokens.output and outcome.first_at is None:
                outcome.first_at = self.now

    def closed(self, closed: tuple[SimLease, LeaseEnd, Report]) -> None:
        sim_lease, end, report = closed
        gateway, lease_id = self._named[sim_lease.gateway], sim_lease.dispatch.lease_id
        del gateway.leases[lease_id]
        if sim_lease.aborted and end is LeaseEnd.DONE and self._streams(sim_lease):
            end = LeaseEnd.ABORTED  # pieces of it may have been dropped
        if report.tokens.output:
            self._note(sim_lease, report.tokens)
        if end is LeaseEnd.DONE:
            rows = zip(sim_lease.dispatch.rows, sim_lease.members, strict=True)
            for at, (of, (outcome, _)) in enumerate(rows):
                if at not in sim_lease.failed:
                    self._row_done(of, outcome)
        self._step(gateway, Closed(lease_id, end, report, sim_lease.failed))
        streams = self._replicas[sim_lease.dispatch.replica_id].device.engine is not None
        if streams and end is not LeaseEnd.LOST and gateway.engines.learn(report, self.now):
            self._list(gateway)

    def _streams(self, sim_lease: SimLease) -> bool:
        return self._replicas[sim_lease.dispatch.replica_id].device.engine is not None

    def served(self, sim_lease: SimLease, service_s: float) -> None:
        self._observer.served(sim_lease, service_s, self.now)

    def died(self, device: SimDevice) -> None:
        self._set.died(device)

    def emptied(self, device: SimDevice) -> None:
        self._set.emptied(device)

    # -- the running set

    def listed(self, replicas: tuple[Replica, ...]) -> None:
        self._listed = replicas
        for gateway in self.gateways:
            self._list(gateway)

    def _list(self, gateway: _Gateway) -> None:
        """What runs, as this gateway may use it."""
        self._step(gateway, Replicas(tuple([_used_by(gateway, each) for each in self._listed])))

    def next_at_once(self) -> Callable[[Any], None] | None:
        agenda = self._agenda
        return agenda[0][2] if agenda and agenda[0][0] == self.now else None

    def _plan(self, device: SimDevice) -> None:
        replica = self._set.plan(device)
        if self._world.built is not None:
            self._world.built.append(replica)

    def _reconcile(self, controller: Controller) -> None:
        cores = tuple([gateway.core.snapshot(self.now) for gateway in self.gateways])
        for order in controller.reconcile(self.now, cores):
            self._obey(order)
        if self.now < self._world.reconcile_until_s or self._live:
            self.at(self.now + self._world.reconcile_every_s, self._reconcile, controller)

    def _obey(self, order: Order) -> None:
        match order:
            case Join(device):
                self._plan(device)
            case Drain(replica_id):
                self._set.drain(replica_id)
            case Kill(replica_id):
                self._set.kill(replica_id)
            case Expect(in_s):
                for gateway in self.gateways:
                    self._step(gateway, CapacityExpected(in_s))


def _used_by(gateway: _Gateway, listed: Replica) -> Replica:
    if listed.kind is ReplicaKind.BATCH:
        return listed
    return replace(listed, max_leases=gateway.engines.max_leases(listed.max_leases))


def run(
    settings: DispatcherSettings, arrivals: Iterable[Arrival], world: World, observer: SimObserver
) -> tuple[Snapshot, ...]:
    """Run until nothing is left to happen; what each core holds then. Same input, same course.

    `arrivals` ascend in time and may be endless no longer than `follow` and patience let them be.
    Raises ValueError when they do not ascend.
    """
    simulation = _Simulation(settings, world, observer)
    simulation.run(arrivals)
    return tuple(each.core.snapshot(simulation.now) for each in simulation.gateways)


def simulate(
    settings: DispatcherSettings,
    arrivals: Iterable[Arrival],
    devices: Iterable[SimDevice],
    *,
    detect_s: float = 0.0,
    inspect: Callable[[AnyScheduler], None] | None = None,
) -> SimResult:
    """One gateway, every outcome kept: for tests. Otherwise as `run`."""
    recorder = SimRecorder()
    world = World(tuple(devices), detect_s=detect_s, inspect=inspect)
    ends = run(settings, arrivals, world, recorder)
    return SimResult(tuple(recorder.outcomes), tuple(recorder.batches), ends)
