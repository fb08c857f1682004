"""A replica's end of the data channel: gateways' connections, from handshake to last answer.

A connection becomes a *link* once its gateway has proved that it knows the replica's key. A second
link of the same gateway replaces the first. Until the proof a connection is a *stranger*: it may
send next to nothing, not for long, and only `MAX_UNAUTHENTICATED` may be open; as many others may
be before the end of TLS's own handshake. What a link carries (batches, or requests to generate) is
up to the `LeaseCore`.

Serve counts none of the leases, so the server itself drains: it tells every gateway, each gateway
answers that it has no more leases on the way, and the leases that are here are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol, cast

from deployments.contract.channel.frames import (
    GATEWAY_KINDS,
    MAX_FRAME_BYTES,
    STALLED_S,
    Buffer,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    MessageError,
    StallWatch,
    framed,
)
from deployments.contract.channel.handshake import (
    HANDSHAKE_LIMIT_S,
    Refused,
    ReplicaHandshake,
    new_key,
    refusal,
)
from deployments.process.sockets import FOUND_DEAD_S, address_of, find_dead_peers, is_dead

MAX_UNAUTHENTICATED = 64
WINDOW_BYTES = 4 << 20  # of a stream's messages that may be sent and not taken in yet
_GOODBYE_S = 2.0  # that a gateway gets to answer, or to read what was written to it
_CHECK_EVERY_S = 1.0
_LOG_EVERY_S = 1.0  # between two log lines about refused connections
_BACKLOG = 100  # connections that wait to be accepted
_ACCEPT_AGAIN_S = 1.0  # after the system could not accept one: it has no more files, say
logger = logging.getLogger("headrace.channel")


class LeaseCore(Protocol):
    """What runs the leases. All methods are called on the loop."""

    def joined(self, link: GatewayConnection) -> None: ...
    def left(self, link: GatewayConnection) -> None: ...

    def received(self, link: GatewayConnection, frame: Frame) -> None:
        """Take in a frame. Raises MessageError for an invalid message; the connection goes on."""

    def leave(self) -> None:
        """Take in no new leases from now on."""

    async def until_idle(self) -> None:
        """Return when every lease here has been answered."""


class ChannelServer:
    """Owns all connections. `key`: what a gateway must know; `address`: host and port, once it
    listens."""

    def __init__(
        self, core: LeaseCore, replica_id: str, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.core = core
        self.replica_id = replica_id
        self.key = new_key()
        self.address = ""
        self.unauthenticated: dict[GatewayConnection, None] = {}  # strangers, the oldest first
        self._links: dict[str, GatewayConnection] = {}
        self._connections: set[GatewayConnection] = set()  # strangers and links
        self._draining = False
        # Refused connections that were not logged, and when a line was last written.
        self._unlogged, self._logged_at = 0, -inf
        self._tls = tls
        self._server: asyncio.Server | TlsServer | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, host: str, ports: Sequence[int] = (0,)) -> None:
        """Listen on the first of these ports that is free. Raises OSError if none is."""
        listener = _bound(host, ports)
        self.address = address_of(*listener.getsockname()[:2])
        connected = partial(GatewayConnection, self)
        if self._tls is not None:
            self._server = TlsServer(listener, self._tls, connected, self.refused)
        else:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(connected, sock=listener)
        self._check_later()

    async def drain(self) -> None:
        """Finish the leases that are here. Serve bounds how long that may take."""
        if self._server is not None:
            self._server.close()
        self._draining = True
        self.core.leave()
        for link in self._links.values():
            link.send(Kind.GOAWAY, 0)
        goodbyes = [asyncio.ensure_future(s.goodbye) for s in self._links.values()]
        if goodbyes:
            await asyncio.wait(goodbyes, timeout=_GOODBYE_S)
        await self.core.until_idle()

    async def close(self) -> None:
        """End every connection, once it has taken what was written to it."""
        if self._server is not None:
            self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.close()
        ends = [c.closed for c in self._connections]
        if ends:
            await asyncio.wait(ends, timeout=_GOODBYE_S)
        for connection in list(self._connections):
            connection.abort("it took nothing in any more")

    def cut(self, reason: str) -> None:
        """End every connection at once and let nobody in any more, so that gateways count what is
        here as lost."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort(reason)

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)

    def _check(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            connection.check(now)
        self._check_later()

    # ---- what connections say -----------------------------------------------------------------

    def made(self, connection: GatewayConnection) -> None:
        """A connection is open. If there are too many strangers, the oldest is refused: a real
        gateway proves itself within milliseconds, so idle connections keep no gateway out."""
        self._connections.add(connection)
        self.unauthenticated[connection] = None
        if len(self.unauthenticated) > MAX_UNAUTHENTICATED:
            oldest = next(iter(self.unauthenticated))
            del self.unauthenticated[oldest]
            oldest.refuse("too many connections that have not said who they are")

    def lost(self, connection: GatewayConnection, reason: str) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self.unauthenticated.pop(connection, None)
        if self._links.get(connection.gateway) is connection:
            del self._links[connection.gateway]
            logger.info("gateway %s left: %s", connection.gateway, reason)
        if connection.welcome:
            self.core.left(connection)

    def refused(self, gateway: str, reason: str) -> None:
        """A connection was refused. Logged once a second at most: whoever reaches the port may be
        refused any number of times."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            more = f" (and {self._unlogged - 1} others since the last line)" * (self._unlogged > 1)
            logger.warning("a connection was refused: %s%s", reason, more,
                           extra={"gateway": gateway})  # fmt: skip
            self._unlogged, self._logged_at = 0, now

    def joined(self, connection: GatewayConnection) -> None:
        """A gateway has proved itself: the connection becomes its link."""
        self.unauthenticated.pop(connection, None)
        older = self._links.get(connection.gateway)
        self._links[connection.gateway] = connection
        if older is not None:
            older.abort("the gateway has connected again")
        if self._draining:
            connection.send(Kind.GOAWAY, 0)
        self.core.joined(connection)


def _bound(host: str, ports: Sequence[int]) -> socket.socket:
    """A listening socket on the first of these ports that is free. Raises OSError if none is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        try:
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE:
                raise
        else:
            listener.setblocking(False)
            return listener
    raise OSError(
        errno.EADDRINUSE,
        f"none of the ports {ports[0]} to {ports[-1]} is free at {host}; widen the range "
        "(gateway.channel.last_port)",
    )


class TlsServer:
    """Accepts connections and makes those `connected` that come to the end of TLS's handshake.

    At most `MAX_UNAUTHENTICATED` shake hands; for a further one the oldest is cut, as of strangers.
    It accepts by itself because asyncio's servers neither bound these connections nor show them.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        connected: Callable[[], GatewayConnection],
        refused: Callable[[str, str], None],  # gateway and reason, as of `ChannelServer`
    ) -> None:
        self._listener, self._context = listener, context
        self._connected, self._refused = connected, refused
        self._shaking: dict[socket.socket, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more. Handshakes go on, and end by themselves."""
        self._accepting.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as fault:
                logger.error("a connection could not be accepted: %s", fault)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._shaking[accepted] = None
            if len(self._shaking) > MAX_UNAUTHENTICATED:
                self._cut(next(iter(self._shaking)))
            task = loop.create_task(self._shake(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _cut(self, oldest: socket.socket) -> None:
        del self._shaking[oldest]
        self._refused("", "too many connections that have not come to the end of TLS's handshake")
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its transport then closes it

    async def _shake(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connected, accepted, ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_LIMIT_S, ssl_shutdown_timeout=_GOODBYE_S,
            )  # fmt: skip
        except OSError as fault:  # ssl.SSLError and TimeoutError are among them
            logger.debug("TLS: %s", fault)
        finally:
            self._shaking.pop(accepted, None)


class GatewayConnection(asyncio.Protocol):
    """One connection; a link once it is `welcome`. `goodbye` resolves when the gateway has
    said that it sends no new lease, or is gone."""

    def __init__(self, server: ChannelServer) -> None:
        loop = asyncio.get_running_loop()
        self._server = server
        self._handshake = ReplicaHandshake(server.key, server.replica_id)
        self._reader = FrameReader(frozenset({Kind.HELLO}))
        self._stall = StallWatch(self._reader)
        self._transport: asyncio.Transport | None = None
        self.welcome = False
        self.closed: asyncio.Future[None] = loop.create_future()
        self.goodbye: asyncio.Future[None] = loop.create_future()
        self._reason = ""  # why this side ended the connection
        self._handshake_timer: asyncio.TimerHandle | None = None  # bounds the handshake
        self._sent_bytes = self._taken_bytes = 0  # of STEPS, sent and acknowledged by CREDIT
        self._paused = False  # the transport's buffer is full
        self._has_room = asyncio.Event()

    @property
    def gateway(self) -> str:
        return self._handshake.gateway

    @property
    def version(self) -> int:
        """The version of the channel that the gateway is spoken to in."""
        return self._handshake.version

    # ---- what a core says -----------------------------------------------------------------------

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        """Send a frame. Does nothing once the connection is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            parts = framed(kind, lease_id, body)
        except FrameError as fault:
            logger.error("an answer was not sent: %s", fault)
            if kind is Kind.STEPS:  # it may have held the ends of requests
                self.abort(str(fault))
                return
            parts = framed(Kind.UNSENT, lease_id, [str(fault).encode("utf-8", "replace")])
        if kind is Kind.STEPS:
            self._sent_bytes += sum([len(part) for part in body])
        self._transport.writelines(parts)

    async def room(self) -> None:
        """Return when the gateway has taken in enough to be sent more."""
        while not self.closed.done() and (
            self._paused or self._sent_bytes - self._taken_bytes >= WINDOW_BYTES
        ):
            self._has_room.clear()
            await self._has_room.wait()

    def close(self) -> None:
        """Close after what was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # ---- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        find_dead_peers(transport)
        self._server.made(self)
        loop = asyncio.get_running_loop()
        self._handshake_timer = loop.call_later(HANDSHAKE_LIMIT_S, self._handshake_timed_out)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # TLS goes on reading while it shuts down
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except FrameError as fault:
            if self.welcome:
                logger.error("gateway %s: %s", self.gateway, fault)
                self.abort(str(fault))
            else:
                self.refuse(str(fault))
        except Refused as fault:
            self.refuse(str(fault))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._has_room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_handshake_timer()
        for ended in (self.closed, self.goodbye):
            if not ended.done():
                ended.set_result(None)
        self._has_room.set()
        self._server.lost(self, self._reason or (str(exc) if exc else "it closed the connection"))

    def _take(self, frame: Frame) -> None:
        if not self.welcome:
            self._greet(frame)
        elif frame.kind is Kind.CREDIT:
            self._taken_bytes = min(max(self._taken_bytes, frame.lease_id), self._sent_bytes)
            self._has_room.set()
        elif frame.kind is Kind.GOAWAY:
            if not self.goodbye.done():
                self.goodbye.set_result(None)
        else:
            self._pass_on(frame)

    def _pass_on(self, frame: Frame) -> None:
        """Give a frame to the core. A fault fails that frame's lease only."""
        try:
            self._server.core.received(self, frame)
        except Exception as fault:
            known = isinstance(fault, MessageError)
            logger.error("what gateway %s sent cannot be used: %s", self.gateway, fault,
                         exc_info=None if known else fault)  # fmt: skip
            if frame.kind in (Kind.BATCH, Kind.BEGIN):
                self.send(Kind.UNSENT, frame.lease_id, [str(fault).encode("utf-8", "replace")])

    def _greet(self, frame: Frame) -> None:
        """Take a step of the handshake. Raises Refused."""
        if frame.kind is Kind.HELLO:
            answer = self._handshake.challenge(frame.body)
            self._reader.kinds = frozenset({Kind.PROOF})
            self.send(Kind.CHALLENGE, 0, [answer])
            return
        self._handshake.check(frame.body)
        self.welcome = True
        self._stop_handshake_timer()
        self._reader.kinds, self._reader.max_bytes = GATEWAY_KINDS, MAX_FRAME_BYTES
        self.send(Kind.WELCOME, 0)
        self._server.joined(self)

    def refuse(self, reason: str) -> None:
        """Refuse the connection, and say why to the gateway and in the log."""
        self._server.refused(self.gateway, reason)
        self._reason = reason
        self.send(Kind.REFUSED, 0, [refusal(reason)])
        self.close()

    def _stop_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()

    def _handshake_timed_out(self) -> None:
        self.refuse(f"no handshake within {HANDSHAKE_LIMIT_S:g} s")

    def check(self, now: float) -> None:
        """Called every second: end the link if it is dead or its frame has stalled."""
        if not self.welcome or self._transport is None:
            return
        if self._stall.stalled(now):
            reason = f"a frame has not come to its end for {STALLED_S:g} s"
        elif is_dead(self._transport):
            reason = f"its machine has not answered for {FOUND_DEAD_S:g} s"
        else:
            return
        logger.error("gateway %s: %s", self.gateway, reason)
        self.abort(reason)
