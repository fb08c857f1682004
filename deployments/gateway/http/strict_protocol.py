"""Bounds on what a connection may cost before it is a request: HAProxy's, at the gateway itself.

Every gateway listens where other nodes reach it, and uvicorn waits for headers for ever and takes
any number of any size. Here a head that is not whole in time closes the connection; one that is too
large or has too many headers gets 414 or 431, and what cannot be parsed 400. The bounds are
HAProxy's own (`haproxy_rules`). Trailers are dropped and bounded. An offer of another protocol is
ignored, CONNECT is refused. A client that takes its answer more slowly than bodies may come is cut
off. It costs 0.8 us per request. tests/deployments/gateway/http hold what is used of uvicorn and
not public.
Source: RFC 9110 §7.8, §10.1.1; RFC 9112 §9.6.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import sys
import termios
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote
from weakref import WeakSet

import httptools
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http import auto, httptools_impl
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from deployments.contract import errors
from deployments.gateway.http.protocols import error_shapes
from deployments.gateway.http.whole_response import WholeResponseCycle

MAX_HEADERS = 100
MAX_HEAD_BYTES = 15_360
# As many may wait to be accepted as HAProxy lets through to a gateway (4,064), so that a burst
# while the loop is busy is not taken for a gateway that is down. Linux's own bound,
# net.core.somaxconn.
LISTEN_QUEUE = 4096
_head_s = 30.0
_LOOK_S = 60.0  # between looks at what a slow client has taken: sockets take in lumps of 100 KB
_SOCKET_BYTES = 131_072  # 128 KiB and the system's own: at 0.1 ms to HAProxy more than 1 GB/s
_INT = bytes(4)
# httptools reads no body behind an offer and would take the body's bytes for the next request,
# which whoever stands before us never saw. So such a head is parsed again without the offer.
_OFFER = (b"upgrade", b"http2-settings")  # headers, and what `Connection` says of them
_LINGER_S = 5.0  # a refused client goes on sending: closed at once, it would lose the refusal
_min_bytes_per_s = 0.0
_servers: WeakSet[uvicorn.Server] = WeakSet()


class Target(NamedTuple):
    """The parts of a URL. `path`: decoded."""

    path: str
    raw_path: bytes
    query: bytes


_LONGEST_KEPT = 256  # bytes of a URL; callers choose them


def _target(url: bytes) -> Target:
    """Raises httptools.HttpParserInvalidURLError, and UnicodeDecodeError."""
    return _parsed(url) if len(url) > _LONGEST_KEPT or b"?" in url else _kept_target(url)


@lru_cache(maxsize=1024)
def _kept_target(url: bytes) -> Target:
    return _parsed(url)


def _parsed(url: bytes) -> Target:
    found = httptools.parse_url(url)
    return Target(unquote(found.path.decode("ascii")), found.path, found.query or b"")


class _Dropped(list[tuple[bytes, bytes]]):
    def append(self, _: tuple[bytes, bytes]) -> None: ...


# Trailers stand behind the body. uvicorn appends them to the headers, where they would say who the
# caller is after whoever stands before us has looked.
_TRAILERS = _Dropped()


class StrictProtocol(httptools_impl.HttpToolsProtocol):
    """One connection. `_head_bytes`: what came of a head that is not whole, at least, or of a body
    without being a part of it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # uvicorn's reader of X-Forwarded-For would write over the connection's own address, by
        # which connections are counted; `Exchange.caller_address` reads the header where it is
        # asked for.
        if isinstance(self.app, ProxyHeadersMiddleware):
            self.app = self.app.app
        self._head_bytes = 0
        self._got_body = False
        self._deadline: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._untaken = 0
        self._idle_since: float | None = None  # on the loop's clock; None: it is not
        self._refused = False
        self._stops = False  # the server does
        self._last_word: errors.HeadraceError | None = None
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(BatchedTransport(transport, self.loop))  # type: ignore[arg-type]
        if (own := transport.get_extra_info("socket")) is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_looking()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends no more; the transport closes when this returns."""
        self.transport.send()  # type: ignore[attr-defined]
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        cycle: Any = self.cycle
        if cycle is not None and cycle.due_bytes and not (data := self._put(data)):
            return
        self._head_bytes += len(data)
        self._got_body, before = False, self.scope
        idle_since, self._idle_since = self._idle_since, None
        try:
            self._parse(data)
        except httptools.HttpParserError as fault:
            said = fault.__context__  # what a callback of ours raised
            if not isinstance(said, errors.HeadraceError):
                said = errors.BadRequest("the request is malformed")
            self._refuse(said)
            return
        if self._has_head():
            if cycle is not None and cycle is self.cycle and cycle.response_complete:
                self._idle_since = idle_since  # no request: the rest of a body, or an empty line
            if self._deadline is not None:
                self._stop_clock()
            if self._got_body or self.scope is not before or not self._wants_more():
                self._head_bytes = 0
            elif self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(errors.HeadersTooLarge("the request's trailers are too large"))
        elif self.transport.is_closing():
            self._stop_clock()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(self._too_large())
        elif self._deadline is None:
            self._start_clock()

    def _put(self, data: bytes) -> bytes:
        """Takes what is due of a large body whose length is known: it needs no parser, which would
        copy it. Returns what follows it."""
        cycle: Any = self.cycle
        due = cycle.due_bytes
        cycle.put(data if len(data) <= due else memoryview(data)[:due])
        if len(data) < due:
            return b""
        self._new_parser()  # the old one waits for the body
        self.on_message_complete()
        return data[due:]

    def _new_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _parse(self, data: bytes | memoryview) -> None:
        """Raises httptools.HttpParserError."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                head = self._without_offer()
                self._new_parser()
                self.parser.feed_data(head)
                data = memoryview(data)[offered.args[0] :]

    def _without_offer(self) -> bytes:
        """The head that was read last, as bytes, without its offer of another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _OFFER)
            if name not in _OFFER:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, error: errors.HeadraceError) -> None:
        """Say so, after the answers to requests that came before on this connection, and close it
        once the client has had time to read that."""
        self._refused = True
        self._stop_clock()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._say(error)
        elif not cycle.more_body:
            self._last_word = error
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.close()  # what is written now would be a part of another answer
            else:
                self._say(error)

    def on_response_complete(self) -> None:
        """As uvicorn does it, but for its timer, which it makes anew with each answer (3 us)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._close_idle_in(self.timeout_keep_alive)
        if self._last_word is not None and self.cycle.response_complete:
            self._say(self._last_word)

    def _close_idle_in(self, seconds: float) -> None:
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that has been idle for long enough."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the next answer sets it again
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.0:
            self._close_idle_in(left_s)
        else:
            super().timeout_keep_alive_handler()

    def _say(self, error: errors.HeadraceError) -> None:
        if self.transport.is_closing():
            return
        answer = error_shapes.of_path(self.shown_path().decode("latin-1"))(error)
        lines = [
            *(b"%b: %b" % header for header in self.server_state.default_headers),
            *(b"%b: %b" % header for header in self.said_to_pages()),
            b"content-type: " + answer.content_type,
            b"content-length: %d" % len(answer.body),
            b"connection: close\r\n\r\n",
        ]
        status = httptools_impl.STATUS_LINE[answer.status or error.status]
        self.transport.write(status + b"\r\n".join(lines) + answer.body)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _too_large(self) -> errors.HeadraceError:
        if len(self.url) > MAX_HEAD_BYTES // 2:
            return errors.UriTooLong(
                f"the URL has {len(self.url)} bytes or more; it and the headers may have "
                f"{MAX_HEAD_BYTES}"
            )
        return errors.HeadersTooLarge(
            f"the URL and the headers have more than {MAX_HEAD_BYTES} bytes"
        )

    def _has_head(self) -> bool:
        """Of the last request that began. uvicorn makes a scope when one begins, and writes the
        method into it when its head is whole."""
        return self.scope is not None and "method" in self.scope

    def on_headers_complete(self) -> None:
        # Bytes are looked at only where more came than a head may have.
        if len(self.headers) > MAX_HEADERS:
            raise errors.HeadersTooLarge(f"the request has more than {MAX_HEADERS} headers")
        if self._head_bytes > MAX_HEAD_BYTES and _size(self.url, self.headers) > MAX_HEAD_BYTES:
            raise self._too_large()
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise errors.MethodNotAllowed("CONNECT is not supported")
            return  # read again by `_parse`
        version = self.parser.get_http_version()
        if self.expect_100_continue and version == "1.0":
            self.expect_100_continue = False
        self.check_head()
        self._begin(version)
        self.headers = _TRAILERS

    def _begin(self, version: str) -> None:
        """As uvicorn does it: the request is asked for once those before it are answered."""
        scope: Any = self.scope
        target = _target(self.url)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = self.root_path + target.path
        scope["raw_path"] = target.raw_path
        if self.root_path:
            scope["raw_path"] = self.root_path.encode("ascii") + target.raw_path
        scope["query_string"] = target.query
        before = self.cycle
        self.cycle = WholeResponseCycle(
            scope, self.transport, self.flow, self.logger, self.access_logger, self.access_log,
            self.server_state.default_headers, asyncio.Event(), self.expect_100_continue,
            version != "1.0" and not self._stops and self.parser.should_keep_alive(),
            self.on_response_complete,
        )  # fmt: skip
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def shown_path(self) -> bytes:
        """Of the last request that began, for the shape of a refusal."""
        return self.url.partition(b"?")[0]

    def said_to_pages(self) -> Iterable[tuple[bytes, bytes]]:
        """The headers of a refusal for pages of other origins. HAProxy adds them."""
        return ()

    def check_head(self) -> None:
        """Raises HeadraceError for a head that is not to be read. HAProxy has looked at it."""

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if not self.parser.should_upgrade() and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def _wants_more(self) -> bool:
        """Of the body. uvicorn makes no cycle of a request whose URL it cannot read."""
        return self.cycle is not None and self.cycle.more_body

    def on_body(self, body: bytes) -> None:
        self._got_body = True
        cycle: Any = self.cycle
        if cycle.keeps:
            cycle.put(body)
        elif not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

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


