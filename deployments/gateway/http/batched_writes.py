"""Writes the answers of one turn of the event loop together, one connection after the other.

When a batch is done, its answers are encoded within one turn. Each system call that writes one
wakes its client's process, which sleeps again before the next answer comes. Written together, they
wake it once; and the parts of one answer go out in one call.
Measured gain: docs/decisions/0054-one-gateway-takes-its-callers-itself.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

MAX_BYTES = 16_384  # that a connection keeps back: more is written at once, so flow control holds
logger = logging.getLogger("headrace.gateway")
_unsent: dict[asyncio.AbstractEventLoop, list[BatchedTransport]] = {}


class BatchedTransport:
    """An asyncio transport whose writes leave it at the loop's next turn, or when anything else is
    asked of it. What it does not define itself is the transport's own."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._kept: list[bytes] = []
        self._bytes = 0
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing

    def write(self, data: bytes) -> None:
        """After `write_eof` nothing goes out any more: the connection only lingers."""
        if self._ended:
            return
        if not self._kept:
            _send_later(self)
        self._kept.append(data)
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            self.send()

    def send(self) -> None:
        """Hand what is kept to the transport."""
        if self._kept:
            data = self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)
            self._kept, self._bytes = [], 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.write(b"".join(lines))

    def write_eof(self) -> None:
        self.send()
        self._ended = True
        self._transport.write_eof()

    def close(self) -> None:
        self.send()
        self._transport.close()

    def abort(self) -> None:
        self._kept, self._bytes = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        kept: int = self._bytes + self._transport.get_write_buffer_size()
        return kept


def _send_later(transport: BatchedTransport) -> None:
    loop = asyncio.get_running_loop()
    waiting = _unsent.setdefault(loop, [])
    if not waiting:
        loop.call_soon(_send, loop)
    waiting.append(transport)


def _send(loop: asyncio.AbstractEventLoop) -> None:
    for each in _unsent.pop(loop):
        try:
            each.send()
        except Exception:  # the others' answers must not wait for this connection
            logger.exception("a connection took no answer and is ended")
            each.abort()
