"""A model of an engine that batches by itself: steps, a cache of blocks, shared prefixes.

Each step gives every running sequence a token and spends what is left of `step_tokens` on prompts
that are being read, the oldest first (chunked prefill); it takes `base + per_sequence x decoding +
per_prefill_token x read`. Sequences join while the cache has room for their prompts; when it runs
out the one that joined last gives its blocks back and begins anew (preemption by recomputation).
Whole blocks of a prompt that was read stay in the cache until their room is needed, and are not
read again. Pure: the caller lets time pass. After vLLM's scheduler, far simplified.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Milli- and microseconds of a step; sizes in tokens and sequences. block_tokens: the unit in
    which the cache is given out."""

    base_ms: float = 2.0
    per_sequence_us: float = 0.0
    per_prefill_token_us: float = 0.0
    step_tokens: int = 2048
    max_sequences: int = 64
    cache_tokens: int = 65536
    block_tokens: int = 16
    prefix_cache: bool = True


@dataclass(slots=True, eq=False)
class Sequence:
    """`prompt`: its token ids; `most`: output tokens it is to get. The rest is the engine's:
    `ready`: tokens whose state is in the cache; `cached` of them were there before; `hashes`:
    chained, of the prompt's whole blocks."""

    prompt: tuple[int, ...]
    most: int
    output: int = 0
    ready: int = 0
    cached: int = 0
    blocks: int = 0
    shared: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + self.output

    @property
    def decodes(self) -> bool:
        """All but its newest token has been read."""
        return self.output > 0 and self.ready >= self.length - 1

    @property
    def done(self) -> bool:
        return self.output >= self.most


class SyntheticEngine:
    """The unit of all its accounts is one block."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self._all = shape.cache_tokens // shape.block_tokens
        self._used = 0  # by sequences, shared ones counted once
        self._users: dict[int, int] = {}  # a shared block's hash -> sequences that use it
        self._idle: OrderedDict[int, None] = OrderedDict()  # blocks that none uses, oldest first
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.preemptions = self.prefix_queries = self.prefix_hits = self.steps = 0

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
    def cache_used(self) -> float:
        return self._used / self._all

    def add(self, sequence: Sequence) -> None:
        sequence.hashes = self._hashes(sequence.prompt)
        self._waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Frees what it holds; idempotent."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._free(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def step(self) -> tuple[float, list[Sequence]]:
        """Seconds of the step, and who got a token at its end. Those that are done have left."""
        self.steps += 1
        self._join()
        decoding = [s for s in self._running if s.decodes]
        decoding = [s for s in decoding if self._grow(s)]
        read, finished_reading = self._read(self.shape.step_tokens - len(decoding))
        seconds = self.shape.base_ms / 1e3
        seconds += (self.shape.per_sequence_us * len(decoding)) / 1e6
        seconds += (self.shape.per_prefill_token_us * read) / 1e6
        got = [*decoding, *finished_reading]
        for sequence in got:
            sequence.ready = sequence.length
            sequence.output += 1
            if sequence.done:
                self._running.remove(sequence)
                self._free(sequence)
        return seconds, got

    def _join(self) -> None:
        while self._waiting and len(self._running) < self.shape.max_sequences:
            sequence = self._waiting[0]
            hits = list(itertools.takewhile(self._knows, sequence.hashes))
            need = self._blocks(sequence.length + 1) - len(hits)
            revived = sum(h in self._idle for h in hits)
            if need + revived > self._all - self._used:
                return
            self._waiting.popleft()
            for h in hits:
                self._use(h)
            sequence.shared = hits
            sequence.blocks = need
            self._used += need
            sequence.ready = sequence.cached = len(hits) * self.shape.block_tokens
            self.prefix_queries += len(sequence.prompt) if self.shape.prefix_cache else 0
            self.prefix_hits += sequence.cached
            self._running.append(sequence)
            self._evict()

    def _read(self, room: int) -> tuple[int, list[Sequence]]:
        """Tokens read and the sequences whose prompts are now read."""
        read, whole = 0, []
        for sequence in self._running:
            if sequence.decodes or room <= 0:
                continue
            part = min(sequence.length - sequence.ready, room)
            sequence.ready += part
            read += part
            room -= part
            if sequence.ready >= sequence.length:
                self._share(sequence)
                whole.append(sequence)
        return read, whole

    def _grow(self, sequence: Sequence) -> bool:
        """Room for one more token; others give theirs back where there is none. Whether it runs
        on."""
        if sequence not in self._running:
            return False  # preempted for another a moment ago
        while self._blocks(sequence.length + 1) > sequence.blocks + len(sequence.shared):
            if self._used < self._all:
                sequence.blocks += 1
                self._used += 1
                self._evict()
            elif self._preempt() is sequence:
                return False
        return True

    def _preempt(self) -> Sequence:
        sequence = self._running.pop()
        self._free(sequence)
        sequence.ready = 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1
        return sequence

    def _free(self, sequence: Sequence) -> None:
        self._used -= sequence.blocks
        for h in sequence.shared:
            self._users[h] -= 1
            if not self._users[h]:
                del self._users[h]
                self._idle[h] = None
                self._used -= 1
        sequence.blocks = 0
        sequence.shared = []

    def _knows(self, h: int) -> bool:
        return h in self._users or h in self._idle

    def _use(self, h: int) -> None:
        if h in self._idle:
            del self._idle[h]
            self._used += 1
        self._users[h] = self._users.get(h, 0) + 1

    def _share(self, sequence: Sequence) -> None:
        """Its prompt's whole blocks, now read, are there for others."""
        for h in sequence.hashes[len(sequence.shared) :]:
            if self._knows(h):
                self._use(h)
                self._used -= 1  # another has read the same meanwhile: one of the two is given back
            else:
                self._users[h] = 1
            sequence.blocks -= 1
            sequence.shared.append(h)

    def _evict(self) -> None:
        while self._idle and self._used + len(self._idle) > self._all:
            self._idle.popitem(last=False)

    def _hashes(self, prompt: tuple[int, ...]) -> list[int]:
        """Chained, of the whole blocks but for the one with the last token, which is always read:
        the output begins there."""
        if not self.shape.prefix_cache:
            return []
        size, chain, hashes = self.shape.block_tokens, 0, []
        for end in range(size, len(prompt), size):
            chain = hash((chain, prompt[end - size : end]))
            hashes.append(chain)
        return hashes

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_tokens)
