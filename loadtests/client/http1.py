"""The bytes of an HTTP/1.1 request, and the answer in the bytes that come back.

A keep-alive client reduced to what a load generator needs: requests are rendered once, and an
answer is its status, its body and whether the connection stays open. httptools (Node's llhttp)
parses; sans-IO: bytes in, answers out. It costs less than 2 µs an answer.

It sends no chunked bodies, follows no redirects and does not pipeline.

Source: RFC 9112 (message framing, §6 and §7).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

import httptools

HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024


class InvalidResponse(ValueError):
    """The bytes are not an HTTP/1.1 answer; the connection is of no further use."""


@dataclass(frozen=True, slots=True)
class Target:
    """`tls`: over TLS; `ca`: the PEM file of authorities to trust then, "" for the system's."""

    host: str
    port: int
    path: str
    tls: bool = False
    ca: str = ""

    @classmethod
    def parse(cls, url: str, ca: str = "") -> Target:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is not of the form http(s)://host:port/path")
        tls = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" * bool(parts.query))
        return cls(parts.hostname, parts.port or (443 if tls else 80), path, tls, ca)

    @property
    def context(self) -> ssl.SSLContext | None:
        """What TLS connections are made with; None for plain ones. Raises OSError if `ca` cannot be
        read."""
        return _context(self.ca) if self.tls else None


@lru_cache(maxsize=8)
def _context(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca or None)


@dataclass(frozen=True, slots=True)
class Response:
    """`retry_after_s`: what a refusal says, 0 where it says nothing (a date counts as nothing).
    `head`: status line and headers, in lower case, for `field`."""

    status: int
    body: bytes
    keep_alive: bool
    retry_after_s: float = 0.0
    head: bytes = b""


def render(
    target: Target,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The whole request. `headers` win over the defaults (a wrong Content-Length included)."""
    fields = {"host": f"{target.host}:{target.port}", "content-type": "application/json"}
    fields["content-length"] = str(len(body))
    fields |= {name.lower(): value for name, value in (headers or {}).items()}
    head = f"{method} {target.path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode("latin-1") + b"\r\n" + body


class ResponseParser:
    """Feeds on what a socket gives; `feed` returns the answer once it is complete, else None.
    `tap` hears the body piece by piece as it comes, before the answer is complete."""

    __slots__ = (
        "_begun",
        "_body",
        "_complete",
        "_head",
        "_head_ended",
        "_keep_alive",
        "_parser",
        "tap",
    )

    def __init__(self) -> None:
        self.tap: Callable[[bytes], None] | None = None
        self._head: bytes
        self._body: list[bytes]
        self._parser = httptools.HttpResponseParser(self)
        self._forget()

    def feed(self, data: bytes) -> Response | None:
        """Raises `InvalidResponse`. Bytes after a complete answer are an error too."""
        if not self._head_ended:
            self._take_head(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise InvalidResponse(str(error)) from None
        return self._answer(self._keep_alive) if self._complete else None

    def end(self) -> Response | None:
        """The connection was closed: completes an answer that is delimited by that."""
        framed = field(self._head, b"content-length") or field(self._head, b"transfer-encoding")
        return self._answer(keep_alive=False) if self._head_ended and not framed else None

    @property
    def started(self) -> bool:
        return bool(self._head)

    def _take_head(self, data: bytes) -> None:
        """Kept whole beside the parser: a call of Python a header would cost more than `field`."""
        head = self._head + data if self._head else data
        end = head.find(HEAD_END)
        if end < 0 and len(head) > MAX_HEAD_BYTES:
            raise InvalidResponse(f"a head of more than {MAX_HEAD_BYTES} bytes")
        self._head_ended = end >= 0
        self._head = head[: end + 2].lower() if end >= 0 else head

    def _answer(self, keep_alive: bool) -> Response:
        status, head = self._parser.get_status_code(), self._head
        wait = field(head, b"retry-after") if status >= 400 else None
        retry_after_s = float(wait) if wait is not None and wait.isdigit() else 0.0
        answer = Response(status, b"".join(self._body), keep_alive, retry_after_s, head)
        self._forget()
        return answer

    def _forget(self) -> None:
        self._head = b""
        self._body = []
        self._begun = self._head_ended = self._complete = self._keep_alive = False

    # ---- what httptools calls -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._begun:
            raise InvalidResponse("more than one answer")
        self._begun = True

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)
        if self.tap is not None:
            self.tap(piece)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()


def field(head: bytes, name: bytes) -> bytes | None:
    """A header's value, in lower case as `head` is; None where there is none."""
    start = b"\r\n" + name + b":"
    at = head.find(start)
    if at < 0:
        return None
    at += len(start)
    return head[at : head.find(b"\r\n", at)].strip()
