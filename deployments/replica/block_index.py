"""Which blocks of prompts does an engine's cache hold, by the names that gateways know them by?

A gateway cuts a prompt into tokens by itself, without the engine's chat template, and knows each
block by a hash. An engine has blocks of its own. A request comes with the gateway's hashes; once
its runtime knows the engine's blocks of the same prompt, each hash stands for the engine's blocks
up to the same share of the prompt. From then on the hash is held while the last of these is.
Hashes are forgotten with their blocks, and the oldest beyond `most`: then gateways know less than
there is. Whoever follows the index is told of each change. Pure; owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.contract.channel.stream_messages import MAX_HASHES
from runtimes.types import BlockAccount


class BlockFollower(Protocol):
    """Who is told what changes."""

    def changed(self, held: Mapping[int, bool]) -> None:
        """These hashes are held now, or no longer."""

    def begins_anew(self) -> None:
        """Nothing that was told holds any more; see the index."""


@dataclass(frozen=True, slots=True)
class _Asked:
    hashes: tuple[int, ...]
    tokens: int  # of the whole prompt, as the gateway counts


class BlockIndex(BlockAccount):
    """The runtime calls all but `follow` and `unfollow`. `known`: whether the engine tells what it
    holds; while it does not, the index is empty."""

    def __init__(self, most: int = MAX_HASHES) -> None:
        self.known = False
        self._most = most
        self._held: set[int] = set()  # blocks of the engine
        # By hash: the engine's block that it stands for, and the request that said so last.
        self._blocks: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # By block of the engine. Where a chat template is longer than a block, all prompts begin
        # with one of its blocks, which then has most hashes.
        self._hashes: dict[int, dict[int, None]] = {}
        self._asked: dict[int, _Asked] = {}  # by request under way
        self._requests = 0
        self._followers: dict[BlockFollower, None] = {}

    def follow(self, follower: BlockFollower) -> None:
        self._followers[follower] = None

    def unfollow(self, follower: BlockFollower) -> None:
        self._followers.pop(follower, None)

    def __len__(self) -> int:
        """Hashes that are known, held or not."""
        return len(self._blocks)

    def held(self) -> Iterable[int]:
        """The hashes that are held, those longest known first."""
        return (each for each, (block, _) in self._blocks.items() if block in self._held)

    # ---- requests -----------------------------------------------------------------------------

    def ask(self, hashes: tuple[int, ...], tokens: int) -> int:
        """0: it brings no hashes."""
        if not hashes:
            return 0
        self._requests += 1
        self._asked[self._requests] = _Asked(hashes, tokens)
        return self._requests

    def locate(self, number: int, blocks: Sequence[int], tokens: int) -> None:
        asked = self._asked.get(number)
        if asked is None or not blocks or not self.known:
            return
        changes: dict[int, bool] = {}
        known, names, held = self._blocks, self._hashes, self._held
        count, last = asked.tokens or tokens, len(blocks)
        for at, each in enumerate(asked.hashes, 1):
            block = blocks[(min(at * tokens // count, last) or 1) - 1]
            before, is_held = known.pop(each, None), block in held
            known[each] = block, number  # behind all others
            if before is not None and before[0] == block:
                continue
            if before is not None:
                self._unlink(each, before[0])
            names.setdefault(block, {})[each] = None
            if is_held is not (before is not None and before[0] in held):
                changes[each] = is_held
        self._forget(changes)
        self._tell(changes)

    def done(self, number: int) -> None:
        """Hashes of blocks that the engine never made are forgotten."""
        asked = self._asked.pop(number, None)
        for each in () if asked is None else asked.hashes:
            block, of = self._blocks.get(each, (0, 0))
            if of == number and block not in self._held:
                del self._blocks[each]
                self._unlink(each, block)

    # ---- the engine's cache -------------------------------------------------------------------

    def update(self, stored: Sequence[int], removed: Sequence[int]) -> None:
        changes: dict[int, bool] = {}
        for block in stored:
            if block not in self._held:
                self._held.add(block)
                for each in self._hashes.get(block, ()):
                    changes[each] = True
        for block in removed:
            if block in self._held:
                self._held.discard(block)
                for each in self._hashes.pop(block, ()):
                    del self._blocks[each]
                    changes[each] = False
        self._tell(changes)

    def replace(self, blocks: Sequence[int]) -> None:
        self._held = set(blocks)
        self.known = True
        self._begin_anew()

    def lose(self) -> None:
        self.known = False
        self._held.clear()
        self._blocks.clear()
        self._hashes.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        for follower in self._followers:
            follower.begins_anew()

    def _tell(self, changes: dict[int, bool]) -> None:
        if changes:
            for follower in self._followers:
                follower.changed(changes)

    def _forget(self, changes: dict[int, bool]) -> None:
        """The oldest hashes beyond the bound."""
        while len(self._blocks) > self._most:
            oldest, (block, _) = self._blocks.popitem(last=False)
            self._unlink(oldest, block)
            changes[oldest] = False

    def _unlink(self, each: int, block: int) -> None:
        named = self._hashes[block]
        del named[each]
        if not named:
            del self._hashes[block]
