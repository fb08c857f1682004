"""What would the dispatcher have done? The real one, run on virtual time against modelled devices.

Arrivals are passed in, so every run is decided by its input (a seeded generator, a recorded trace).
A device works on one batch at a time and holds further ones up to its slots; an answer takes half
of the transport time each way. A device that dies loses what it holds, and is found out after
`detect_s`. Nothing here sleeps or reads a clock; a second of traffic takes some milliseconds. It
models neither the network's queueing nor the gateway's own work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from routers.dispatcher import Dispatcher
from routers.settings import DispatcherSettings
from routers.types import (
    Arrive,
    Cancel,
    Closed,
    Dispatch,
    Event,
    Evict,
    LeaseEnd,
    Opened,
    Reason,
    Reject,
    Replica,
    Replicas,
    Report,
    Request,
    Snapshot,
    Tick,
    WakeAt,
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `leaves_at`: when its caller gives up without an answer; inf: never."""

    at: float
    lengths: tuple[int, ...]
    slo_s: float = 0.1
    timeout_s: float = 1.0
    leaves_at: float = inf


@dataclass(frozen=True, slots=True)
class Device:
    """A replica: `service_s(rows, longest)` is its time for a batch; it runs from `joins_at` to
    `dies_at`."""

    replica_id: str
    service_s: Callable[[int, int], float]
    slots: int = 2
    transport_s: float = 0.001
    joins_at: float = 0.0
    dies_at: float = inf


@dataclass(slots=True)
class Fate:
    """How one request ended: answered, refused for a reason, or its caller left."""

    arrival: Arrival
    answered_at: float | None = None
    reason: Reason | None = None
    left: bool = False
    answers: int = 0

    @property
    def in_slo(self) -> bool:
        arrival = self.arrival
        return self.answered_at is not None and self.answered_at <= arrival.at + arrival.slo_s


@dataclass(frozen=True, slots=True)
class Outcome:
    fates: tuple[Fate, ...]
    batches: tuple[tuple[float, Dispatch], ...]
    end: Snapshot

    def share_in_slo(self) -> float:
        """Of all that were offered, the share answered within their SLO."""
        return sum(fate.in_slo for fate in self.fates) / max(1, len(self.fates))


@dataclass(slots=True, eq=False)
class _Held:
    """What a device holds, the running batch in front."""

    device: Device
    dead: bool = False
    queue: deque[Dispatch] = field(default_factory=deque)
    last_seen: int = 0


