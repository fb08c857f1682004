"""A gRPC call that is answered by a page, as the HTTP request that asks for the same.

What exists over HTTP has one implementation, and these calls only translate. A refusal is kept as
the error that it is, so that the call's status comes from the same table as the HTTP status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deployments.contract import errors
from deployments.gateway.http.body import BodyLimits
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols.tensors import Encoded


class InnerCall(Exchange):
    """`call`: whose metadata it has; `status`, `answer`: what the page replied, 0 and b"" before.
    `body` is in memory already."""

    __slots__ = ("_given", "answer", "status")

    def __init__(self, call: Exchange, method: str, path: str, body: bytes = b"") -> None:
        scope = {
            "method": method,
            "raw_path": path.encode("latin-1"),
            "headers": call.headers.items(),
            "client": call.client,
        }
        super().__init__(scope, _nothing, _nowhere, call.watch)
        self.request_id = call.request_id
        self._given = body
        self.status = 0
        self.answer = b""

    async def body(self, limits: BodyLimits) -> bytes | memoryview:
        if len(self._given) > limits.max_bytes:
            raise errors.BodyTooLarge(
                f"the message is larger than {limits.limit_name} ({limits.max_bytes} bytes)"
            )
        return self._given

    async def refuse(
        self,
        error: errors.HeadraceError,
        form: Callable[[errors.HeadraceError], Encoded],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        raise error

    async def _send_whole(self, status: int, answer: Encoded, headers: Any) -> None:
        self.status, self.answer = status, answer.body


async def _nothing() -> Any:
    raise AssertionError("a page reads its body by `body` alone")


async def _nowhere(message: Any) -> None:
    raise AssertionError("a page answers by `reply` alone")
