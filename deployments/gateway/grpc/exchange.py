"""One gRPC call as an `Exchange`, so that everything behind it serves it like an HTTP request.

The body is the call's one message, without its frame; an answer is one message and the status 0 as
a trailer; a refusal is a status without a message. Headers are the call's metadata: the key, the
tenant, the priority, the session and the trace have the names that they have over HTTP.
`grpc-timeout` counts from the arrival of the headers, and ends a little early here, so that the
refusal arrives before the client gives up.
Source: grpc/grpc, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NoReturn

from deployments.contract import errors
from deployments.gateway.grpc import frames
from deployments.gateway.grpc.generation import TextAnswer
from deployments.gateway.http.body import COMPRESSIONS, BodyLimits, BodyRoom
from deployments.gateway.http.exchange import DisconnectWatch, Exchange
from deployments.gateway.http.fast_path import Receive, Scope, Send
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.whole_response import TRAILERS

_OWN_CLOCK_MARGIN_S = 0.002
_SHORTEST_S = 0.001
_REFUSED, _FAILED = 400, 500
_COPIED_BYTES = 65_536  # a longer message stays where it was received
Headers = Iterable[tuple[bytes, bytes]]


class GrpcExchange(Exchange):
    """A call with one request and one answer. `max_message_bytes`: of the request; `message_id`:
    what its message calls itself, once that is read; `text`: of a request to a model that
    generates, how its answer is written."""

    __slots__ = ("_compressed", "max_message_bytes", "message_id", "text")
    may_stream = False

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        watch: DisconnectWatch | None,
        max_message_bytes: int,
    ) -> None:
        super().__init__(scope, receive, send, watch)
        self.max_message_bytes = max_message_bytes
        self._compressed = False
        self.message_id = ""
        self.text: TextAnswer | None = None

    @property
    def encoding(self) -> bytes:
        """Of the message, once it is there."""
        return self.headers[b"grpc-encoding"] if self._compressed else b"identity"

    async def body(self, limits: BodyLimits) -> bytes | memoryview:
        """The message. Raises as `Exchange.body`, and BadRequest for what is no frame."""
        if limits.max_bytes >= self.max_message_bytes:
            name = "gateway.grpc.max_message_bytes"
            limits = replace(limits, max_bytes=self.max_message_bytes, limit_name=name)
        return self.unframed(
            await super().body(replace(limits, max_bytes=limits.max_bytes + frames.PREFIX_BYTES))
        )

    def unframed(self, body: bytes | memoryview) -> bytes | memoryview:
        """The one message of a whole body. Raises BadRequest and UnsupportedMedia."""
        if len(body) < frames.PREFIX_BYTES:
            raise errors.BadRequest("the call has no message")
        self._compressed, size = frames.read_prefix(body)
        if size != len(body) - frames.PREFIX_BYTES:
            raise errors.BadRequest(
                f"the message's prefix says {size} bytes, {len(body) - frames.PREFIX_BYTES} came; "
                "a call of this method has one message"
            )
        if self._compressed:
            check_compression(self.headers.get(b"grpc-encoding"))
        if size > _COPIED_BYTES:
            return memoryview(body)[frames.PREFIX_BYTES :]
        return bytes(body[frames.PREFIX_BYTES :])

    def _budget_s(self) -> float | None:
        budget_s = super()._budget_s()
        given = self.headers.get(b"grpc-timeout")
        if given is None:
            return budget_s
        own_s = max(frames.timeout_s(given) - _OWN_CLOCK_MARGIN_S, _SHORTEST_S)
        return own_s if budget_s is None else min(own_s, budget_s)

    async def refuse(
        self,
        error: errors.HeadraceError,
        form: Callable[[errors.HeadraceError], Encoded],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> int:
        self.replied = True
        own = [] if headers is None else [each for each in headers if each[0] != b"retry-after"]
        if isinstance(error, errors.UnsupportedMedia):
            own.append(frames.ACCEPTED)
        head = [
            (b"content-type", frames.CONTENT_TYPE),
            (b"content-length", b"0"),
            *frames.status(error),
            (b"x-request-id", self.request_id),
            *own,
        ]
        await self._send_at_once(head, b"", None)
        return error.status

    async def reply(
        self,
        status: int,
        answer: Encoded,
        headers: list[tuple[bytes, bytes]] | None = None,
        room: BodyRoom | None = None,
    ) -> None:
        """Raises Overloaded, and RowFailed for what an engine should not have answered."""
        if self.text is not None:
            if status >= _REFUSED:
                await self.refuse(_engines_refusal(status, answer.body), no_form, headers)
                return
            answer = Encoded(self.text.whole(answer.body))
        await super().reply(status, answer, headers, room)

    async def _send_whole(self, status: int, answer: Encoded, headers: Headers) -> None:
        body = b"".join((frames.prefix(len(answer.body)), answer.body))
        await self._send_at_once(self._head(answer, headers), body, (frames.OK,))

    async def _send_at_once(
        self, head: list[tuple[bytes, bytes]], body: bytes, trailers: Headers | None
    ) -> None:
        if self._cycle is not None:
            close = self._closes()
            await self._cycle.answer(200, head, body, close=close, trailers=trailers)
            return
        start = {"type": "http.response.start", "status": 200, "headers": head}
        await self._send({**start, "trailers": trailers is not None})
        await self._send({"type": "http.response.body", "body": body})
        if trailers is not None:
            await self._send({"type": TRAILERS, "headers": trailers})

    async def begin(self, answer: Encoded, headers: Headers) -> None:
        answer.body = b"".join((frames.prefix(answer.size), answer.body))
        await super().begin(answer, headers)

    async def end_stream(self) -> None:
        await self.end(None)

    async def start_messages(self) -> None:
        """The head of an answer of any number of messages."""
        await self.start_stream(frames.CONTENT_TYPE, [frames.ACCEPTED])

    async def end(self, error: errors.HeadraceError | None) -> None:
        """The end of an answer that has begun."""
        trailers = (frames.OK,) if error is None else frames.status(error)
        await self._send({"type": TRAILERS, "headers": trailers})

    def _head(
        self, answer: Encoded, headers: Headers, *size: tuple[bytes, bytes]
    ) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", frames.CONTENT_TYPE),
            (b"x-request-id", self.request_id),
            *answer.headers,
            *headers,
        ]


def _engines_refusal(status: int, body: bytes) -> errors.HeadraceError:
    """The error in an engine's own answer, which is OpenAI's."""
    error = errors.BadRequest("") if status < _FAILED else errors.RowFailed("")
    try:
        error.message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        error.message = f"the engine answered {status}"
    return error


def no_form(error: errors.HeadraceError) -> Encoded:
    """A refusal has no message: the exchange writes its status."""
    return Encoded(b"")


def scope_within(call: Exchange) -> Scope:
    """Of a request that is answered as a part of this call, with its metadata."""
    return {
        "method": call.method,
        "raw_path": call.path.encode("latin-1"),
        "headers": call.headers.items(),
        "client": call.client,
    }


async def unused(*_: object) -> NoReturn:
    """In place of a connection, for an exchange whose own methods read and write."""
    raise AssertionError("a request within a call has no connection")


def check_message(message: bytes, limits: BodyLimits) -> None:
    """Of a request whose body is in memory already. Raises BodyTooLarge."""
    if len(message) > limits.max_bytes:
        raise errors.BodyTooLarge(
            f"the message is larger than {limits.limit_name} ({limits.max_bytes} bytes)"
        )


def check_compression(name: bytes | None) -> None:
    """Of a message that says it is compressed. Raises BadRequest and UnsupportedMedia."""
    if name is None:
        raise errors.BadRequest("a message is compressed, and the call has no grpc-encoding")
    if name not in COMPRESSIONS:
        raise errors.UnsupportedMedia("grpc-encoding must be gzip, deflate or identity")
