"""A simulated engine that batches by itself.

As vLLM does: step by step. A step gives each sequence that has been read one token and reads up to
`step_tokens` less those of the others' prompts, in the order of their admission, a long one over
several steps. One waits, first come, while sequences or cache are at their most; where the cache
runs full, the sequence admitted last gives up what it holds and is read again. Blocks of prompts
that it still holds are not read again, those used least recently go first. A step takes `base_s`,
`sequence_s` for each sequence that it gives a token and `token_s` for each token that it reads.
Nothing else is modelled: no attention that grows with the context, no detokenising.

Source: Sarathi-Serve (OSDI'24) for chunked prefill; vLLM's scheduler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from routers.simulation.devices import Environment, SimDevice, SimEngine
from routers.simulation.traffic import SimLease
from routers.streams.prefix_tree import PrefixTree
from routers.types import LeaseEnd, Report, Tokens

_SELF = ""


@dataclass(slots=True, eq=False)
class _Sequence:
    """`read`: tokens in the cache of those to be read (`to_read`: the prompt, and after having been
    stopped its output so far). `part`: what of the running step is its; `told`: output tokens that
    its gateway has been told of."""

    sim_lease: SimLease
    prompt: int
    target: int
    blocks: tuple[int, ...]
    came_at: float
    to_read: int
    read: int = 0
    cached: int = 0
    output: int = 0
    reported: int = 0
    chunk: int = 0
    part: float = 0.0
    device_s: float = 0.0

    @property
    def held(self) -> int:
        return self.read + max(0, self.prompt + self.output - self.to_read)

    @property
    def is_read(self) -> bool:
        return self.read >= self.to_read

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.prompt if self.output else 0, self.cached, self.output)


@dataclass(slots=True)
class EngineCounts:
    """Ever. `most_held`: tokens in the cache at once, at most; `most_running`: sequences."""

    steps: int = 0
    stopped: int = 0
    read: int = 0
    cached: int = 0
    most_held: int = 0
    most_running: int = 0


class SimEngineReplica:
    """Answers and progress go to the environment half of the transport time later."""

    def __init__(self, device: SimDevice, engine: SimEngine, environment: Environment) -> None:
        self.device = device
        self.counts = EngineCounts()
        self._engine = engine
        self._environment = environment
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._by_lease: dict[tuple[str, int], _Sequence] = {}
        self._seen: dict[str, int] = {}
        self._prefixes = PrefixTree(engine.cache_tokens // max(1, engine.block_tokens))
        self._steps = False
        self._dead = False
        self._buried = False

    # -- what the gateways ask

    def receive(self, sim_lease: SimLease) -> None:
        environment, lease_id = self._environment, sim_lease.dispatch.lease_id
        if self._buried:
            environment.closed((sim_lease, LeaseEnd.LOST, Report()))
            return
        arrival = sim_lease.members[0][0].arrival
        prompt, target = arrival.lengths[0], max(1, arrival.output)
        blocks = arrival.generation.blocks if arrival.generation is not None else ()
        sequence = _Sequence(sim_lease, prompt, target, blocks, environment.now, prompt)
        self._by_lease[sim_lease.gateway, lease_id] = sequence
        self._seen[sim_lease.gateway] = max(lease_id, self._seen.get(sim_lease.gateway, 0))
        self._waiting.append(sequence)
        sim_lease.started = True
        environment.at(environment.now + self.device.transport_s / 2, environment.opened, sim_lease)
        self._step()

    def abort(self, sim_lease: SimLease) -> None:
        sequence = self._by_lease.get((sim_lease.gateway, sim_lease.dispatch.lease_id))
        if sequence is not None and not self._dead:
            self._leave(sequence)
            self._answer(sequence, LeaseEnd.ABORTED)

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._environment.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        lost, self._by_lease = list(self._by_lease.values()), {}
        for sequence in lost:
            self._environment.closed((sequence.sim_lease, LeaseEnd.LOST, Report()))

    # -- steps

    @property
    def held(self) -> int:
        return sum(sequence.held for sequence in self._running)

    def _step(self) -> None:
        """Begin the next one, unless one is under way or there is nothing to do."""
        if self._steps or self._dead or not (self._waiting or self._running):
            return
        now, device = self._environment.now, self.device
        reads = self._fill()
        engine = self._engine
        base_s = engine.base_s / max(1, len(self._running))
        total_s = 0.0
        for sequence in self._running:
            gives = 0.0 if sequence.chunk else engine.sequence_s
            sequence.part = base_s + gives + engine.token_s * sequence.chunk
            total_s += sequence.part
        drag = 1.0 if device.drag is None else device.drag(now)
        self._count(reads)
        self._steps = True
        if now + total_s * drag <= device.hangs_at:
            self._environment.at(now + total_s * drag, self._stepped, drag)
        else:
            self._environment.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def _fill(self) -> int:
        """Who is part of the step, and how much each reads; all of that."""
        engine = self._engine
        given = sum(sequence.is_read for sequence in self._running)
        left, reads = max(0, engine.step_tokens - given), 0
        most = engine.chunk_tokens or engine.step_tokens
        for sequence in self._running:
            sequence.chunk = min(sequence.to_read - sequence.read, left, most)
            left -= sequence.chunk
            reads += sequence.chunk
        self._make_room(reads + given)
        room = engine.cache_tokens - self.held - reads - given
        while self._waiting and left > 0 and len(self._running) < engine.max_sequences:
            sequence = self._waiting[0]
            self._look_up(sequence)
            chunk = min(sequence.to_read - sequence.read, left, most)
            if sequence.read + chunk > room:
                sequence.read = 0
                break
            self._running.append(self._waiting.popleft())
            sequence.chunk = chunk
            room -= sequence.read + chunk
            left -= chunk
            reads += chunk
        return reads

    def _look_up(self, sequence: _Sequence) -> None:
        known = self._prefixes.match(_SELF, sequence.blocks) * self._engine.block_tokens
        sequence.read = min(known, sequence.to_read - 1)
        if not sequence.output:
            sequence.cached = min(sequence.read, sequence.prompt - 1)

    def _make_room(self, tokens: int) -> None:
        while len(self._running) > 1 and self.held + tokens > self._engine.cache_tokens:
            last = self._running.pop()
            tokens -= last.chunk or 1
            last.read, last.chunk, last.to_read = 0, 0, last.prompt + last.output
            self._waiting.appendleft(last)
            self.counts.stopped += 1

    def _count(self, reads: int) -> None:
        counts = self.counts
        counts.steps += 1
        counts.read += reads
        counts.most_held = max(counts.most_held, self.held + reads)
        counts.most_running = max(counts.most_running, len(self._running))

    def _stepped(self, drag: float) -> None:
        if self._dead:
            return
        self._steps = False
        for sequence in list(self._running):
            sequence.device_s += sequence.part * drag
            if sequence.chunk:
                sequence.read += sequence.chunk
                sequence.chunk = 0
                if sequence.is_read:
                    self._has_read(sequence)
            elif sequence.is_read:
                sequence.output += 1
            self._tell(sequence)
        self._step()

    def _has_read(self, sequence: _Sequence) -> None:
        """Its next token comes with the last of the reading."""
        sequence.output += 1
        outcome = sequence.sim_lease.members[0][0]
        if outcome.started_at is None:
            outcome.started_at = self._environment.now
        if sequence.output == 1:
            self.counts.cached += sequence.cached
        if sequence.blocks:
            room = self._engine.cache_tokens // max(1, self._engine.block_tokens)
            self._prefixes.read(_SELF, sequence.blocks, room)

    # -- what the gateways are told

    def _tell(self, sequence: _Sequence) -> None:
        environment, half_s = self._environment, self.device.transport_s / 2
        if sequence.output >= sequence.target:
            self._leave(sequence)
            environment.served(sequence.sim_lease, sequence.device_s)
            self._answer(sequence, LeaseEnd.DONE)
        elif sequence.output and (
            not sequence.reported
            or sequence.output - sequence.reported >= self._engine.report_every
        ):
            sequence.reported = sequence.output
            moved = (sequence.sim_lease, float(sequence.held), sequence.tokens)
            environment.at(environment.now + half_s, environment.progressed, moved)

    def _leave(self, sequence: _Sequence) -> None:
        sim_lease = sequence.sim_lease
        del self._by_lease[sim_lease.gateway, sim_lease.dispatch.lease_id]
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _answer(self, sequence: _Sequence, end: LeaseEnd) -> None:
        environment, sim_lease, transport_s = (
            self._environment,
            sequence.sim_lease,
            self.device.transport_s,
        )
        report = Report(
            service_s=environment.now - sequence.came_at if sequence.output else 0.0,
            inflight=len(self._by_lease),
            held=sum(gateway == sim_lease.gateway for gateway, _ in self._by_lease),
            seen=self._seen[sim_lease.gateway],
            transport_s=transport_s,
            tokens=sequence.tokens,
        )
        environment.at(
            environment.now + transport_s / 2, environment.closed, (sim_lease, end, report)
        )
