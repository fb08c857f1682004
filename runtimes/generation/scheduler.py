"""Which sequences does the engine's next step read or continue, and by how many tokens each?

A step gives each sequence whose prompt has been read one more token. The rest of `step_tokens`
reads prompts, the most urgent first and in the order of arrival, a long one over several steps:
those that are being answered wait for no more than one such step. A sequence joins while there are
fewer than `max_sequences` and the cache has room for its prompt. If the cache runs full, the least
urgent sequence that came last gives up its place and is read again later (preemption).

What has ended stays in the cache until its room is needed. A prompt that begins alike, in whole
blocks and with the same salt, is read on from there. Pure: whoever calls it owns what `cache`
holds. Source: Orca (OSDI'22) for steps; Sarathi-Serve (OSDI'24) for prompts in parts.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BLOCK_TOKENS = 16  # prompts share the cache in units of so many
MAX_KEPT = 64  # ended sequences; each prompt is compared with all of them
Ids = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class Sequence:
    """One output that the engine generates. Unit: tokens. `prompt`: int64, the same array for all
    outputs of one prompt. Only the scheduler writes the fields below `salt`."""

    owner: Any  # whoever added it; opaque here
    prompt: Ids
    priority: int  # 0 is the most urgent
    salt: str
    cache: Any = None  # what holds its keys and values, while it runs; opaque here
    read: int = 0  # in the cache
    cached: int | None = None  # of the prompt, found in the cache when it first joined
    output: list[int] = field(default_factory=list)
    arrival: int = 0
    running: bool = False
    counted: int = 0  # of its blocks, those that it holds
    _blocks: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def unread(self) -> int:
        return self.length - self.read

    @property
    def held(self) -> int:
        """Places of the cache, with the one that its last token is about to take."""
        if not self.running:
            return 0
        return self.read + 1 if self.unread == 1 else self.read

    def tokens(self, start: int, count: int) -> Ids:
        """Those of the prompt and the output together."""
        end, inputs = start + count, len(self.prompt)
        part = self.prompt[start:end]
        if end <= inputs:
            return part
        output = self.output[max(start - inputs, 0) : end - inputs]
        return np.concatenate([part, np.asarray(output, dtype=np.int64)])

    def blocks(self, tokens: int) -> list[int]:
        """Of its first so many tokens, the whole blocks: each a hash of all tokens up to its end,
        and of the salt."""
        known, wanted = self._blocks, tokens // BLOCK_TOKENS
        while len(known) < wanted:
            before = known[-1] if known else hash(self.salt)
            ids = self.tokens(len(known) * BLOCK_TOKENS, BLOCK_TOKENS)
            known.append(hash((before, ids.tobytes())))
        return known[:wanted]


@dataclass(frozen=True, slots=True)
class Reads:
    """A sequence's part of a step: so many of its tokens; `draws`: it then gets another one."""

    sequence: Sequence
    start: int
    count: int
    draws: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """What the engine may hold, and do in a step."""

    max_sequences: int
    cache_tokens: int
    step_tokens: int


@dataclass(slots=True)
class Counts:
    """Since the engine began."""

    steps: int = 0
    preemptions: int = 0
    prefix_queries: int = 0  # tokens of prompts that were looked up in the cache
    prefix_hits: int = 0  # of these, found


@dataclass(frozen=True, slots=True)
class _Kept:
    """What an ended sequence leaves in the cache."""

    salt: str
    ids: Ids
    cache: Any
    blocks: list[int]


class _Held:
    """The blocks in the cache, and how many sequences have each. `told`: of what comes and goes."""

    def __init__(self, told: Callable[[list[int], list[int]], None]) -> None:
        self._told = told
        self._holders = Counter[int]()

    def add(self, blocks: list[int]) -> None:
        self._holders.update(blocks)
        if new := [block for block in blocks if self._holders[block] == 1]:
            self._told(new, [])

    def take_off(self, blocks: list[int]) -> None:
        self._holders.subtract(blocks)
        if gone := [block for block in blocks if not self._holders[block]]:
            for block in gone:
                del self._holders[block]
            self._told([], gone)


