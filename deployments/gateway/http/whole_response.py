"""What a request and its answer need of uvicorn beyond ASGI, as Ray Serve starts it.

ASGI has two messages for an answer, and uvicorn makes two system calls of them: an `Exchange` over
a connection of this process gives `WholeResponseCycle` all of it at once. It also takes a body that
is there without asking for messages, and waits until the client has taken what a connection does
not keep (`UNCOUNTED_BYTES`, uvicorn's and asyncio's own mark). Streamed answers, and those behind
any other server, are sent as ever. HTTP/1.0 has no chunks: a streamed answer to it ends with the
connection. tests/deployments/gateway/http hold what is used of uvicorn and not public. Gain:
docs/decisions/0018-one-data-channel.md.
Source: ASGI 3.0; RFC 9112 §6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

TRAILERS = "http.response.trailers"
UNCOUNTED_BYTES = HIGH_WATER_LIMIT
_UvicornCycle = httptools_impl.RequestResponseCycle
Headers = Iterable[tuple[bytes, bytes]]


class WholeResponseCycle(_UvicornCycle):
    """One request and its answer. ASGI's `http.response.trailers` ends an answer in chunks."""

    _has_length = True
    keeps = False
    _told_bytes = 0  # of the body that is kept
    due_bytes = 0  # of the body, which the connection need not parse

    def take_whole(self) -> bytes | None:
        """The body, where all of it is there; None: ask for its messages."""
        if self.more_body or self.disconnected or self.response_complete or self.keeps:
            return None
        if self.waiting_for_100_continue:
            return None
        if self.flow.read_paused:
            self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    def receive(self) -> Any:
        return self._receive_kept() if self.keeps else _UvicornCycle.receive(self)

    async def _receive_kept(self) -> Any:
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self._told_bytes = len(self.body)
        if self.more_body:
            return {"type": "http.request", "size": self._told_bytes, "more_body": True}
        self.keeps, whole, self.body = False, self.body, bytearray()
        return {"type": "http.request", "body": whole, "more_body": False}

    def keep(self, body: bytes, size: int | None) -> None:
        """What follows of the body stays in `body`, behind what was taken of it. `size`: its
        declared length, None for chunks."""
        self.keeps, self.body = True, bytearray(body) + self.body
        if size is not None and self.more_body:
            self.due_bytes = size - len(self.body)

    def put(self, data: bytes | memoryview) -> None:
        """Takes a part of the body that is kept."""
        self.due_bytes = max(self.due_bytes - len(data), 0)
        if self.response_complete:
            return
        self.body += data
        if len(self.body) - self._told_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    async def send(self, message: Any) -> None:
        if message["type"] == TRAILERS:
            self._end_with_trailers(message["headers"])
            return
        if self.scope["http_version"] == "1.0":
            self._end_with_connection(message)
        if self.chunked_encoding and isinstance(message.get("body"), memoryview):
            await self._send_view(message["body"])
        else:
            await super().send(message)

    async def answer(
        self,
        status: int,
        headers: Headers,
        body: bytes | memoryview,
        *,
        close: bool,
        trailers: Headers | None = None,
    ) -> None:
        """All of an answer; `body`: b"" of a HEAD. `close`: the connection ends with it, where the
        request was not read to its end; `trailers`: what follows the body, which is then sent as a
        chunk."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        # What has been read needs no closing, whoever answered before the end.
        self.keep_alive = self.keep_alive and not (close and self.more_body)
        if trailers is None:
            parts: tuple[bytes | memoryview, ...] = self._head(status, headers), body
        else:
            head = self._head(status, [*headers, (b"transfer-encoding", b"chunked")])
            parts = head, *_one_chunk(body), _ending(trailers)
        if len(body) > UNCOUNTED_BYTES:
            self.transport.writelines(parts)
        else:
            self.transport.write(b"".join(parts))
        self.response_started = True
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.waiting_for_100_continue = False
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _end_with_trailers(self, trailers: Any) -> None:
        """Of an answer in chunks."""
        if not self.disconnected and not self.response_complete:
            self.keep_alive = self.keep_alive and not self.more_body
            self.transport.write(_ending(trailers))
            self._complete()

    def _end_with_connection(self, message: Any) -> None:
        """Of an answer without a length: keeps uvicorn from sending chunks, and from missing what
        the length would say."""
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self.chunked_encoding = self.keep_alive = False
                self._has_length = False
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b""))

    async def _send_view(self, body: memoryview) -> None:
        """A chunk that is not copied."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected and self.scope["method"] != "HEAD":
            self.transport.writelines((b"%x\r\n" % len(body), body, b"\r\n"))

    async def taken(self, held: Callable[[int], None]) -> None:
        """Returns when the client has taken all of the answer but what a connection keeps, or is
        gone. `held` is told of the bytes that it has not taken, where that is more."""
        if self.flow.write_paused:  # a connection that is lost is not
            held(self.transport.get_write_buffer_size())
            await self.flow.drain()

    async def all_taken(self) -> None:
        """The connection keeps nothing back, until it has sent everything."""
        # The loss of a connection is told to its latest request alone, and uvloop lets nobody
        # change what is closing.
        if not self.disconnected and not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=0)
            await self.flow.drain()
            if not self.transport.is_closing():
                self.transport.set_write_buffer_limits()

    def _head(self, status: int, headers: Headers) -> bytes:
        lines = [*self.default_headers, *headers]
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
        said = b"\r\n".join(map(b": ".join, lines))
        return b"%b%b\r\n\r\n" % (httptools_impl.STATUS_LINE[status], said)


def _one_chunk(body: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """All of a body, in the form of chunks."""
    return (b"%x\r\n" % len(body), body, b"\r\n") if body else ()


def _ending(trailers: Any) -> bytes:
    """The last chunk, and what follows it."""
    lines = b"".join([b"%b: %b\r\n" % each for each in trailers])
    return b"0\r\n%b\r\n" % lines
