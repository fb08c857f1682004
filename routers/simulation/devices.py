"""A simulated replica that is sent batches, and its device.

It treats batches as the real one does: `Staging` says which starts and which go back, one runs at a
time, a message takes half of the transport time each way, an unstarted batch that nobody waits for
is dropped. What the device itself does is modelled: its time for a batch, by how much that varies
(`Drag`), when it dies or hangs. Everything random comes from the generator given, one a device, so
that what one device does moves nothing of another's. It models neither the network's queueing nor
the replica's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Protocol

from routers.api.events import AdaptersHeld, BlocksHeld
from routers.api.requests import LeaseEnd, Report, Tokens
from routers.batch.staging import Staged, Staging, Turn
from routers.simulation.traffic import SimLease


@dataclass(frozen=True, slots=True)
class Slow:
    """From one time to another everything takes `factor` times as long."""

    factor: float
    from_s: float = 0.0
    to_s: float = inf


@dataclass(frozen=True, slots=True)
class Ramp:
    """At first everything takes `factor` times as long; that falls to once, evenly, over `last_s`
    from `from_s` on."""

    factor: float
    from_s: float
    last_s: float

    def at(self, now: float) -> float:
        left = 1.0 - (now - self.from_s) / self.last_s
        return 1.0 + (self.factor - 1.0) * max(0.0, min(1.0, left))


@dataclass(frozen=True, slots=True)
class Drag:
    """A factor drawn anew for each batch: log-normal noise of median 1, a hiccup now and then,
    times when the device is slow, and a slow start; see `SimDevice.drag`. `noise`: sigma of the
    logarithm; `hiccups`: share of the batches that take `hiccup_factor` times as long."""

    rng: Random
    noise: float = 0.0
    hiccups: float = 0.0
    hiccup_factor: float = 1.0
    slow: Sequence[Slow] = ()
    ramp: Ramp | None = None

    def __call__(self, now: float) -> float:
        factor = self.rng.lognormvariate(0.0, self.noise) if self.noise else 1.0
        if self.hiccups and self.rng.random() < self.hiccups:
            factor *= self.hiccup_factor
        for each in self.slow:
            if each.from_s <= now < each.to_s:
                factor *= each.factor
        return factor if self.ramp is None else factor * self.ramp.at(now)


class EngineSequence(Protocol):
    """A request as its engine sees it. `owner`: what it was added for; `prompt`: its tokens,
    `cached` of them were not read; `held`: tokens in the cache now; `device_s`: its share of the
    steps so far; `done`: it has had all of its output."""

    @property
    def owner(self) -> Any: ...
    @property
    def prompt(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def device_s(self) -> float: ...
    @property
    def done(self) -> bool: ...


class SimEngine(Protocol):
    """What batches by itself, step by step; the replica lets a step's time pass."""

    @property
    def idle(self) -> bool: ...

    def add(
        self, owner: Any, prompt: int, most: int, blocks: tuple[int, ...], /
    ) -> EngineSequence: ...

    def abort(self, sequence: Any, /) -> None:
        """One that `add` returned."""

    def tell_blocks(self, told: Callable[[list[int], list[int]], None], /) -> None:
        """From now on `told` is called with the blocks that come into its cache, and then go."""

    def begin_step(self) -> float:
        """Seconds that it takes."""

    def end_step(self, drag: float, /) -> Iterable[EngineSequence]:
        """Who got a token. `drag`: what the step's time was multiplied with."""


class SimAdapters(Protocol):
    """An engine's places for adapters, as `runtimes.adapters.AdapterSlots`."""

    @property
    def held(self) -> tuple[str, ...]: ...
    @property
    def load_s(self) -> float: ...
    def want(self, name: str, /, *, first: bool) -> Any:
        """Its `want.value` is what the request is to do: "run", "load" or "wait"."""

    def loaded(self, name: str, seconds: float, /) -> None: ...
    def done(self, name: str, /) -> None: ...


class SimEngineShape(Protocol):
    """How large a replica's engine is, and how to get one."""

    @property
    def adapter_load_s(self) -> float: ...
    def slots(self) -> SimAdapters | None: ...
    @property
    def cache_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    def engine(self) -> SimEngine: ...


