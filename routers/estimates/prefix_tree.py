"""Which replicas have read the start of a prompt before?

One tree of prompts a model, kept flat: the hash of a block stands for all tokens before it too, so
a replica's part of the tree is the set of hashes that it holds, and how far a prompt is known there
is found by bisection. Blocks used least recently are forgotten, the ends of prompts before their
starts, as engines do: per replica beyond what its cache can hold, and over all replicas beyond the
model's bound.

Of a replica that tells what its cache holds, that is what it holds, whoever sent it there and
whatever it has dropped since, and what runs there is about to be read. Of any other this is the
gateway's own account: an estimate. Work: O(log blocks) a replica to look, O(blocks) to remember.
Sources: RadixAttention (SGLang) and its router; Preble (ICLR'25); vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from routers.api.events import BlocksHeld

_BYTES: Final = 8


def blocks_of(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """Hashes of a prompt's whole blocks of tokens, each over all tokens up to its block's end, the
    first block first.

    Two prompts share as many blocks as their hashes are equal from the start. A hash has 64 bits;
    where two blocks are taken for one, that costs a wrong preference and nothing else. The hash is
    the same in every process, whatever its hash seed. A last block that is not full has no hash,
    because engines share whole blocks only. Empty where `block_tokens` is 0. Raises OverflowError
    for an id outside 0 .. 2^32 - 1.
    """
    if block_tokens < 1:
        return ()
    tokens = array("I", token_ids)
    data, step = tokens.tobytes(), block_tokens * tokens.itemsize
    so_far = blake2b(digest_size=_BYTES)
    found = []
    for end in range(step, len(data) + 1, step):
        so_far.update(data[end - step : end])
        found.append(int.from_bytes(so_far.copy().digest(), "little"))
    return tuple(found)


@dataclass(slots=True)
class _Told:
    """What a replica has told of itself. Until that is `complete`, the estimate is used."""

    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    # What is being read there, or will be: blocks of open leases, and how many of these have each.
    expected: dict[int, int] = field(default_factory=dict)
    complete: bool = False


class PrefixTree:
    """The blocks that each replica has cached, or is thought to. `most`: blocks remembered over all
    replicas."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[str, OrderedDict[int, None]] = {}  # estimates
        self._told: dict[str, _Told] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values())) + sum(len(t.held) for t in self._told.values())

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas of which anything is remembered."""
        return tuple(dict.fromkeys((*self._held, *self._told)))

    def is_told(self, replica_id: str) -> bool:
        """Whether the replica itself says what it holds."""
        told = self._told.get(replica_id)
        return told is not None and told.complete

    @property
    def told_replicas(self) -> int:
        """Number of replicas that say themselves what they hold."""
        return sum(told.complete for told in self._told.values())

    def match(self, replica_id: str, blocks: tuple[int, ...]) -> int:
        """How many blocks, from the first one on, the replica has read."""
        told = self._told.get(replica_id)
        if told is not None and told.complete:
            held, expected = told.held, told.expected
            return bisect_left(
                blocks, True, key=lambda block: block not in held and block not in expected
            )
        known = self._held.get(replica_id)
        if not known:
            return 0
        return bisect_left(blocks, True, key=lambda block: block not in known)

    def matches(self, blocks: tuple[int, ...]) -> dict[str, int]:
        """The same for each replica that has read any of the blocks."""
        if not blocks:
            return {}
        found = {each: self.match(each, blocks) for each in self.replicas}
        return {replica_id: length for replica_id, length in found.items() if length}

    def read(self, replica_id: str, blocks: tuple[int, ...], room: int) -> None:
        """The replica reads this prompt now. It can hold `room` blocks in all."""
        told = self._told.get(replica_id)
        if told is not None:
            for block in reversed(blocks):
                told.expected[block] = told.expected.get(block, 0) + 1
                if block in told.held:
                    told.held.move_to_end(block)
            if told.complete:
                return
        held = self._held.setdefault(replica_id, OrderedDict())
        for block in reversed(blocks):  # so that the first block is forgotten last
            held[block] = None
            held.move_to_end(block)
        _trim(held, max(1, room))
        if len(self._held) * room > self.most:
            self._share_out()

    def done(self, replica_id: str, blocks: tuple[int, ...]) -> None:
        """A prompt that the replica was to read has been answered, or never will be."""
        told = self._told.get(replica_id)
        if told is None:
            return
        for block in blocks:
            left = told.expected.get(block, 0) - 1
            if left > 0:
                told.expected[block] = left
            else:  # it may have been sent before the replica told of anything
                told.expected.pop(block, None)

    def told(self, event: BlocksHeld) -> None:
        """The replica says what it holds."""
        replica_id = event.replica_id
        told = self._told.get(replica_id)
        if told is None:
            if not event.whole:
                return  # the beginning was told before the replica was listed, and is not known
            told = self._told[replica_id] = _Told()
        if event.whole:
            if told.complete:  # the best estimate until it has told the rest
                self._held[replica_id] = told.held
            told.held, told.complete = OrderedDict(), False
        for block in event.removed:
            told.held.pop(block, None)
        told.held.update(dict.fromkeys(reversed(event.stored)))
        if not event.partial:
            told.complete = True
            self._held.pop(replica_id, None)
        self._share_out()

    def _share_out(self) -> None:
        """Beyond the bound the replicas that hold most are known less of, not those that are heard
        last. Some room is left, so that this is done now and then, not for each change."""
        if len(self) <= self.most:
            return
        room = self.most - self.most // 64
        every = (*self._held.values(), *(told.held for told in self._told.values()))
        for place, held in enumerate(sorted(every, key=len)):
            _trim(held, room // (len(every) - place))
            room -= len(held)

    def forget(self, replica_id: str) -> None:
        """The replica is gone, with what it held."""
        self._held.pop(replica_id, None)
        self._told.pop(replica_id, None)


def _trim(held: OrderedDict[int, None], most: int) -> None:
    while len(held) > most:
        held.popitem(last=False)