class StoppingServer(uvicorn.Server):
    """Serve's HTTP server in this process; says when it stops accepting connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        _servers.add(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _told_of_stop()
        await super().shutdown(sockets)


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
    uvicorn.Server = StoppingServer  # type: ignore[misc]
    if head_s is not None:
        _head_s = head_s
    if min_bytes_per_s is not None:
        _min_bytes_per_s = min_bytes_per_s


def _nobody() -> None:
    pass


_told_of_stop: Callable[[], None] = _nobody


def on_stop(told: Callable[[], None]) -> None:
    """`told` is called when a server of this process stops accepting connections; requests that it
    has may take longer."""
    global _told_of_stop
    _told_of_stop = told


def stop_accepting() -> None:
    """Every server of this process closes its listening socket and idle connections."""
    for server in _servers:
        server.should_exit = True


# A connection keeps back no more: the rest is written at once, so flow control holds.
MAX_UNSENT_BYTES = 16_384
_COPIED_BYTES = 65_536  # parts of more are not put together, but handed on as they are
logger = logging.getLogger("headrace.gateway")
_unsent: dict[asyncio.AbstractEventLoop, list[BatchedTransport]] = {}


class BatchedTransport:
    """An asyncio transport whose writes leave it at the loop's next turn, or when anything else is
    asked of it. What it does not define itself is the transport's own.

    When a batch is done, its answers are encoded within one turn. Each system call that writes one
    wakes its client's process, which sleeps again before the next answer comes. Written together,
    they wake it once; and the parts of one answer go out in one call.
    Measured gain: docs/decisions/0054-one-gateway-takes-its-callers-itself.md.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._kept: list[bytes | memoryview] = []
        self._bytes = 0
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing

    def write(self, data: bytes | memoryview) -> None:
        """After `write_eof` nothing goes out any more: the connection only lingers."""
        if self._ended:
            return
        if not self._kept:
            _send_later(self, self._loop)
        self._kept.append(data)
        self._bytes += len(data)
        if self._bytes > MAX_UNSENT_BYTES:
            self.send()

    def send(self) -> None:
        """Hand what is kept to the transport."""
        kept, large = self._kept, self._bytes > _COPIED_BYTES
        if kept:
            self._kept, self._bytes = [], 0
            if self._transport.is_closing():
                return
            if large and len(kept) > 1:
                self._transport.writelines(kept)
            else:
                self._transport.write(kept[0] if len(kept) == 1 else b"".join(kept))

    def writelines(self, lines: Iterable[bytes | memoryview]) -> None:
        """At once, and without copying them."""
        if self._ended or self._transport.is_closing():
            return
        kept, self._kept, self._bytes = self._kept, [], 0
        self._transport.writelines([*kept, *lines])

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

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.send()
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        kept: int = self._bytes + self._transport.get_write_buffer_size()
        return kept


def _send_later(transport: BatchedTransport, loop: asyncio.AbstractEventLoop) -> None:
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
