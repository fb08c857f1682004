"""What is one gateway told of the blocks of prompts that the engine holds, and when?

Changes are gathered, of each hash only the last, and told with the next message that ends a
request, or at the latest after `COALESCE_S`; so many at most in a message. What a gateway is told
first is everything. It is told everything again where it asks for that, where what waits for it
would be more than that, and where the engine had lost count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from math import inf

from deployments.contract.channel.stream_messages import MAX_HASHES, BlocksMessage, packed
from deployments.replica.block_index import BlockIndex

COALESCE_S = 0.05  # as what is told of other gateways (`routers.shared.staging.REPORT_EVERY_S`)
MAX_TOLD = 8192  # hashes of a message: 64 KiB, which a gateway takes in within 2 ms


class ToldBlocks:
    """Of one connection. `wake`: called when there is something to take that no message of a
    request has brought. Follows the index until it is closed."""

    def __init__(self, index: BlockIndex, wake: Callable[[], None]) -> None:
        self._index, self._wake = index, wake
        self._waiting: dict[int, bool] = {}  # by hash: whether it is held
        self._tells = index.known  # an engine that never tells is not spoken of
        self._whole = False  # the next message is to begin anew
        self._complete = False  # all that was held when it began has been told since
        self._number = 0
        self._taken_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        index.follow(self)
        if index.known:
            self._gather_all()

    def close(self) -> None:
        self._index.unfollow(self)
        if self._timer is not None:
            self._timer.cancel()

    # ---- `BlockFollower` ----------------------------------------------------------------------

    def changed(self, held: Mapping[int, bool]) -> None:
        self._waiting.update(held)
        if self._whole:  # none of it was told: what is no longer held need not be taken back
            for each, is_held in held.items():
                if not is_held:
                    del self._waiting[each]
        elif len(self._waiting) > MAX_HASHES:
            self._gather_all()
        self._wake_later()

    def begins_anew(self) -> None:
        if self._index.known or self._tells:
            self._tells = True
            self._gather_all()
            self._wake_later()

    def _gather_all(self) -> None:
        self._whole, self._complete = True, False
        self._waiting = dict.fromkeys(self._index.held(), True)

    # ---- messages -----------------------------------------------------------------------------

    def take(self, now: float, *, ends: bool) -> BlocksMessage | None:
        """The next message; None: there is none due. `now`: seconds of any clock, the same one each
        time. `ends`: a request's end is told with it."""
        if not (self._waiting or self._whole):
            return None
        if not (ends or self._whole) and now - self._taken_at < COALESCE_S:
            self._wake_later()
            return None
        taken = dict(islice(self._waiting.items(), MAX_TOLD))
        for each in taken:
            del self._waiting[each]
        self._number += 1
        self._complete = self._index.known and (self._complete or not self._waiting)
        message = BlocksMessage(
            self._number,
            packed([each for each, held in taken.items() if held]),
            packed([each for each, held in taken.items() if not held]),
            whole=self._whole,
            partial=not self._complete,
        )
        self._whole, self._taken_at = False, now
        if self._waiting:
            self._wake_later()
        return message

    def _wake_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._wakes)

    def _wakes(self) -> None:
        self._timer = None
        self._wake()