@dataclass(frozen=True, slots=True)
class SimDevice:
    """A replica that runs from `joins_at` to `dies_at`.

    `service_s(rows, width)` is its time for a batch, the width being the longest row or, where
    batches are packed, their mean; `drag(now)` is what that time is multiplied with. From
    `hangs_at` on it finishes nothing, and is given up `hang_limit_s` after it began. From the first
    to the second time of each of its `pauses`, ascending, nothing there moves, says or hears
    anything. One with an `engine` is a stream replica, and has that one's times and cache instead.
    `group`: of replicas of its kind. `fails`: whether its model fails on a row of a batch, drawn
    for each, None: never. `tells_blocks_s`: how long an engine's replica gathers what has changed
    of the blocks that it holds, before it tells gateways; inf: it never does.
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
    pauses: tuple[tuple[float, float], ...] = ()
    engine: SimEngineShape | None = None
    group: str = ""
    fails: Callable[[], bool] | None = None
    tells_blocks_s: float = inf

    def wakes_at(self, now: float) -> float:
        """The end of the pause that it is in; `now` where it is in none."""
        for begins, ends in self.pauses:
            if begins <= now < ends:
                return ends
        return now

    def after(self, now: float, seconds: float) -> float:
        """When so many seconds of its own time have passed."""
        done_at = now + seconds
        for begins, ends in self.pauses:
            if ends > now and begins < done_at:
                done_at += ends - max(begins, now)
        return done_at

    def time_s(self, rows: int, width: int, now: float) -> float:
        seconds = self.service_s(rows, width)
        return seconds if self.drag is None else seconds * self.drag(now)


class Environment(Protocol):
    """What a replica needs of the simulation around it."""

    @property
    def now(self) -> float: ...

    def at(self, when: float, act: Callable[[Any], None], what: Any) -> None:
        """Call `act(what)` at that time."""

    def opened(self, sim_lease: SimLease) -> None: ...

    def progressed(self, moved: tuple[SimLease, float, Tokens, Tokens]) -> None:
        """A stream holds so much, and has had so many tokens so far; its replica has given so many
        to all of them, ever."""

    def said(self, words: tuple[str, str, Report | None]) -> None:
        """To a gateway by a replica, with no end of a lease: what others were served there; None:
        only that it lives."""

    def held(self, words: tuple[str, AdaptersHeld | BlocksHeld]) -> None:
        """To a gateway by a replica: which adapters it has now."""

    def closed(self, end: tuple[SimLease, LeaseEnd, Report]) -> None: ...

    def served(self, sim_lease: SimLease, service_s: float) -> None: ...

    def died(self, device: SimDevice) -> None:
        """Everybody will find out; `lose_all` is called then."""

    def emptied(self, device: SimDevice) -> None:
        """It drains, and what it held has ended."""


class SimBatchReplica:
    """One that is sent batches. Answers go to the environment half of the transport time later."""

    def __init__(self, device: SimDevice, environment: Environment) -> None:
        self.device = device
        self._environment = environment
        self._staging = Staging(device.slots)
        self._held: dict[tuple[str, int], SimLease] = {}
        self._unheard: list[SimLease] = []  # came in a pause without an end
        self._started_at = 0.0
        self._dead = False
        self._buried = False
        self._leaving = False

    @property
    def idle(self) -> bool:
        return not (self._held or self._unheard)

    def receive(self, sim_lease: SimLease) -> None:
        if self._buried:
            self._environment.closed((sim_lease, LeaseEnd.LOST, Report()))
            return
        if self._is_paused(self.receive, sim_lease):
            if self.device.wakes_at(self._environment.now) == inf:
                self._unheard.append(sim_lease)
            return
        lease, gateway = sim_lease.dispatch, sim_lease.gateway
        if self._leaving:
            self._answer(sim_lease, LeaseEnd.BUSY, Report(transport_s=self.device.transport_s))
            return
        self._held[gateway, lease.lease_id] = sim_lease
        batch = Staged(gateway, lease.lease_id, lease.rank, lease.predicted_s, lease.charges)
        waiting = lease.waiting if not lease.copy_of else None  # of which a copy says nothing
        self._perform(self._staging.arrive(batch, waiting, self._environment.now))

    def abort(self, sim_lease: SimLease) -> None:
        """Nobody waits for it: dropped if it has not started, else left alone."""
        gateway, lease_id = sim_lease.gateway, sim_lease.dispatch.lease_id
        if self._dead or self._is_paused(self.abort, sim_lease):
            return
        if self._staging.drop(gateway, lease_id):
            del self._held[gateway, lease_id]
            self._answer(sim_lease, LeaseEnd.ABORTED, self._report(gateway))

    def leave(self) -> None:
        """What comes from now on goes back; what is here is finished."""
        self._leaving = True

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._environment.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        held, self._held = [*self._held.values(), *self._unheard], {}
        for sim_lease in held:
            self._environment.closed((sim_lease, LeaseEnd.LOST, Report()))

    def _is_paused(self, act: Callable[[Any], None], what: Any) -> bool:
        """Then it is done once the pause is over."""
        wakes_at = self.device.wakes_at(self._environment.now)
        if wakes_at > self._environment.now:
            self._environment.at(wakes_at, act, what)
            return True
        return False

    # -- the device

    def _perform(self, turn: Turn) -> None:
        if turn.start is not None:
            self._start(self._held[turn.start.gateway, turn.start.lease_id])
        for back in turn.returned:
            sim_lease = self._held.pop((back.gateway, back.lease_id))
            self._answer(sim_lease, LeaseEnd.BUSY, self._report(back.gateway))

    def _start(self, sim_lease: SimLease) -> None:
        environment, device = self._environment, self.device
        now = self._started_at = environment.now
        for outcome, _ in sim_lease.members:
            outcome.started_at = now
        service_s = device.time_s(len(sim_lease.members), sim_lease.width, now)
        sim_lease.started = True
        if sim_lease.watched:
            environment.at(now + device.transport_s / 2, environment.opened, sim_lease)
        if now + service_s <= device.hangs_at:
            environment.at(device.after(now, service_s), self._finish, (sim_lease, service_s))
        else:
            environment.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def _finish(self, run: tuple[SimLease, float]) -> None:
        if self._dead:
            return
        sim_lease, service_s = run
        gateway = sim_lease.gateway
        del self._held[gateway, sim_lease.dispatch.lease_id]
        turn = self._staging.finish(service_s, self._environment.now)
        self._environment.served(sim_lease, service_s)
        fails = self.device.fails
        if fails is not None:
            sim_lease.failed = tuple([n for n in range(len(sim_lease.members)) if fails()])
        report = self._report(gateway, service_s)
        self._answer(sim_lease, LeaseEnd.DONE, report)
        self._perform(turn)

    def _report(self, gateway: str, service_s: float = 0.0) -> Report:
        now, transport_s = self._environment.now, self.device.transport_s
        return self._staging.report(gateway, now, service_s, transport_s)

    def _answer(self, sim_lease: SimLease, end: LeaseEnd, report: Report) -> None:
        environment = self._environment
        environment.at(
            environment.now + self.device.transport_s / 2,
            environment.closed,
            (sim_lease, end, report),
        )
        if self._leaving and self.idle:
            environment.emptied(self.device)
