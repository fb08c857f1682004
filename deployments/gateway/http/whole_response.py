"""An answer's head and body in one write: an ASGI extension for uvicorn as Ray Serve starts it.

ASGI has two messages for an answer, and uvicorn makes two system calls of them. Where the scope
offers the extension, `Exchange` sends one message with all of it; streamed answers, and those
behind any other server, are sent as ever. A second message asks when the client has taken what a
connection does not keep (`UNCOUNTED_BYTES`, uvicorn's and asyncio's own mark). HTTP/1.0 has no
chunks: a streamed answer to it ends with the connection. tests/deployments/gateway/http hold what
is used of uvicorn and not public. Gain: docs/decisions/0018-one-data-channel.md.
Source: ASGI 3.0, extensions; RFC 9112 §6.3.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

EXTENSION = "headrace.response.whole"
TAKEN = "headrace.response.taken"
TRAILERS = "http.response.trailers"
KEEP = "headrace.request.keep"
UNCOUNTED_BYTES = HIGH_WATER_LIMIT
_OFFERED = {EXTENSION: {}}  # type: ignore[var-annotated]
_UvicornCycle = httptools_impl.RequestResponseCycle


class WholeResponseCycle(_UvicornCycle):
    """One request and its answer. The message: `status`, `headers`, `body` (b"" of a HEAD),
    `close`: the connection ends with it, where the request was not read to its end; `trailers`:
    what follows the body, which is then sent as a chunk. The other, afterwards: `held` is told of
    the bytes that the client has not taken, where that is more than a connection keeps; sending it
    ends when it has, or is gone. ASGI's `http.response.trailers` ends an answer in chunks."""

    def __init__(self, scope: Any, *args: Any, **more: Any) -> None:
        scope["extensions"] = _OFFERED
        super().__init__(scope, *args, **more)
        self._has_length = True
        self.keeps = False
        self._told_bytes = 0  # of the body that is kept
        self.due_bytes = 0  # of the body, which the connection need not parse

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

    def _keep(self, message: Any) -> None:
        """What follows of the body stays in `body`, behind what was taken of it. `size`: its
        declared length, None for chunks."""
        self.keeps, self.body = True, bytearray(message["body"]) + self.body
        if message["size"] is not None and self.more_body:
            self.due_bytes = message["size"] - len(self.body)

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
        if message["type"] != EXTENSION:
            if message["type"] == TAKEN:
                await self._taken(message)
                return
            if message["type"] == TRAILERS:
                self._end_with_trailers(message["headers"])
                return
            if message["type"] == KEEP:
                self._keep(message)
                return
            if self.scope["http_version"] == "1.0":
                self._end_with_connection(message)
            if self.chunked_encoding and isinstance(message.get("body"), memoryview):
                await self._send_view(message["body"])
            else:
                await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        # What has been read needs no closing, whoever answered before the end.
        self.keep_alive = self.keep_alive and not (message["close"] and self.more_body)
        trailers, body = message.get("trailers"), message["body"]
        parts: tuple[bytes | memoryview, ...] = self._head(message), body
        if trailers is not None:
            parts = self._head(message, chunked=True), *_one_chunk(body), _ending(trailers)
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

    async def _taken(self, message: Any) -> None:
        if message.get("all"):
            await self._all_taken()
        elif self.flow.write_paused:  # a connection that is lost is not
            message["held"](self.transport.get_write_buffer_size())
            await self.flow.drain()

    async def _all_taken(self) -> None:
        """The connection keeps nothing back, until it has sent everything."""
        # The loss of a connection is told to its latest request alone, and uvloop lets nobody
        # change what is closing.
        if not self.disconnected and not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=0)
            await self.flow.drain()
            if not self.transport.is_closing():
                self.transport.set_write_buffer_limits()

    def _head(self, message: Any, *, chunked: bool = False) -> bytes:
        parts = [httptools_impl.STATUS_LINE[message["status"]]]
        for name, value in self.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in message["headers"]:
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        return b"".join(parts)


def _one_chunk(body: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """All of a body, in the form of chunks."""
    return (b"%x\r\n" % len(body), body, b"\r\n") if body else ()


def _ending(trailers: Any) -> bytes:
    """The last chunk, and what follows it."""
    lines = b"".join([b"%b: %b\r\n" % each for each in trailers])
    return b"0\r\n%b\r\n" % lines


def offer() -> None:
    """Makes every server that this process starts from now on offer the extension."""
    httptools_impl.RequestResponseCycle = WholeResponseCycle  # type: ignore[misc]
