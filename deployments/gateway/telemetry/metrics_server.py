"""Each gateway's own port for a scraper: `metrics_port` + its rank on the node.

The public port reaches any gateway; scraping needs each. A small HTTP/1.1 server on the gateway's
event loop, one answer a connection. A port that is taken is tried again every few seconds in the
background and mentioned once: missing metrics never stop a gateway that can answer requests.

A connection that sends no request, or does not read its answer, is cut after some seconds. Of too
many connections the oldest goes: first of the newcomer's own address, then of the address that has
most. A scraper sends its request at once, so idle connections keep none out, and a page is copied
for at most `_MAX_CONNECTIONS` readers. Serves one page, knows nothing of what stands there, and
belongs behind a network policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from deployments.process.loopback import authority

logger = logging.getLogger("headrace.metrics")

_LARGEST_HEAD_BYTES = 16_384
_HEAD_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0  # for the caller to read the page
_RETRY_S = 5.0
_MAX_CONNECTIONS = 32
_MAX_PER_ADDRESS = 8

Page = Callable[[str], tuple[bytes, str]]


class MetricsServer:
    """`page(accept)` gives body and content type. `start` and `close` belong to one event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Page,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        head_timeout_s: float = _HEAD_TIMEOUT_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        self._host, self._port, self._page, self._pause = host, port, page, pause
        self._head_timeout_s, self._answer_timeout_s = head_timeout_s, answer_timeout_s
        self._server: asyncio.Server | None = None
        self._binding: asyncio.Task[None] | None = None
        # The callers' addresses, by connection, the oldest first.
        self._connections: dict[asyncio.StreamWriter, str] = {}
        self._handlers: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Returns at once; listens as soon as the port can be had."""
        self._binding = asyncio.get_running_loop().create_task(self._bind())

    @property
    def port(self) -> int | None:
        """The port it listens on, None while it does not."""
        if self._server is None or not self._server.sockets:
            return None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def listening(self) -> None:
        """Waits until it listens (it may never)."""
        assert self._binding is not None
        await asyncio.shield(self._binding)

    async def close(self) -> None:
        tasks = [*self._handlers] + ([self._binding] if self._binding is not None else [])
        if self._server is not None:
            self._server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server = self._binding = None

    async def _bind(self) -> None:
        mentioned = False
        while self._server is None:
            try:
                self._server = await asyncio.start_server(
                    self._serve, self._host, self._port, limit=_LARGEST_HEAD_BYTES
                )
            except OSError as error:
                if not mentioned:
                    logger.warning(
                        "metrics port %s:%d cannot be had (%s); trying again every %g s",
                        self._host, self._port, error.strerror or error, _RETRY_S,
                    )  # fmt: skip
                mentioned = True
                await self._pause(_RETRY_S)
        logger.info("metrics at http://%s/metrics", authority(self._host, self.port or self._port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self._admit(writer)
        try:
            async with asyncio.timeout(self._head_timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(self._answer_timeout_s):
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that is slow, gone or no scraper is not told why
        finally:
            self._handlers.discard(task)
            self._connections.pop(writer, None)
            writer.transport.abort()  # else it stays until its caller has read everything

    def _admit(self, writer: asyncio.StreamWriter) -> None:
        """Count a new connection, and cut the one that has to go for it."""
        peer = writer.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        held = Counter(self._connections.values())
        full = address if held[address] >= _MAX_PER_ADDRESS else None
        if full is None and len(self._connections) >= _MAX_CONNECTIONS:
            full = held.most_common(1)[0][0]
        if full is not None:
            oldest = next(w for w, each in self._connections.items() if each == full)
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = address

    def _answer(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target = [*first.split(" "), "", ""][:2]
        path = target.partition("?")[0]
        if path not in ("/metrics", "/"):
            return _response("404 Not Found", b"see /metrics\n", "text/plain", method)
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET only\n", "text/plain", method)
        return _response("200 OK", *self._page(_accept(lines)), method)


def _accept(lines: list[str]) -> str:
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            return value.strip()
    return ""


def _response(status: str, body: bytes, content_type: str, method: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + body
