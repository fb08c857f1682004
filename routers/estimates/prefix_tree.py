"""Which replicas have read the start of a prompt before?

One tree of prompts a model, kept flat: the hash of a block stands for all tokens before it too, so
a replica's part of the tree is the set of hashes that it holds, and how far a prompt is known there
is found by bisection. Blocks used least recently are forgotten, the ends of prompts before their
starts, as engines do: per replica beyond what its cache can hold, and over all replicas beyond the
model's bound.

This is the gateway's own account. It does not see what other gateways sent there, nor what the
engine has dropped since. Work: O(log blocks) a replica to look, O(blocks) to remember. Sources:
RadixAttention (SGLang) and its router; Preble (ICLR'25); vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 8


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


class PrefixTree:
    """The blocks that each replica is thought to have cached. `most`: blocks remembered over all
    replicas."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas of which anything is remembered."""
        return tuple(self._held)

    def match(self, replica_id: str, blocks: tuple[int, ...]) -> int:
        """How many blocks, from the first one on, the replica has read."""
        held = self._held.get(replica_id)
        if not held or not blocks or blocks[0] not in held:
            return 0
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in held:
                low = middle
            else:
                high = middle - 1
        return low

    def matches(self, blocks: tuple[int, ...]) -> dict[str, int]:
        """The same for each replica that has read any of the blocks."""
        if not blocks:
            return {}
        found = {each: self.match(each, blocks) for each in self._held}
        return {replica_id: length for replica_id, length in found.items() if length}

    def read(self, replica_id: str, blocks: tuple[int, ...], room: int) -> None:
        """The replica reads this prompt now. It can hold `room` blocks in all."""
        held = self._held.setdefault(replica_id, OrderedDict())
        for block in reversed(blocks):  # so that the first block is forgotten last
            held[block] = None
            held.move_to_end(block)
        _trim(held, max(1, room))
        over = len(self) - self.most if len(self._held) * room > self.most else 0
        if over > 0:
            largest = max(self._held.values(), key=len)
            _trim(largest, max(1, len(largest) - over))

    def forget(self, replica_id: str) -> None:
        """The replica is gone, with what it held."""
        self._held.pop(replica_id, None)


def _trim(held: OrderedDict[int, None], most: int) -> None:
    while len(held) > most:
        held.popitem(last=False)
