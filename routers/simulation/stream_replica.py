"""A simulated replica whose engine batches by itself.

It passes requests to the engine that its device has, lets the engine's steps pass on virtual time
and tells gateways what comes of them: of the first token of each request, of every so many after
it, and of the end. What an engine does in a step is its own affair (`SimEngine`); how much longer
than it should a step takes, when the replica dies or hangs, is the device's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from routers.api.requests import LeaseEnd, Report, Tokens
from routers.simulation.devices import EngineSequence, Environment, SimDevice, SimEngine
from routers.simulation.traffic import SimLease

_TOLD_EVERY = 16  # output tokens between two messages to a gateway, the first one apart


@dataclass(slots=True, eq=False)
class _Stream:
    """`told`: output tokens that its gateway has been told of."""

    sequence: EngineSequence
    came_at: float
    told: int = 0

    @property
    def tokens(self) -> Tokens:
        sequence = self.sequence
        input_tokens = sequence.prompt if sequence.output else 0
        return Tokens(input_tokens, sequence.cached, sequence.output)


class SimStreamReplica:
    """Answers and progress go to the environment half of the transport time later."""

    def __init__(self, device: SimDevice, engine: SimEngine, environment: Environment) -> None:
        self.device = device
        self.engine = engine
        self._environment = environment
        self._streams: dict[SimLease, _Stream] = {}
        self._unheard: list[SimLease] = []  # came in a pause without an end
        self._seen: dict[str, int] = {}
        self._steps = False
        self._dead = False
        self._buried = False
        self._leaving = False

    @property
    def idle(self) -> bool:
        return not (self._streams or self._unheard)

    # -- what the gateways ask

    def receive(self, sim_lease: SimLease) -> None:
        environment, gateway = self._environment, sim_lease.gateway
        if self._buried:
            environment.closed((sim_lease, LeaseEnd.LOST, Report()))
            return
        if self._is_paused(self.receive, sim_lease):
            if self.device.wakes_at(self._environment.now) == inf:
                self._unheard.append(sim_lease)
            return
        if self._leaving:
            busy = sim_lease, LeaseEnd.BUSY, Report(transport_s=self.device.transport_s)
            environment.at(environment.now + self.device.transport_s / 2, environment.closed, busy)
            return
        arrival = sim_lease.members[0][0].arrival
        blocks = arrival.generation.blocks if arrival.generation is not None else ()
        sequence = self.engine.add(sim_lease, arrival.lengths[0], max(1, arrival.output), blocks)
        self._streams[sim_lease] = _Stream(sequence, environment.now)
        self._seen[gateway] = max(sim_lease.dispatch.lease_id, self._seen.get(gateway, 0))
        sim_lease.started = True
        environment.at(environment.now + self.device.transport_s / 2, environment.opened, sim_lease)
        self._step()

    def abort(self, sim_lease: SimLease) -> None:
        stream = self._streams.get(sim_lease)
        if stream is not None and not self._dead and not self._is_paused(self.abort, sim_lease):
            self.engine.abort(stream.sequence)
            self._answer(sim_lease, LeaseEnd.ABORTED)

    def leave(self) -> None:
        """What comes from now on goes back; what is here is finished."""
        self._leaving = True

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._environment.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        lost, self._streams = [*self._streams, *self._unheard], {}
        for sim_lease in lost:
            self._environment.closed((sim_lease, LeaseEnd.LOST, Report()))

    def _is_paused(self, act: Callable[[SimLease], None], what: SimLease) -> bool:
        """Then it is done once the pause is over."""
        wakes_at = self.device.wakes_at(self._environment.now)
        if wakes_at > self._environment.now:
            self._environment.at(wakes_at, act, what)
            return True
        return False

    # -- steps

    def _step(self) -> None:
        """Begin the next one, unless one is under way or there is nothing to do."""
        if self._steps or self._dead or self.engine.idle:
            return
        now, device = self._environment.now, self.device
        step_s = self.engine.begin_step()
        drag = 1.0 if device.drag is None else device.drag(now)
        self._steps = True
        if now + step_s * drag <= device.hangs_at:
            self._environment.at(device.after(now, step_s * drag), self._stepped, drag)
        else:
            self._environment.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def _stepped(self, drag: float) -> None:
        if self._dead:
            return
        self._steps = False
        for sequence in self.engine.end_step(drag):
            self._tell(sequence.owner)
        self._step()

    # -- what the gateways are told

    def _tell(self, sim_lease: SimLease) -> None:
        """Of its newest token."""
        environment, stream = self._environment, self._streams[sim_lease]
        sequence, outcome = stream.sequence, sim_lease.members[0][0]
        if outcome.started_at is None:
            outcome.started_at = environment.now
        if sequence.done:
            environment.served(sim_lease, sequence.device_s)
            self._answer(sim_lease, LeaseEnd.DONE)
        elif not stream.told or sequence.output - stream.told >= _TOLD_EVERY:
            stream.told = sequence.output
            moved = (sim_lease, float(sequence.held), stream.tokens)
            half_s = self.device.transport_s / 2
            environment.at(environment.now + half_s, environment.progressed, moved)

    def _answer(self, sim_lease: SimLease, end: LeaseEnd) -> None:
        environment, transport_s = self._environment, self.device.transport_s
        stream, gateway = self._streams.pop(sim_lease), sim_lease.gateway
        report = Report(
            service_s=environment.now - stream.came_at if stream.sequence.output else 0.0,
            inflight=len(self._streams),
            held=sum(other.gateway == gateway for other in self._streams),
            seen=self._seen[gateway],
            transport_s=transport_s,
            tokens=stream.tokens,
        )
        environment.at(
            environment.now + transport_s / 2, environment.closed, (sim_lease, end, report)
        )
        if self._leaving and self.idle:
            environment.emptied(self.device)
