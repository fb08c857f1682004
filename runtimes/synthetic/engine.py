"""Models an engine with continuous batching: steps, chunked prefill, a KV cache, shared prefixes.

In a step each sequence whose prompt has been read gets one token. The rest of `step_tokens` reads
the others' prompts in the order of admission, a long prompt over several steps. A sequence waits,
first come first served, while the number of sequences or the cache is at its maximum. If the cache
runs full, the sequence admitted last gives up its cache and is read again later (preemption by
recomputation). Cached blocks of prompts are not read again; the least recently used are forgotten.

Pure: the caller lets the time of a step pass. Not modelled: attention that grows with the context,
and detokenising. A prefix that several sequences share counts for each; unused blocks take no room.
Source: Sarathi-Serve (OSDI'24) for chunked prefill; vLLM's scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtimes.adapters import AdapterSlots


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The engine's speed and size."""

    # A step takes the sum of these.
    base_s: float
    sequence_s: float  # for each sequence that gets a token
    token_s: float  # for each token that is read

    cache_tokens: int
    max_sequences: int = 256  # that run at once
    step_tokens: int = 2048  # most tokens given and read in a step
    block_tokens: int = 16  # the unit in which prompts share the cache; 0: they do not share
    chunk_tokens: int = 0  # most that one sequence reads in a step; 0: all that the step has left
    adapters_resident: int = 0  # adapters that are held at once; 0: none can be asked for
    adapter_load_s: float = 0.0  # of one adapter, while the others' steps go on

    def engine(self) -> SyntheticEngine:
        """A new one, with nothing to do."""
        return SyntheticEngine(self)

    def slots(self) -> AdapterSlots | None:
        """The places for adapters of one engine, all free; None: it has none."""
        return AdapterSlots(self.adapters_resident) if self.adapters_resident else None

    def profile(self) -> tuple[tuple[int, int, float], ...]:
        """(running sequences, tokens of the step, seconds), as measured while warming up."""
        running = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= self.max_sequences]
        decodes = [(n, n, self.base_s + n * self.sequence_s) for n in running]
        most = self.step_tokens
        return (*decodes, (1, most, self.base_s + most * self.token_s))


@dataclass(slots=True, eq=False)
class Sequence:
    """One output that the engine generates. Unit: tokens."""

    owner: Any  # whoever added it; opaque here
    prompt: int
    most: int  # output tokens that it is to get
    blocks: tuple[int, ...]  # ids of the prompt's whole blocks; each stands for all before it too

    # Written by the engine alone.
    to_read: int  # the prompt and, after a preemption, the output so far
    read: int = 0  # of `to_read`, in the cache
    cached: int = 0  # of the prompt, in the cache before it was read
    output: int = 0
    chunk: int = 0  # that the running step reads of it
    part_s: float = 0.0  # its share of the running step's time
    device_s: float = 0.0  # its share of all earlier steps' time

    @property
    def held(self) -> int:
        """Tokens in the cache; 0 while it waits and when it has ended."""
        return self.read + max(0, self.prompt + self.output - self.to_read)

    @property
    def is_read(self) -> bool:
        return self.read >= self.to_read

    @property
    def done(self) -> bool:
        return self.output >= self.most


@dataclass(slots=True)
class EngineCounts:
    """Counts since the engine began."""

    steps: int = 0
    preemptions: int = 0
    prefix_queries: int = 0  # tokens of prompts that were looked up in the cache
    prefix_hits: int = 0  # of these, found
    max_held: int = 0  # the most tokens that were in the cache at once


