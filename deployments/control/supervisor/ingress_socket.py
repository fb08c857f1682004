"""Holds the socket that callers connect to, and hands it to the gateway (`ingress: direct`).

It is bound before Ray starts and listens from the first hand-over on. A gateway that ends loses
what it has; who connects meanwhile waits in the socket's queue. If no gateway comes for a while,
callers are told so: each gets 503, instead of waiting for what may never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from pathlib import Path

from deployments.contract.errors import Overloaded
from deployments.gateway.http.protocols import error_shapes
from deployments.process.listening_socket import hand_over

_SILENT_S = 10.0  # without a gateway, until callers are told so
_LOOK_S = 0.5
_CALLER_SILENCE_MS = 30_000  # of one that has not acknowledged what it was sent; as HAProxy's
_HEAD_S = 2.0  # for a caller to say what it wants
_MAX_HEAD_BYTES = 32_768
_QUEUE = 4096  # as many as may wait (deployments/gateway/http/strict_protocol.py)
_NOBODY = Overloaded("no gateway can take the request now; send it again", retry_after_s=1.0)
logger = logging.getLogger("headrace.host")


class IngressSocket:
    """`path`: where gateways get the socket. A thread of its own hands it over."""

    def __init__(self, host: str, port: int, path: Path) -> None:
        """Raises OSError where nobody can listen there."""
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listening = socket.socket(family, kind, protocol)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # callers' connections inherit it
            silent = socket.TCP_USER_TIMEOUT, _CALLER_SILENCE_MS
            self._listening.setsockopt(socket.IPPROTO_TCP, *silent)
        self._listening.bind(address)
        path.unlink(missing_ok=True)
        self._handing = socket.socket(socket.AF_UNIX)
        self._handing.bind(str(path))
        path.chmod(0o600)
        self._handing.listen()
        self._gateways: set[asyncio.StreamWriter] = set()
        self._left_s: float | None = None  # when the last gateway left
        self._stand_in: asyncio.Server | None = None
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="ingress", daemon=True
        )
        self._thread.start()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._runs.set()
        async with await asyncio.start_unix_server(self._gateway, sock=self._handing):
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._closing.wait()
                await self._look(self._loop.time())
        self._close_stand_in()

    async def _gateway(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One gateway, from the hand-over until it accepts no longer."""
        try:
            self._listening.listen(_QUEUE)
            with writer.get_extra_info("socket").dup() as own:
                hand_over(own, self._listening)
            self._gateways.add(writer)
            self._close_stand_in()
            await reader.read()
        except OSError as fault:
            logger.warning("no gateway has the callers' socket: %s", fault)
        except asyncio.CancelledError:
            pass  # the server ends
        finally:
            self._gateways.discard(writer)
            self._left_s = asyncio.get_running_loop().time()
            writer.close()

    async def _look(self, now: float) -> None:
        if self._gateways or self._stand_in is not None or self._left_s is None:
            return
        if now - self._left_s > _SILENT_S:
            own = self._listening.dup()
            self._stand_in = await asyncio.start_server(
                _refuse, sock=own, limit=_MAX_HEAD_BYTES, backlog=_QUEUE
            )

    def _close_stand_in(self) -> None:
        if self._stand_in is not None:
            self._stand_in.close()
            self._stand_in = None

    def close(self) -> None:
        """Whoever waits in the queue is refused, unless a gateway still accepts."""
        self._runs.wait()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._listening.close()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One answer, and the end of the connection; under TLS the end alone."""
    try:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.write(_refusal(head.split(b" ", 2)[1]))
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(_HEAD_S):
            await reader.read()  # else a caller that is still sending would lose the answer
    except (OSError, EOFError, IndexError, TimeoutError, asyncio.LimitOverrunError):
        pass  # it left, is silent, or speaks no HTTP
    finally:
        writer.close()


def _refusal(target: bytes) -> bytes:
    """In the shape of the API that the path belongs to."""
    answer = error_shapes.of_path(target.partition(b"?")[0].decode("latin-1"))(_NOBODY)
    lines = [
        b"HTTP/1.1 %d Service Unavailable" % (answer.status or _NOBODY.status),
        b"content-type: " + answer.content_type,
        *(b"%b: %b" % header for header in _NOBODY.headers()),
        b"connection: close",
        b"content-length: %d" % len(answer.body),
    ]
    return b"\r\n".join([*lines, b"", answer.body])