class Scheduler:
    """`plan` and `read` alternate; `add` and `remove` may come between them. `begin(source, tokens,
    moves)` makes a sequence's cache, whose first tokens are those of `source` (None: it is empty).
    `moves`: nobody else needs the source, which may be turned into the new one. Nothing else refers
    to a cache once its sequence has ended and is forgotten, so all that are held never have more
    places than `cache_tokens`, but for what a step is reading of those that end meanwhile.
    `told(stored, removed)`: what changes of the blocks that are held."""

    def __init__(
        self,
        shape: Shape,
        begin: Callable[[Any, int, bool], Any],
        told: Callable[[list[int], list[int]], None] = lambda stored, removed: None,
    ) -> None:
        self.shape = shape
        self.counts = Counts()
        self._begin = begin
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._running: list[Sequence] = []  # in the order of urgency, then of arrival
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # used least recently first
        self._kept_tokens = 0
        self._held = _Held(told)
        self._arrivals = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        return sum(sequence.held for sequence in self._running)

    @property
    def _room(self) -> int:
        """Places that nobody who runs has or will need for what it has to read."""
        return self.shape.cache_tokens - sum(sequence.length for sequence in self._running)

    def add(self, sequence: Sequence) -> None:
        """It waits for the next step."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It has ended or is not wanted any more; idempotent."""
        if sequence.running:
            self._running.remove(sequence)
            sequence.running = False
            self._keep(sequence, sequence.read, sequence.cache)
            self._give_up(sequence)
            sequence.cache = None
        else:
            found = [entry for entry in self._waiting if entry[2] is not sequence]
            if len(found) < len(self._waiting):
                heapq.heapify(found)
                self._waiting = found

    def forget(self) -> None:
        """Forget what has ended."""
        while self._kept:
            self._dropped(next(iter(self._kept)))

    def drop(self, sequence: Sequence) -> None:
        """As `remove`, but what it has in the cache is of no use."""
        sequence.read = 0
        self.remove(sequence)

    def plan(self) -> list[Reads]:
        """The next step; empty: there is nothing to do."""
        shape = self.shape
        parts = []
        left = shape.step_tokens
        self._make_room()
        for sequence in self._running:
            if sequence.unread == 1:
                parts.append(Reads(sequence, sequence.read, 1, draws=True))
                left -= 1
        for sequence in [each for each in self._running if each.unread > 1]:
            if left > 0:
                parts.append(_part(sequence, min(sequence.unread, left)))
                left -= parts[-1].count
        parts += self._joining(left)
        self._forget()
        self.counts.steps += bool(parts)
        return parts

    def read(self, parts: list[Reads]) -> None:
        """The step is done. Those who got a token have it in `output` once their owner put it
        there."""
        for part in parts:
            sequence, end = part.sequence, part.start + part.count
            if sequence.running:
                sequence.read = end
                self._count(sequence)
            elif sequence.arrival in self._kept:  # it left while it was read
                self._keep(sequence, end, self._dropped(sequence.arrival).cache)

    # ---- who joins and who leaves ---------------------------------------------------------------

    def _joining(self, left: int) -> Iterator[Reads]:
        copied: set[int] = set()  # kept ones that have to stay for this step
        while self._waiting and left > 0 and len(self._running) < self.shape.max_sequences:
            sequence = self._waiting[0][2]
            alike = [each for each in self._running if each.prompt is sequence.prompt]
            if alike and all(each.read < len(each.prompt) for each in alike):
                return  # its prompt is being read for another output
            rest = self._room - sequence.length - sum(len(self._kept[key].ids) for key in copied)
            if rest < 0:
                return
            heapq.heappop(self._waiting)
            found, source, key = self._beginning(sequence)
            moves = False
            if key is not None and key not in copied:
                moves = len(self._kept[key].ids) > rest
                self._dropped(key) if moves else copied.add(key)
            self._join(sequence, found, self._begin(source, found, moves))
            part = _part(sequence, min(sequence.unread, left))
            left -= part.count
            yield part

    def _join(self, sequence: Sequence, found: int, cache: Any) -> None:
        sequence.running = True
        sequence.read, sequence.cache = found, cache
        if sequence.cached is None:
            sequence.cached = min(found, len(sequence.prompt))
            self.counts.prefix_queries += len(sequence.prompt)
            self.counts.prefix_hits += sequence.cached
        self._count(sequence)
        self._running.append(sequence)
        self._running.sort(key=lambda each: (each.priority, each.arrival))

    def _make_room(self) -> None:
        while len(self._running) > 1 and self._room < 0:
            last = self._running.pop()
            last.running = False
            self._give_up(last)
            last.read, last.cache = 0, None
            self.counts.preemptions += 1
            self._wait(last)

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.priority, sequence.arrival, sequence))

    # ---- beginnings that are known --------------------------------------------------------------

    def _beginning(self, sequence: Sequence) -> tuple[int, Any, int | None]:
        """How many of its tokens are in the cache for another one, in whole blocks and without the
        last, which is always read; where; and as which of those that have ended."""
        wanted = sequence.tokens(0, sequence.length - 1)
        best, source, used = 0, None, None
        for key, kept in self._kept.items():
            if kept.salt == sequence.salt:
                same = _common(wanted, kept.ids)
                if same > best:
                    best, source, used = same, kept.cache, key
        for other in self._running:
            if other.salt == sequence.salt and other.read > best:
                same = _common(wanted, other.tokens(0, other.read))
                if same > best:
                    best, source, used = same, other.cache, None
        if used is not None:
            self._kept.move_to_end(used)
        return best, source, used

    def _keep(self, sequence: Sequence, read: int, cache: Any) -> None:
        if read < BLOCK_TOKENS:
            return
        ids = sequence.tokens(0, read)
        kept = _Kept(sequence.salt, ids, cache, sequence.blocks(read))
        self._held.add(kept.blocks)
        self._kept[sequence.arrival] = kept
        self._kept_tokens += len(ids)
        self._forget()

    def _dropped(self, key: int) -> _Kept:
        kept = self._kept.pop(key)
        self._kept_tokens -= len(kept.ids)
        self._held.take_off(kept.blocks)
        return kept

    def _count(self, sequence: Sequence) -> None:
        """It runs, and has read more than before."""
        blocks = sequence.blocks(sequence.read)
        self._held.add(blocks[sequence.counted :])
        sequence.counted = len(blocks)

    def _give_up(self, sequence: Sequence) -> None:
        """It runs no more."""
        self._held.take_off(sequence.blocks(sequence.counted * BLOCK_TOKENS))
        sequence.counted = 0

    def _forget(self) -> None:
        """Ended sequences whose room is needed."""
        while self._kept and (self._kept_tokens > self._room or len(self._kept) > MAX_KEPT):
            self._dropped(next(iter(self._kept)))


def _part(sequence: Sequence, count: int) -> Reads:
    return Reads(sequence, sequence.read, count, draws=count == sequence.unread)


def _common(one: Ids, other: Ids) -> int:
    """Tokens that both begin with, in whole blocks."""
    most = min(len(one), len(other)) // BLOCK_TOKENS * BLOCK_TOKENS
    differ = np.flatnonzero(one[:most] != other[:most])
    return (int(differ[0]) if len(differ) else most) // BLOCK_TOKENS * BLOCK_TOKENS