class SyntheticEngine:
    """`begin_step` and `end_step` alternate; `add` and `abort` may come between them."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.counts = EngineCounts()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._prefixes = _PrefixCache(shape.cache_tokens // max(1, shape.block_tokens))

    def tell_blocks(self, told: Callable[[list[int], list[int]], None]) -> None:
        """From now on `told` is called with the blocks that come into the cache, and with those
        that go then."""
        self._prefixes.told = told

    def known(self, blocks: tuple[int, ...]) -> int:
        """How many blocks of a prompt, from the first one on, are in the cache."""
        return self._prefixes.known(blocks)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.held for sequence in self._running)

    def add(self, owner: Any, prompt: int, most: int, blocks: tuple[int, ...]) -> Sequence:
        """A prompt of so many tokens, 1 or more; it waits for the next step."""
        sequence = Sequence(owner, prompt, most, blocks, prompt)
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Frees what it holds; idempotent."""
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        _release(sequence)

    def forget(self) -> None:
        """Forget all prompts that were read. Only while idle."""
        self._prefixes.forget()

    def begin_step(self) -> float:
        """Seconds that it takes. Not to be called while idle."""
        reads, shape = self._fill(), self.shape
        base_s = shape.base_s / max(1, len(self._running))
        total_s = 0.0
        for sequence in self._running:
            gives_s = 0.0 if sequence.chunk else shape.sequence_s
            sequence.part_s = base_s + gives_s + shape.token_s * sequence.chunk
            total_s += sequence.part_s
        self.counts.steps += 1
        self.counts.max_held = max(self.counts.max_held, self.held + reads)
        return total_s

    def end_step(self, drag: float = 1.0) -> list[Sequence]:
        """Who got a token; those that are done have left. `drag`: how many times as long as it
        should the step took."""
        got = []
        for sequence in self._running:
            sequence.device_s += sequence.part_s * drag
            if sequence.chunk:
                sequence.read += sequence.chunk
                sequence.chunk = 0
                if not sequence.is_read:
                    continue
                if not sequence.output and self.shape.block_tokens:
                    self.counts.prefix_queries += sequence.prompt
                    self.counts.prefix_hits += sequence.cached
                self._prefixes.read(sequence.blocks)
            elif not sequence.is_read:
                continue
            sequence.output += 1  # the first comes with the last of the reading
            got.append(sequence)
        for sequence in got:
            if sequence.done:
                self._running.remove(sequence)
                _release(sequence)
        return got

    def _fill(self) -> int:
        """Who is part of the step, and how much each reads; all of that."""
        shape = self.shape
        given = sum(sequence.is_read for sequence in self._running)
        left, reads = max(0, shape.step_tokens - given), 0
        most = shape.chunk_tokens or shape.step_tokens
        for sequence in self._running:
            sequence.chunk = min(sequence.to_read - sequence.read, left, most)
            left -= sequence.chunk
            reads += sequence.chunk
        self._make_room(reads + given)
        room = shape.cache_tokens - self.held - reads - given
        while self._waiting and left > 0 and len(self._running) < shape.max_sequences:
            sequence = self._waiting[0]
            known = self._prefixes.known(sequence.blocks) * shape.block_tokens
            sequence.read = min(known, sequence.to_read - 1)  # the last is where output begins
            if not sequence.output:
                sequence.cached = min(sequence.read, sequence.prompt - 1)
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

    def _make_room(self, tokens: int) -> None:
        while len(self._running) > 1 and self.held + tokens > self.shape.cache_tokens:
            last = self._running.pop()
            tokens -= last.chunk or 1
            _release(last)
            self._waiting.appendleft(last)
            self.counts.preemptions += 1


def _release(sequence: Sequence) -> None:
    """Its tokens leave the cache. Where it is to go on, all of them are read again."""
    sequence.read, sequence.chunk = 0, 0
    sequence.to_read = sequence.prompt + sequence.output


class _PrefixCache:
    """Blocks of prompts that were read lately, `most` of them. The ends of prompts are forgotten
    before their starts, so that all before a known block is known."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._blocks: OrderedDict[int, None] = OrderedDict()  # used least recently first
        self.told: Callable[[list[int], list[int]], None] | None = None

    def known(self, blocks: tuple[int, ...]) -> int:
        """How many of them, from the first one on."""
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)

    def forget(self) -> None:
        removed = list(self._blocks)
        self._blocks.clear()
        if self.told is not None and removed:
            self.told([], removed)

    def read(self, blocks: tuple[int, ...]) -> None:
        stored = [] if self.told is None else [b for b in blocks if b not in self._blocks]
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        removed = []
        while len(self._blocks) > self._most:
            removed.append(self._blocks.popitem(last=False)[0])
        if self.told is not None and (stored or removed):
            self.told(stored, removed)
