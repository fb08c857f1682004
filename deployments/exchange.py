"""One HTTP request and its answer: headers, the bounded body, the reply. No routing, no queues.

A body is read only when somebody asks for it, up to a bound and a time limit; gzip is inflated up
to a bound of its own. Source: ASGI 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from random import getrandbits
from typing import Any

from deployments import errors
from deployments.fast_path import NAMED_BY_SERVE, Receive, Scope, Send
from deployments.protocols.types import Encoded

_OWN_CLOCK_MARGIN_S = 0.020


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`max_bytes` on the wire, `max_inflated_bytes` after gzip, `timeout_s` for the whole body."""

    max_bytes: int
    max_inflated_bytes: int
    timeout_s: float


class Exchange:
    """`arrived`: `time.perf_counter()` when the request's headers were read. `request_id`: the
    caller's, or one made here; every reply carries it."""

    __slots__ = (
        "_named", "_receive", "_send", "arrived", "client", "headers", "method", "path", "replied",
        "request_id",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.arrived = time.perf_counter()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client = scope.get("client")
        self.replied = False
        self.request_id = self.headers.get(b"x-request-id") or b"%032x" % getrandbits(128)
        self._named = NAMED_BY_SERVE in scope

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def check_length(self, limits: BodyLimits) -> None:
        """Refuses by header alone: a declared length over the bound, or one that is no length."""
        raw = self.headers.get(b"content-length")
        if raw is None:
            return
        if not raw.isdigit():
            raise errors.BadRequest("Content-Length must be a whole number of bytes")
        if int(raw) > limits.max_bytes:
            raise _too_large(limits.max_bytes)

    async def body(self, limits: BodyLimits) -> bytes:
        """The raw body. Raises BodyTooLarge, BodyTimeout or CallerLeft."""
        message = await self._message(limits.timeout_s)
        first: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(first) > limits.max_bytes:
                raise _too_large(limits.max_bytes)
            return first
        try:
            async with asyncio.timeout(limits.timeout_s):
                return await self._rest(first, limits.max_bytes)
        except TimeoutError:
            raise _body_timeout(limits.timeout_s) from None

    async def _message(self, timeout_s: float) -> MutableMapping[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._receive()
        except TimeoutError:
            raise _body_timeout(timeout_s) from None
        if message["type"] == "http.disconnect":
            raise errors.CallerLeft("the client left before its body was complete")
        return message

    async def _rest(self, first: bytes, max_bytes: int) -> bytes:
        parts, size = [first], len(first)
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise errors.CallerLeft("the client left before its body was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > max_bytes:
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def budget_s(self) -> float | None:
        """Seconds the caller gives, None when it doesn't say. Ray Serve acts on
        `x-request-timeout-seconds` itself, so ours ends a little earlier and answers first."""
        own = self._number(b"x-timeout-ms")
        serves = self._number(b"x-request-timeout-seconds")
        if own is not None:
            return own / 1000.0
        if serves is not None:
            return max(serves - _OWN_CLOCK_MARGIN_S, 0.001)
        return None

    def _number(self, name: bytes) -> float | None:
        raw = self.headers.get(name)
        if raw is None:
            return None
        try:
            value = float(raw)
        except ValueError:
            value = -1.0
        if not 0.0 < value < 1e9:
            raise errors.BadRequest(f"{name.decode()} must be a positive number")
        return value

    async def reply(
        self, status: int, answer: Encoded, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        self.replied = True
        head = [
            (b"content-type", answer.content_type),
            (b"content-length", str(len(answer.body)).encode()),
            *([] if self._named else [(b"x-request-id", self.request_id)]),
            *answer.headers,
            *(headers or ()),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": answer.body})


def _too_large(limit: int) -> errors.BodyTooLarge:
    return errors.BodyTooLarge(f"the body is over gateway.limits.max_body_bytes ({limit} bytes)")


def _body_timeout(limit_s: float) -> errors.BodyTimeout:
    return errors.BodyTimeout(f"the body did not arrive within {limit_s:g} s")
