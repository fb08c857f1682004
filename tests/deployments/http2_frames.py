"""An HTTP/2 client of few words, which can say what a library would not.

It writes headers as literals and reads what HAProxy writes: of an answer's header block the status,
which HAProxy leaves plain. Source: RFC 9113 §4, §6; RFC 7541 §6.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)  # fmt: skip
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
MAX_CONCURRENT_STREAMS = 3
_STATUSES = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
_WIDE = 1 << 30
Headers = Sequence[tuple[str, str]]


@dataclass
class Stream:
    """What came of an answer. `reset`: the error code that ended it."""

    status: int = 0
    body: bytes = b""
    pieces: int = 0
    ended: bool = False
    reset: int | None = None


@dataclass
class Http2:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    streams: dict[int, Stream] = field(default_factory=dict)
    settings: dict[int, int] = field(default_factory=dict)
    goaway: int | None = None
    closed: bool = False
    _last: int = -1
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def frame(self, kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> None:
        head = len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self.writer.write(head + body)

    def begin(self, path: str, more: Headers = (), *, method: str = "POST", ends: bool = False,
              authority: str | None = "localhost") -> int:  # fmt: skip
        """The stream's number."""
        pseudo = [(":method", method), (":scheme", "https"), (":path", path)]
        if authority is not None:
            pseudo.append((":authority", authority))
        self._last += 2
        self.streams[self._last] = Stream()
        flags = END_HEADERS | (END_STREAM if ends else 0)
        self.frame(HEADERS, flags, self._last, b"".join(map(_literal, [*pseudo, *more])))
        return self._last

    def data(self, stream: int, body: bytes, *, ends: bool = False) -> None:
        """In frames of 16 KB at most; the other side's window is not looked at."""
        for at in range(0, len(body) or 1, 16_384):
            last = ends and at + 16_384 >= len(body)
            self.frame(DATA, END_STREAM if last else 0, stream, body[at : at + 16_384])

    async def until(self, what: Callable[[], object], within_s: float = 10.0) -> None:
        """`what` may be of other connections, too, which do not tell of their news here."""
        async with asyncio.timeout(within_s):
            while not what() and not self.closed:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.1)

    async def answer(self, stream: int, within_s: float = 10.0) -> Stream:
        found = self.streams[stream]
        await self.until(lambda: found.ended or found.reset is not None, within_s)
        return found

    async def ask(self, path: str, more: Headers = (), body: bytes | None = None, *,
                  method: str = "", authority: str | None = "localhost") -> Stream:  # fmt: skip
        method = method or ("GET" if body is None else "POST")
        stream = self.begin(path, more, method=method, ends=body is None, authority=authority)
        if body is not None:
            self.data(stream, body, ends=True)
        return await self.answer(stream)

    async def read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while head := await self.reader.readexactly(9):
                body = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                self._heard(head[3], head[4], int.from_bytes(head[5:], "big"), body)
                self._news.set()
        self.closed = True
        self._news.set()

    def _heard(self, kind: int, flags: int, number: int, body: bytes) -> None:
        stream = self.streams.get(number, Stream())
        if kind == HEADERS:
            at = body[0] & 0xE0 == 0x20  # a new size of the table comes first
            code = body[at]
            stream.status = _STATUSES.get(code) or int(body[at + 2 : at + 5])
        elif kind == DATA:
            stream.body += body
            stream.pieces += 1
        elif kind == RST_STREAM:
            stream.reset = int.from_bytes(body, "big")
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(body[4:8], "big")
        elif kind == PING and not flags & ACK:
            self.frame(PING, ACK, 0, body)
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                name, value = body[at : at + 2], body[at + 2 : at + 6]
                self.settings[int.from_bytes(name, "big")] = int.from_bytes(value, "big")
            self.frame(SETTINGS, ACK)
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            stream.ended = True


def _literal(header: tuple[str, str]) -> bytes:
    """Never indexed, not compressed."""
    return b"\x10" + b"".join(_text(each.encode("latin-1")) for each in header)


def _text(text: bytes) -> bytes:
    size, made = len(text), b""
    if size < 127:
        return bytes([size]) + text
    size, made = size - 127, b"\x7f"
    while size >= 128:
        size, made = size >> 7, made + bytes([size & 0x7F | 0x80])
    return made + bytes([size]) + text


@asynccontextmanager
async def http2(
    port: int, context: ssl.SSLContext | None, source: str = "127.0.0.1"
) -> AsyncIterator[Http2]:
    """A connection that has said its preface. `context`: its ALPN is set here; None: no TLS."""
    if context is not None:
        context.set_alpn_protocols(["h2"])
    made = Http2(
        *await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(source, 0))
    )
    made.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    made.frame(SETTINGS, body=b"\x00\x04" + _WIDE.to_bytes(4, "big"))
    made.frame(WINDOW_UPDATE, body=_WIDE.to_bytes(4, "big"))
    reading = asyncio.create_task(made.read())
    try:
        await made.until(lambda: made.settings)
        yield made
    finally:
        reading.cancel()
        made.writer.close()
