"""Bounds on what a connection may cost before it is a request: HAProxy's, at the gateway itself.

Serve's server in every gateway listens where HAProxies of other nodes can reach it, so others can,
too; uvicorn waits for headers for ever and takes any number of any size. Here, as behind HAProxy, a
head that is not whole in time closes the connection without a word (which it also does to one that
never asks); one that is too large, or has too many headers, is refused with 400. The bounds are
HAProxy's own: its buffer less what it keeps free for rewriting, and 100 headers (HAProxy gives a
few more places; `tune.http.maxhdr` is 101).
Trailers are dropped: they stand behind the body, and uvicorn appends them to the headers, where
they would say who the caller is after whoever stands before us has looked. What comes without being
a part of a body (trailers, extensions of chunks) is bounded as a head is.
A request that asks for an upgrade (WebSocket, h2c, CONNECT) is refused with 400: httptools reads no
body behind such a head, and takes the body's bytes for the connection's next request, so that
whoever stands before us and reads a body there would let a request through that it never saw; and
uvicorn waits for ever for who sends one with a WebSocket's handshake.
It costs 0.8 us a request. uvicorn's reader of X-Forwarded-For is left out: it looks through all
headers once more to write over the connection's own address, by which connections are counted; what
the header says is read where it is asked for (`Exchange.caller_address`).
A client that takes its answer more slowly than bodies may come is cut off, too: what it has not
taken waits here, behind HAProxy with a place of the gateway's. Only what the sockets do not hold is
looked at, so that a client that takes a small answer never is no matter of this one; and they are
kept from growing to the system's megabytes, where nothing could be counted.
A connection that ended its last request is uvicorn's keep-alive time's, not this one's.
As many may wait to be accepted as HAProxy lets through to a gateway by default (4,064), so that a
burst, while the loop is busy, is not taken for a gateway that is down.
What is used of uvicorn and not public is held in place by tests/deployments/gateway/http.
Source: HAProxy 2.8, `tune.bufsize`, `tune.maxrewrite`, `tune.http.maxhdr`.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from typing import Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http import auto, httptools_impl

MOST_HEADERS = 100
MOST_HEAD_BYTES = 15_360
LISTEN_QUEUE = 4096  # Linux's own bound, net.core.somaxconn
_head_s = 30.0
_LOOK_S = 60.0  # between looks at what a slow client has taken: sockets take in lumps of 100 KB
_SOCKET_BYTES = 131_072  # 128 KiB and the system's own: at 0.1 ms to HAProxy more than 1 GB/s
_INT = bytes(4)
_min_bytes_per_s = 0.0


class _Dropped(list[tuple[bytes, bytes]]):
    def append(self, _: tuple[bytes, bytes]) -> None: ...


_TRAILERS = _Dropped()


class TooLarge(Exception):
    """A head has too many headers or bytes. uvicorn answers what its parser's callbacks raise with
    400, and closes the connection."""


class UpgradeRefused(Exception):
    """A head asks for another protocol on its connection. Answered as `TooLarge` is."""


class StrictProtocol(httptools_impl.HttpToolsProtocol):
    """One connection. `_head_bytes`: what came of a head that is not whole, at least, or of a body
    without being a part of it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if isinstance(self.app, ProxyHeadersMiddleware):
            self.app = self.app.app
        self._head_bytes = 0
        self._got_body = False
        self._deadline: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._untaken = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (own := transport.get_extra_info("socket")) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_looking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._got_body, before = False, self.scope
        super().data_received(data)
        if self._has_head():
            if self._deadline is not None:
                self._stop_clock()
            if self._got_body or self.scope is not before or not self._wants_more():
                self._head_bytes = 0
            elif self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's trailers are too large.")
        elif self.transport.is_closing():
            self._stop_clock()
        elif self._head_bytes > MOST_HEAD_BYTES:
            self._stop_clock()
            self.send_400_response("The request's headers are too large.")
        elif self._deadline is None:
            self._start_clock()

    def _has_head(self) -> bool:
        """Of the last request that began. uvicorn makes a scope when one begins, and writes the
        method into it when its head is whole."""
        return self.scope is not None and "method" in self.scope

    def on_headers_complete(self) -> None:
        # Bytes are looked at only where more came than a head may have.
        if len(self.headers) > MOST_HEADERS or (
            self._head_bytes > MOST_HEAD_BYTES and _size(self.url, self.headers) > MOST_HEAD_BYTES
        ):
            raise TooLarge
        if self.parser.should_upgrade():
            raise UpgradeRefused
        super().on_headers_complete()
        self.headers = _TRAILERS

    def _wants_more(self) -> bool:
        """Of the body. uvicorn makes no cycle of a request whose URL it cannot read."""
        return self.cycle is not None and self.cycle.more_body

    def on_body(self, body: bytes) -> None:
        self._got_body = True
        super().on_body(body)

    def pause_writing(self) -> None:
        """The client is behind by more than a socket holds."""
        super().pause_writing()
        if _min_bytes_per_s and self._looking is None:
            self._look_later()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def _look_later(self) -> None:
        self._untaken = _untaken(self.transport)
        self._looking = self.loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Nothing is added meanwhile: who writes waits until the client has caught up."""
        self._looking = None
        if self._untaken - _untaken(self.transport) < _min_bytes_per_s * _LOOK_S:
            self.transport.abort()
        else:
            self._look_later()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _start_clock(self) -> None:
        self._deadline = self.loop.call_later(_head_s, self._close_unasked)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_unasked(self) -> None:
        self._deadline = None
        if not self._has_head():
            self.transport.close()


class ListeningConfig(uvicorn.Config):
    """Serve says nothing of the listen queue, and uvicorn's own is 2,048."""

    def __init__(self, app: Any, *, backlog: int = LISTEN_QUEUE, **more: Any) -> None:
        super().__init__(app, backlog=backlog, **more)


def _untaken(transport: Any) -> int:
    """Bytes that the other end has not taken: kept here, and in the socket's queue, where the
    system tells of it."""
    kept: int = transport.get_write_buffer_size()
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, _INT)
    except OSError:
        return kept
    return kept + int.from_bytes(queued, sys.byteorder)


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def enforce(head_s: float | None = None, min_bytes_per_s: float | None = None) -> None:
    """Makes every server that this process starts from now on bound heads; `head_s`: seconds in
    which they must arrive, `min_bytes_per_s`: at which answers must be taken, 0: any; from now on,
    at servers that run already, too."""
    global _head_s, _min_bytes_per_s
    auto.AutoHTTPProtocol = StrictProtocol
    uvicorn.Config = ListeningConfig  # type: ignore[misc, assignment]
    if head_s is not None:
        _head_s = head_s
    if min_bytes_per_s is not None:
        _min_bytes_per_s = min_bytes_per_s
