"""A gateway as HAProxy meets it for gRPC: HTTP/1.1, chunked both ways, trailers at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

SERVICE = "/inference.GRPCInferenceService/"


class StubCall:
    """One request, as a gateway reads it."""

    def __init__(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        self.method, self.path, self.version = first.split(" ")
        self.headers = dict(line.lower().split(": ", 1) for line in lines)
        self._reader, self._writer = reader, writer
        self._received = b""

    async def chunk(self) -> bytes:
        """The next of the body; b"" at its end. Raises IncompleteReadError, where the caller is
        gone."""
        if "transfer-encoding" not in self.headers:
            return b""
        size = int(await self._reader.readline() or b"-1", 16)
        if size < 0:
            raise asyncio.IncompleteReadError(b"", None)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def messages(self) -> AsyncIterator[bytes]:
        while True:
            while len(self._received) < 5 or len(self._received) < self._said():
                if not (more := await self.chunk()):
                    return
                self._received += more
            end = self._said()
            yield self._received[5:end]
            self._received = self._received[end:]

    def _said(self) -> int:
        return 5 + int.from_bytes(self._received[1:5])

    def begin(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n"
            b"trailer: grpc-status\r\n\r\n"
        )

    async def send(self, message: bytes) -> None:
        framed = b"\0" + len(message).to_bytes(4) + message
        self._writer.write(b"%x\r\n%b\r\n" % (len(framed), framed))
        await self._writer.drain()

    def end(self, status: int = 0, message: str = "") -> None:
        said = f"grpc-message: {message}\r\n" if message else ""
        self._writer.write(f"0\r\ngrpc-status: {status}\r\n{said}\r\n".encode())

    def write(self, raw: bytes) -> None:
        self._writer.write(raw)

    def abort(self) -> None:
        self._writer.transport.abort()


async def echoes(call: StubCall) -> None:
    """Each message comes back; the metadata that the gateway saw is the last of a unary answer."""
    call.begin()
    async for message in call.messages():
        await call.send(message)
    call.end()


async def stub(answers: Callable[[StubCall], Awaitable[None]] = echoes) -> asyncio.Server:
    """A gateway that answers each request so, on a port of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await answers(StubCall(head, reader, writer))
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
