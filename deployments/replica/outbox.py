"""What one gateway's requests have produced since the last message to it, merged by request.

A request's data are joined and only its newest counts kept. So what a slow gateway leaves unread
grows by its answers' bytes only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deployments.contract.channel.stream_messages import Piece, StreamEnd
from runtimes.types import Chunk

MAX_MESSAGE_BYTES = 1 << 20  # a message's last piece may exceed it
_NOTHING = Chunk(b"", 0, 0, 0, 0)


@dataclass(slots=True)
class _Gathered:
    last: Chunk
    data: list[bytes] = field(default_factory=list)
    service_s: float = 0.0
    end: StreamEnd | None = None


class Outbox:
    """The pieces for one gateway's next message."""

    def __init__(self) -> None:
        self._gathered: dict[int, _Gathered] = {}
        self._wake = asyncio.Event()

    @property
    def filled(self) -> bool:
        return bool(self._gathered)

    @property
    def ends(self) -> int:
        """Number of requests whose end has not been taken yet."""
        return sum(entry.end is not None for entry in self._gathered.values())

    def put(self, lease_id: int, chunk: Chunk, service_s: float) -> None:
        """Add what a request has produced."""
        entry = self._entry(lease_id)
        entry.last = chunk
        entry.service_s = service_s
        if chunk.data:
            entry.data.append(chunk.data)

    def end(self, lease_id: int, end: StreamEnd, last: Chunk | None, service_s: float) -> None:
        """A request has ended. `last`: its newest chunk, whose counts still hold; None if there was
        none."""
        entry = self._entry(lease_id)
        entry.last = last or _NOTHING
        entry.service_s = service_s
        entry.end = end

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, limit_s: float) -> None:
        """Return when there is something to take, or after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def take(self) -> tuple[Piece, ...]:
        """Take the pieces, in the order in which their requests first had something. What does not
        fit into one message is left for the next."""
        self._wake.clear()
        gathered, self._gathered = self._gathered, {}
        pieces: list[Piece] = []
        size = 0
        for lease_id, entry in gathered.items():
            if size < MAX_MESSAGE_BYTES:
                pieces.append(_piece(lease_id, entry))
                size += len(pieces[-1].data)
            else:
                self._gathered[lease_id] = entry
                self._wake.set()
        return tuple(pieces)

    def _entry(self, lease_id: int) -> _Gathered:
        self._wake.set()
        entry = self._gathered.get(lease_id)
        if entry is None:
            entry = self._gathered[lease_id] = _Gathered(_NOTHING)
        return entry


def _piece(lease_id: int, entry: _Gathered) -> Piece:
    last = entry.last
    return Piece(
        lease_id,
        b"".join(entry.data),
        last.input_tokens,
        last.cached_tokens,
        last.output_tokens,
        last.held_tokens,
        entry.service_s,
        last.status,
        entry.end,
    )