class _Simulation:
    """`inspect` is called with the dispatcher after each step (tests pass its `check`)."""

    def __init__(
        self,
        settings: DispatcherSettings,
        devices: Iterable[Device],
        detect_s: float,
        inspect: Callable[[Dispatcher], None],
    ) -> None:
        self.now = 0.0
        self.dispatcher = Dispatcher(settings)
        self.fates: list[Fate] = []
        self.batches: list[tuple[float, Dispatch]] = []
        self._undone: dict[int, int] = {}  # request id: rows not answered yet
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self._timer: float | None = None
        self._detect_s = detect_s
        self._inspect = inspect
        self._held: dict[str, _Held] = {}  # by replica id, those believed to run
        for device in devices:
            self._plan(device)

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._entries += 1
        heappush(self._agenda, (when, self._entries, act))

    def run(self) -> None:
        while self._agenda:
            self.now, _, act = heappop(self._agenda)
            act()

    # -- callers

    def expect(self, arrival: Arrival) -> None:
        request_id = len(self.fates)
        self.fates.append(Fate(arrival))
        self.at(arrival.at, lambda: self._arrive(request_id, arrival))
        if arrival.leaves_at < inf:
            self.at(arrival.leaves_at, lambda: self._leave(request_id))

    def _arrive(self, request_id: int, arrival: Arrival) -> None:
        self._undone[request_id] = len(arrival.lengths)
        deadline, expires = self.now + arrival.slo_s, self.now + arrival.timeout_s
        self._step(Arrive(Request(request_id, arrival.lengths, self.now, deadline, expires)))

    def _leave(self, request_id: int) -> None:
        if self._undone.pop(request_id, None) is not None:
            self.fates[request_id].left = True
            self._step(Cancel(request_id))

    def _row_done(self, request_id: int) -> None:
        if request_id not in self._undone:
            return
        self._undone[request_id] -= 1
        if not self._undone[request_id]:
            del self._undone[request_id]
            self.fates[request_id].answered_at = self.now
            self.fates[request_id].answers += 1

    # -- the dispatcher

    def _step(self, event: Event) -> None:
        for action in self.dispatcher.step(event, self.now):
            if isinstance(action, Dispatch):
                self._send(action)
            elif isinstance(action, WakeAt):
                self._set_timer(action.at)
            elif isinstance(action, Reject | Evict):
                self._undone.pop(action.request_id)
                self.fates[action.request_id].reason = action.reason
                self.fates[action.request_id].answers += 1
        self._inspect(self.dispatcher)

    def _set_timer(self, when: float) -> None:
        self._timer = when

        def fire() -> None:
            if self._timer == when:
                self._timer = None
                self._step(Tick())

        self.at(when, fire)

    # -- devices

    def _plan(self, device: Device) -> None:
        held = _Held(device)
        self.at(device.joins_at, lambda: self._join(held))
        if device.dies_at < inf:
            self.at(device.dies_at, lambda: self._die(held))

    def _join(self, held: _Held) -> None:
        self._held[held.device.replica_id] = held
        self._publish()

    def _die(self, held: _Held) -> None:
        held.dead = True
        self.at(self.now + self._detect_s, lambda: self._bury(held))

    def _bury(self, held: _Held) -> None:
        del self._held[held.device.replica_id]
        self._lose_all(held)
        self._publish()

    def _publish(self) -> None:
        devices = [held.device for held in self._held.values()]
        self._step(Replicas(tuple(Replica(each.replica_id, each.slots) for each in devices)))

    def _send(self, batch: Dispatch) -> None:
        self.batches.append((self.now, batch))
        held = self._held[batch.replica_id]
        self.at(self.now + held.device.transport_s / 2, lambda: self._receive(held, batch))

    def _receive(self, held: _Held, batch: Dispatch) -> None:
        held.queue.append(batch)
        held.last_seen = batch.lease_id
        if batch.replica_id not in self._held:
            self._lose_all(held)
        elif len(held.queue) == 1:
            self._start(held)

    def _lose_all(self, held: _Held) -> None:
        while held.queue:
            self._step(Closed(held.queue.popleft().lease_id, LeaseEnd.LOST))

    def _start(self, held: _Held) -> None:
        batch = held.queue[0]
        lengths = [self.fates[request].arrival.lengths[row] for request, row in batch.rows]
        service_s = held.device.service_s(len(lengths), max(lengths))
        back_s = held.device.transport_s / 2
        self.at(self.now + back_s, lambda: self._step(Opened(batch.lease_id)))
        self.at(self.now + service_s, lambda: self._finish(held, service_s))

    def _finish(self, held: _Held, service_s: float) -> None:
        if held.dead:
            return
        batch = held.queue.popleft()
        report = Report(
            service_s=service_s,
            inflight=len(held.queue),
            held=len(held.queue),
            seen=held.last_seen,
            transport_s=held.device.transport_s,
        )
        self.at(self.now + held.device.transport_s / 2, lambda: self._answer(batch, report))
        if held.queue:
            self._start(held)

    def _answer(self, batch: Dispatch, report: Report) -> None:
        for request_id, _ in batch.rows:
            self._row_done(request_id)
        self._step(Closed(batch.lease_id, LeaseEnd.DONE, report))


def simulate(
    settings: DispatcherSettings,
    arrivals: Iterable[Arrival],
    devices: Iterable[Device],
    *,
    detect_s: float = 0.0,
    inspect: Callable[[Dispatcher], None] = lambda dispatcher: None,
) -> Outcome:
    """Run until nothing is left to happen. Same input, same outcome."""
    simulation = _Simulation(settings, devices, detect_s, inspect)
    for arrival in arrivals:
        simulation.expect(arrival)
    simulation.run()
    end = simulation.dispatcher.snapshot(simulation.now)
    return Outcome(tuple(simulation.fates), tuple(simulation.batches), end)
