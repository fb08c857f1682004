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

    async def send(self, message: Any) -> None:
        if message["type"] != EXTENSION:
            if message["type"] == TAKEN:
                await self._taken(message)
                return
            if message["type"] == TRAILERS:
                self._end_with_trailers(message["headers"])
                return
            if self.scope["http_version"] == "1.0":
                self._end_with_connection(message)
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        # What has been read needs no closing, whoever answered before the end.
        self.keep_alive = self.keep_alive and not (message["close"] and self.more_body)
        self.transport.write(self._bytes(message))
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

    async def _taken(self, message: Any) -> None:
        if self.flow.write_paused:  # a connection that is lost is not
            message["held"](self.transport.get_write_buffer_size())
            await self.flow.drain()

    def _bytes(self, message: Any) -> bytes:
        parts = [httptools_impl.STATUS_LINE[message["status"]]]
        for name, value in self.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in message["headers"]:
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        trailers, body = message.get("trailers"), message["body"]
        if trailers is None:
            parts += (b"\r\n", body)
        else:
            chunk = (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
            parts += (b"transfer-encoding: chunked\r\n\r\n", *chunk, _ending(trailers))
        return b"".join(parts)


def _ending(trailers: Any) -> bytes:
    """The last chunk, and what follows it."""
    lines = b"".join([b"%b: %b\r\n" % each for each in trailers])
    return b"0\r\n%b\r\n" % lines


def offer() -> None:
    """Makes every server that this process starts from now on offer the extension."""
    httptools_impl.RequestResponseCycle = WholeResponseCycle  # type: ignore[misc]
