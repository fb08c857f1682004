"""A gRPC call that is answered by a page, as the HTTP request that asks for the same.

What exists over HTTP has one implementation, and these calls only translate. A refusal is kept as
the error that it is, so that the call's status comes from the same table as the HTTP status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deployments.contract import errors
from deployments.gateway.grpc.exchange import check_message, scope_within, unused
from deployments.gateway.http.body import BodyLimits
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols.tensors import Encoded


class InnerCall(Exchange):
    """`call`: whose metadata it has; `status`, `answer`: what the page replied, 0 and b"" before.
    `body` is in memory already."""

    __slots__ = ("_given", "answer", "status")

    def __init__(self, call: Exchange, method: str, body: bytes = b"") -> None:
        super().__init__({**scope_within(call), "method": method}, unused, unused, call.watch)
        self.request_id = call.request_id
        self._given = body
        self.status = 0
        self.answer = b""

    async def body(self, limits: BodyLimits) -> bytes | memoryview:
        check_message(self._given, limits)
        return self._given

    async def refuse(
        self,
        error: errors.HeadraceError,
        form: Callable[[errors.HeadraceError], Encoded],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> int:
        raise error

    async def _send_whole(self, status: int, answer: Encoded, headers: Any) -> None:
        self.status, self.answer = status, answer.body
