"""A simulated replica whose engine batches by itself.

It treats requests as the real replica does: `StreamStaging` says which request the engine gets
next, and what each gateway is told of the others. The engine's steps take virtual time. A gateway
is told of the first token of each request, of every sixteenth after it, of the end, of what other
gateways' flows were served and have waiting, and of the blocks that the engine holds. What an
engine does in a step is the engine's affair (`SimEngine`); how much longer than it should a step
takes, and when the replica dies or hangs, is the device's. The replica refuses no request for want
of room: gateways know how many they may send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from routers.api.events import AdaptersHeld, BlocksHeld
from routers.api.requests import NO_TOKENS, FlowWork, LeaseEnd, Report, Tokens
from routers.simulation.devices import EngineSequence, Environment, SimDevice, SimEngine
from routers.simulation.traffic import SimLease
from routers.stream.staging import StagedStream, StreamStaging, worth_s

_TOLD_EVERY = 16  # output tokens of a request from one time that its core is told to the next
_SIGN_OF_LIFE_S = 1.0  # the longest that a gateway is told nothing while the engine works


@dataclass(slots=True, eq=False)
class _Stream:
    """A request that has come and not ended."""

    turn: StagedStream
    sequence: EngineSequence | None = None  # None: the engine has not been given it
    began_at: float = 0.0  # when the engine was given it
    told: int = 0  # output tokens that its gateway's core was told of
    adapter: str = ""  # that its request asks for

    @property
    def tokens(self) -> Tokens:
        sequence = self.sequence
        if sequence is None or not sequence.output:
            return NO_TOKENS
        return Tokens(sequence.prompt, sequence.cached, sequence.output)


@dataclass(slots=True)
class _Gateway:
    said_at: float  # when the gateway was last told anything
    seen: int = 0  # the highest id of the gateway's leases that have come
    waiting: tuple[FlowWork, ...] = ()  # at other gateways, as this one was last told
    # By block: whether the engine holds it, of what the gateway has yet to be told; None: nothing
    # was told to it yet.
    blocks: dict[int, bool] | None = None


class SimStreamReplica:
    """Answers and progress go to the environment half of the transport time later."""

    def __init__(self, device: SimDevice, engine: SimEngine, environment: Environment) -> None:
        self.device = device
        self.engine = engine
        self._environment = environment
        assert device.engine is not None, "it is sent batches"
        self._staging = StreamStaging(device.engine.max_sequences)
        self.adapters = device.engine.slots()
        self._load_s = device.engine.adapter_load_s
        self._without_adapter: list[SimLease] = []  # in the order in which they came
        self._streams: dict[SimLease, _Stream] = {}
        self._by_turn: dict[StagedStream, SimLease] = {}
        self._unheard: list[SimLease] = []  # came in a pause without an end
        self._gateways: dict[str, _Gateway] = {}
        self._read = self._written = 0  # tokens given to requests of all gateways, ever
        self._blocks: set[int] = set()  # that the engine holds
        self._tells_blocks = False  # a time is set
        if device.tells_blocks_s < inf:
            engine.tell_blocks(self._blocks_changed)
        self._steps = False
        self._dead = False
        self._buried = False
        self._leaving = False

    @property
    def idle(self) -> bool:
        return not (self._streams or self._unheard)

    # -- what the gateways ask

    def receive(self, sim_lease: SimLease) -> None:
        environment = self._environment
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
        lease, now = sim_lease.dispatch, environment.now
        gateway = self._gateways.setdefault(sim_lease.gateway, _Gateway(now))
        gateway.seen = max(lease.lease_id, gateway.seen)
        if gateway.blocks is None and self.device.tells_blocks_s < inf:
            self._say_blocks(sim_lease.gateway)
        turn = StagedStream(sim_lease.gateway, lease.rank, lease.charges)
        self._streams[sim_lease], self._by_turn[turn] = _Stream(turn), sim_lease
        waiting = lease.waiting if not lease.copy_of else None  # of which a copy says nothing
        self._begin(self._staging.arrive(turn, waiting, now))
        self._step()

    def abort(self, sim_lease: SimLease) -> None:
        stream = self._streams.get(sim_lease)
        if stream is not None and not self._dead and not self._is_paused(self.abort, sim_lease):
            if stream.sequence is not None:
                self.engine.abort(stream.sequence)
            self._answer(sim_lease, LeaseEnd.ABORTED)
            self._step()

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

    def _is_paused(self, act: Callable[[Any], None], what: Any) -> bool:
        """Then it is done once the pause is over."""
        wakes_at = self.device.wakes_at(self._environment.now)
        if wakes_at > self._environment.now:
            self._environment.at(wakes_at, act, what)
            return True
        return False

    # -- steps

    def _begin(self, turn: StagedStream | None) -> None:
        """The engine gets this one now."""
        if turn is None:
            return
        environment, sim_lease = self._environment, self._by_turn[turn]
        stream, generation = self._streams[sim_lease], sim_lease.members[0][0].arrival.generation
        stream.began_at = environment.now
        sim_lease.started = True
        environment.at(environment.now + self.device.transport_s / 2, environment.opened, sim_lease)
        stream.adapter = generation.adapter if generation is not None else ""
        if self._has_adapter(stream.adapter, first=True):
            self._add(sim_lease)
        else:
            self._without_adapter.append(sim_lease)

    def _add(self, sim_lease: SimLease) -> None:
        arrival = sim_lease.members[0][0].arrival
        blocks = arrival.generation.blocks if arrival.generation is not None else ()
        most = max(1, arrival.output)
        sequence = self.engine.add(sim_lease, arrival.lengths[0], most, blocks)
        self._streams[sim_lease].sequence = sequence

    # -- adapters

    def _has_adapter(self, name: str, *, first: bool) -> bool:
        """Whether the engine may run a request for it now; begins to load it, if that is due."""
        if self.adapters is None or not name:
            return True
        want = self.adapters.want(name, first=first).want.value
        if want == "load":
            environment = self._environment
            environment.at(environment.now + self._load_s, self._loaded, name)
        return bool(want == "run")

    def _loaded(self, name: str) -> None:
        if self._dead or self.adapters is None or self._is_paused(self._loaded, name):
            return
        self.adapters.loaded(name, self._load_s)
        self._ask_again()
        half_s = self.device.transport_s / 2
        event = AdaptersHeld(self.device.replica_id, self.adapters.held, self.adapters.load_s)
        for gateway in self._gateways:
            self._environment.at(
                self._environment.now + half_s, self._environment.held, (gateway, event)
            )
        self._step()

    def _ask_again(self) -> None:
        """Something about the adapters has changed: who waits for one asks again."""
        waiting, self._without_adapter = self._without_adapter, []
        for sim_lease in waiting:
            stream = self._streams.get(sim_lease)
            if stream is not None and self._has_adapter(stream.adapter, first=False):
                self._add(sim_lease)
            elif stream is not None:
                self._without_adapter.append(sim_lease)

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
        got = list(self.engine.end_step(drag))
        for sequence in got:
            self._written += 1
            if sequence.output == 1:
                self._read += max(0, sequence.prompt - sequence.cached)
        for sequence in got:
            self._tell(sequence.owner, sequence)
        told = {sequence.owner.gateway for sequence in got}
        for name in self._gateways:
            self._say(name, brings=name in told)
        if self.engine.idle and len(self._gateways) > 1:
            environment = self._environment
            environment.at(environment.now + _SIGN_OF_LIFE_S, self._say_to_all, None)
        self._step()

    # -- what the gateways are told

    def _say_to_all(self, _: None) -> None:
        if not self._dead and not self._is_paused(self._say_to_all, None):
            for name in self._gateways:
                self._say(name, brings=False)

    def _say(self, name: str, *, brings: bool) -> None:
        """Tell a gateway what others were served, with the message that it gets anyhow: one that
        `brings` tokens of its requests, or a sign of life."""
        environment, gateway = self._environment, self._gateways[name]
        now, replica_id = environment.now, self.device.replica_id
        arrives_at = now + self.device.transport_s / 2
        if now - gateway.said_at >= _SIGN_OF_LIFE_S:
            environment.at(arrives_at, environment.said, (name, replica_id, None))
        elif not brings:
            return
        gateway.said_at = now
        if self._staging.has_news(name, now):
            news = self._with_shares(Report(), name)
            environment.at(arrives_at, environment.said, (name, replica_id, news))

    def _blocks_changed(self, stored: list[int], removed: list[int]) -> None:
        self._blocks.update(stored)
        self._blocks.difference_update(removed)
        for gateway in self._gateways.values():
            if gateway.blocks is not None:
                gateway.blocks.update(dict.fromkeys(stored, True))
                gateway.blocks.update(dict.fromkeys(removed, False))
        if not self._tells_blocks:
            self._tells_blocks = True
            due = self._environment.now + self.device.tells_blocks_s
            self._environment.at(due, self._say_all_blocks, None)

    def _say_all_blocks(self, _: None) -> None:
        self._tells_blocks = False
        if not self._dead and not self._is_paused(self._say_all_blocks, None):
            for name in self._gateways:
                self._say_blocks(name)

    def _say_blocks(self, name: str) -> None:
        """Tell the gateway what has changed of the blocks that the engine holds, if it tells that
        at all."""
        gateway, environment = self._gateways[name], self._environment
        whole = gateway.blocks is None
        changed = dict.fromkeys(self._blocks, True) if gateway.blocks is None else gateway.blocks
        gateway.blocks = {}
        if changed or whole:
            stored = tuple(block for block, held in changed.items() if held)
            removed = tuple(block for block, held in changed.items() if not held)
            event = BlocksHeld(self.device.replica_id, stored, removed, whole)
            arrives_at = environment.now + self.device.transport_s / 2
            environment.at(arrives_at, environment.held, (name, event))

    def _with_shares(self, report: Report, name: str) -> Report:
        """What waits elsewhere is told now and then, and known in between."""
        shares = self._staging.report(name, self._environment.now)
        gateway = self._gateways[name]
        if shares.waiting is not None:
            gateway.waiting = shares.waiting
        return replace(
            report,
            virtual_time=shares.virtual_time,
            served=shares.served,
            waiting=gateway.waiting,
        )

    def _tell(self, sim_lease: SimLease, sequence: EngineSequence) -> None:
        """Of its newest token."""
        environment, stream = self._environment, self._streams[sim_lease]
        outcome = sim_lease.members[0][0]
        if outcome.started_at is None:
            outcome.started_at = environment.now
        if sequence.done:
            environment.served(sim_lease, sequence.device_s)
            self._answer(sim_lease, LeaseEnd.DONE)
        elif not stream.told or sequence.output - stream.told >= _TOLD_EVERY:
            stream.told = sequence.output
            given = Tokens(self._read, 0, self._written)
            moved = (sim_lease, float(sequence.held), stream.tokens, given)
            half_s = self.device.transport_s / 2
            environment.at(environment.now + half_s, environment.progressed, moved)

    def _answer(self, sim_lease: SimLease, end: LeaseEnd) -> None:
        """It is over, and another begins in its place."""
        environment, transport_s = self._environment, self.device.transport_s
        stream, name, now = self._streams.pop(sim_lease), sim_lease.gateway, environment.now
        del self._by_turn[stream.turn]
        if self.adapters is not None and stream.adapter and stream.sequence is not None:
            self.adapters.done(stream.adapter)
            self._ask_again()
        self._begin(self._staging.end(stream.turn, worth_s(stream.tokens, *sim_lease.prices)))
        report = Report(
            service_s=now - stream.began_at if stream.sequence is not None else 0.0,
            inflight=len(self._streams),
            held=sum(other.gateway == name for other in self._streams),
            seen=self._gateways[name].seen,
            transport_s=transport_s,
            tokens=stream.tokens,
        )
        if self._gateways[name].blocks:
            self._say_blocks(name)
        closed = (sim_lease, end, self._with_shares(report, name))
        environment.at(now + transport_s / 2, environment.closed, closed)
        if self._leaving and self.idle:
            environment.emptied(self.device)
