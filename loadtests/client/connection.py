"""One keep-alive connection that carries one request at a time.

A `ClientConnection` writes rendered bytes (an `asyncio.Protocol` with no HTTP library), feeds
what comes back to the parser and tells its owner of exactly one of `answered` or `broke` a
request. Connecting, pacing, counting and time-outs are the owner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from loadtests.client.http1 import InvalidResponse, Response, ResponseParser


class Owner(Protocol):
    """Who hears of a connection. After `broke` it may be connected anew and used again."""

    def answered(self, connection: ClientConnection, answer: Response) -> None: ...
    def broke(self, connection: ClientConnection, kind: str) -> None: ...


class ClientConnection(asyncio.Protocol):
    """`busy`: a request is out. `sent_at` and `slot` are the owner's notes on that request."""

    __slots__ = ("_owner", "_parser", "_transport", "abandoned", "busy", "sent_at", "slot")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self.busy = False
        self.abandoned = ""
        self.sent_at = 0.0
        self.slot = 0

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def ask(self, request: bytes, now: float, tap: Callable[[bytes], None] | None = None) -> None:
        """`tap` hears the answer's body as it comes."""
        assert self._transport is not None
        self._parser.tap = tap
        self.busy = True
        self.sent_at = now
        self._transport.write(request)

    def abandon(self, kind: str) -> None:
        """Resets the connection; `broke(kind)` follows."""
        self.abandoned = kind
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = ResponseParser()
        self.abandoned = ""

    def data_received(self, data: bytes) -> None:
        if self.abandoned:
            return
        try:
            answer = self._parser.feed(data)
        except InvalidResponse:
            self.abandon("bad answer")
            return
        if answer is not None:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        answer = None if self.abandoned else self._parser.end()
        if answer is not None and self.busy:
            self._finish(answer)
            return
        half = "cut off" if self._parser.started else "closed"
        was_busy, self.busy = self.busy, False
        self._owner.broke(self, self.abandoned or (half if was_busy else "idle closed"))

    def _finish(self, answer: Response) -> None:
        if not self.busy:
            self.abandon("unasked answer")
            return
        self.busy = False
        if not answer.keep_alive and self._transport is not None:
            self._transport.close()
            self._transport = None
        self._owner.answered(self, answer)
