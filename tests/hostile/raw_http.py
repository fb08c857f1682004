"""Raw bytes to a server of this machine, and the answers that come of them."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BODY = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [4, 5]}]}'
INFER = b"/v2/models/device/infer"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r\n")
_IDLE_S = 0.03
_LONGEST_S = 3.0
_PAUSE_S = 0.2
_CANARY_S = 2.0
_CANARY = b"x-tenant: default\r\nconnection: close\r\n"
_HOST = b"host: localhost\r\n"


@dataclass(frozen=True, slots=True)
class Said:
    """All that a server answered until it closed, or said nothing more. `seconds` it took."""

    data: bytes
    closed: bool
    seconds: float

    @property
    def statuses(self) -> list[int]:
        return [int(each) for each in _STATUS.findall(self.data)]


@dataclass(frozen=True, slots=True)
class Target:
    """`says`: lines that each request's head has besides; `tls`: how it is spoken to; None: plain.
    `arrived`: path and headers of every request that the gateway's app behind it got."""

    name: str
    port: int
    says: bytes = b""
    tls: ssl.SSLContext | None = None
    arrived: list[tuple[str, list[tuple[bytes, bytes]]]] = field(default_factory=list)

    def ask(self, *parts: bytes, idle_s: float = _IDLE_S) -> Said:
        """Sends the parts one by one. A server that closes while it is sent to has answered."""
        began = time.monotonic()
        with self._connected() as conn:
            with contextlib.suppress(OSError):
                for part in parts:
                    conn.sendall(self._said(part))
            data, closed = _heard(conn, began + _LONGEST_S, idle_s)
        return Said(data, closed, time.monotonic() - began)

    def ask_slowly(self, *parts: bytes) -> Said:
        """Each part once what came before it was read or answered."""
        began, data, closed = time.monotonic(), b"", False
        with self._connected() as conn:
            for part in parts:
                with contextlib.suppress(OSError):
                    conn.sendall(self._said(part))
                said, closed = _heard(conn, time.monotonic() + _PAUSE_S, _PAUSE_S)
                data += said
        return Said(data, closed, time.monotonic() - began)

    def canary(self) -> bool:
        """Whether somebody else is answered meanwhile."""
        try:
            said = self.ask(post(BODY, _CANARY), idle_s=_CANARY_S)
        except OSError:
            return False
        return said.statuses == [200] and b'"data":[9.0]' in said.data

    def _said(self, part: bytes) -> bytes:
        return part.replace(_HOST, _HOST + self.says) if self.says else part

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), 5) as conn:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is None:
                yield conn
                return
            with self.tls.wrap_socket(conn, server_hostname="localhost") as secured:
                yield secured


def _heard(conn: socket.socket, until: float, idle_s: float) -> tuple[bytes, bool]:
    data = b""
    while (left := until - time.monotonic()) > 0:
        conn.settimeout(min(left, idle_s if data else _LONGEST_S))
        try:
            more = conn.recv(65_536)
        except TimeoutError:
            return data, False
        except OSError:
            return data, True
        if not more:
            return data, True
        data += more
    return data, False


def head(*lines: bytes, method: bytes = b"POST", path: bytes = INFER) -> bytes:
    """A request's head with a Host; lines without their ends."""
    named = b"".join(line + b"\r\n" for line in (b"host: localhost", *lines))
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, path, named)


def post(body: bytes, more: bytes = b"", path: bytes = INFER) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n"
        % (path, more, len(body))
    ) + body


def chunked(*chunks: bytes, trailers: Sequence[bytes] = ()) -> bytes:
    sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return sent + b"0\r\n" + b"".join(line + b"\r\n" for line in trailers) + b"\r\n"
