"""What one gateway's requests have brought since the last message to it, merged a request.

A request's data are joined and its newest counts kept, so that what a slow gateway leaves unread
grows by its bytes alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deployments.contract.wire import Piece, StreamEnd
from runtimes.types import Chunk

_NOTHING = Chunk(b"", 0, 0, 0, 0)


@dataclass(slots=True)
class _Gathered:
    last: Chunk
    data: list[bytes] = field(default_factory=list)
    service_s: float = 0.0
    end: StreamEnd | None = None


class Outbox:
    def __init__(self) -> None:
        self._gathered: dict[int, _Gathered] = {}
        self._wake = asyncio.Event()

    def put(self, lease_id: int, chunk: Chunk, service_s: float) -> None:
        entry = self._entry(lease_id)
        entry.last = chunk
        entry.service_s = service_s
        if chunk.data:
            entry.data.append(chunk.data)

    def end(self, lease_id: int, end: StreamEnd, last: Chunk | None, service_s: float) -> None:
        """`last`: the newest chunk, whose counts stay true; None where there was none."""
        entry = self._entry(lease_id)
        entry.last = last or _NOTHING
        entry.service_s = service_s
        entry.end = end

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, limit_s: float) -> None:
        """Returns when there is something to take, or after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def take(self) -> tuple[Piece, ...]:
        """All of it, in the order in which requests had something first."""
        self._wake.clear()
        taken, self._gathered = self._gathered, {}
        return tuple(_piece(lease_id, entry) for lease_id, entry in taken.items())

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
