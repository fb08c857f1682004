"""Calls with streams of messages: how they are read, answered side by side, and ended.

A stream is open as long as its client likes, and counts as one request of its tenant under way.
A message that has begun to arrive must come at the pace that bodies must. Of `ModelStreamInfer`
each message is a request of its own: `MAX_UNDER_WAY` of a stream are under way at once, up to
`MAX_WAITING` wait in their order, and each is answered when it is ready. A refused one is answered
with its error, and the stream goes on. When the server ends, nothing more is read, what is under
way is answered, and the stream ends with UNAVAILABLE.
Source: Triton, grpc_service.proto, "ModelStreamInfer".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from deployments.contract import errors
from deployments.gateway.grpc import frames
from deployments.gateway.grpc.exchange import (
    GrpcExchange,
    check_compression,
    check_message,
    no_form,
    scope_within,
    unused,
)
from deployments.gateway.grpc.infer_codec import GrpcInferCodec, id_of, varint
from deployments.gateway.grpc.messages import ModelStreamInferResponse
from deployments.gateway.http.body import BodyLimits, BodyRoom
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.pipeline import Pipeline
from deployments.gateway.services import GatewayServices, draining
from yaml_document.credentials import without_keys

MAX_UNDER_WAY = 64
MAX_WAITING = 1024
_RESPONSE = b"\x12"  # `infer_response` of ModelStreamInferResponse, before its length
_DRAIN_LOOK_S = 2.0
_A_TURN = 32  # messages; then others have their turn
_MAX_REFUSED = 1024  # in a row, for want of room
_CALL_BYTES = 8192  # what a message that waits takes besides its bytes
_READ_AHEAD_BYTES = 262_144
# `parameters["triton_final_response"] = true` of a ModelInferResponse, behind its other fields.
_FINAL = bytes((0x22, 27, 0x0A, 21)) + b"triton_final_response" + bytes((0x12, 2, 0x08, 1))
Headers = Iterable[tuple[bytes, bytes]]
logger = logging.getLogger("headrace.gateway")


class MessageStream:
    """The messages of one call, in both directions; `async with` counts it as under way and ends
    it. `ended`: its client has left, or the server ends."""

    def __init__(
        self, call: GrpcExchange, services: GatewayServices, *, is_public: bool = False
    ) -> None:
        self.call = call
        self.is_cut = False  # not all that the client sends was read
        self._is_public = is_public  # needs no key
        self._ahead_bytes = 0
        self.left = asyncio.Event()
        self.lock = asyncio.Lock()
        self._services = services
        self._began = False
        self._pumping: asyncio.Task[None] | None = None
        self._parts: list[bytes] = []  # that came, and nobody has taken
        self._news, self._taken = asyncio.Event(), asyncio.Event()
        self._is_whole = False  # the client sends no more
        self._partial_since: float | None = None  # on the loop's clock
        self._held = 0

    async def __aenter__(self) -> MessageStream:
        try:
            self._services.identify(self.call)
        except errors.Unauthorized:
            if not self._is_public:
                raise
        self._services.begin(self.call.quota_key)
        self._pumping = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        try:
            if self._pumping is not None:
                self._pumping.cancel()
            if self.left.is_set():
                return isinstance(error, errors.CallerLeft)
            if error is None and self.is_cut and self._services.models.draining:
                error = draining()
            if error is not None and not isinstance(error, errors.HeadraceError):
                return False
            if not self._began and error is not None:
                return False
            await self._begin()
            await self.call.end(error if isinstance(error, errors.HeadraceError) else None)
            return True
        finally:
            self._services.end(self.call.quota_key)

    @property
    def ended(self) -> bool:
        return self.left.is_set() or self._services.models.draining

    async def wait_ended(self, seconds: float) -> None:
        """At most so long, or until the client has left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.left.wait()

    async def _begin(self) -> None:
        if not self._began:
            self._began = True
            await self.call.start_messages()

    async def send(self, *parts: bytes | memoryview) -> None:
        """One message. Waits while the client is behind."""
        async with self.lock:
            await self.write(frames.prefix(sum(map(len, parts))), *parts)

    async def write(self, *parts: bytes | memoryview) -> None:
        """Bytes of messages; by whoever holds the lock."""
        await self._begin()
        if not self.left.is_set():
            await self.call.send_chunk(b"".join(parts))

    async def messages(self, limits: BodyLimits) -> AsyncIterator[tuple[bool, bytes]]:
        """Whether it is compressed, and the message as it was sent, until the client sends no more
        or `ended`. Raises BodyTooLarge, BodyTimeout, BadRequest, UnsupportedMedia, Overloaded."""
        buffer = bytearray()
        more = True
        try:
            while True:
                while (size := self._complete(buffer, limits)) is not None:
                    compressed, body = buffer[0] == 1, bytes(buffer[frames.PREFIX_BYTES : size])
                    del buffer[:size]
                    self._partial(limits, 0)
                    yield compressed, body
                if not more:
                    break
                if self.ended:
                    self.is_cut = True
                    break
                self._partial(limits, len(buffer))
                data, more = await self._read(len(buffer), limits)
                buffer += data
        finally:
            self._partial(limits, 0)
        if buffer and not self.ended:
            raise errors.BadRequest("the stream ended within a message")

    def _complete(self, buffer: bytearray, limits: BodyLimits) -> int | None:
        """The bytes of the first message with its prefix; None: it is not all there."""
        if len(buffer) < frames.PREFIX_BYTES:
            return None
        compressed, size = frames.read_prefix(buffer)
        if compressed:
            check_compression(self.call.headers.get(b"grpc-encoding"))
        most = min(limits.max_bytes, self.call.max_message_bytes)
        if size > most:
            raise errors.BodyTooLarge(
                f"a message has {size} bytes, more than gateway.grpc.max_message_bytes ({most})"
            )
        whole = size + frames.PREFIX_BYTES
        return whole if len(buffer) >= whole else None

    def _partial(self, limits: BodyLimits, size: int) -> None:
        """So much of a message is there that is not whole; 0: of none. Raises Overloaded."""
        if size and self._partial_since is None:
            limits.arriving.begin(self.call.quota_key)
            self._partial_since = asyncio.get_running_loop().time()
        elif not size and self._partial_since is not None:
            limits.arriving.end(self.call.quota_key)
            self._partial_since = None
            self._held = 0
            self.call.release()
        if size > self._held:
            self.call.hold(size - self._held, limits.room)
            self._held = size

    async def _read(self, size: int, limits: BodyLimits) -> tuple[bytes, bool]:
        """What comes next, and whether more may follow; nothing: the server ends. `size`: of the
        message that is not whole, which must come at the pace of bodies."""
        loop = asyncio.get_running_loop()
        while not self._parts and not self._is_whole and not self.ended:
            wait_s = _DRAIN_LOOK_S
            if self._partial_since is not None:
                wait_s = self._partial_since + limits.due_s(size) - loop.time()
                if wait_s <= 0:
                    raise errors.BodyTimeout("a message did not arrive in time")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, _DRAIN_LOOK_S)):
                    await self._news.wait()
        data = b"".join(self._parts)
        self._parts.clear()
        self._ahead_bytes = 0
        self._taken.set()
        return data, not self._is_whole

    async def _pump(self) -> None:
        """Reads what the client sends, a little ahead of who takes it, so that it is heard when
        the client leaves."""
        while not self.left.is_set():
            message = await self.call.next_part()
            if message["type"] == "http.disconnect":
                self.left.set()
            else:
                if data := message.get("body", b""):
                    self._parts.append(data)
                    self._ahead_bytes += len(data)
                self._is_whole = not message.get("more_body", False)
            self._news.set()
            if self._ahead_bytes > _READ_AHEAD_BYTES:
                self._taken.clear()
                await self._taken.wait()


class InferStream:
    """One `ModelStreamInfer`."""

    def __init__(
        self,
        call: GrpcExchange,
        services: GatewayServices,
        pipeline: Pipeline,
        codec: GrpcInferCodec,
    ) -> None:
        self._stream = MessageStream(call, services)
        self._services, self._pipeline, self._codec = services, pipeline, codec
        self._places = asyncio.Semaphore(MAX_UNDER_WAY)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Raises HeadraceError before anything was sent."""
        async with self._stream:
            wrong: errors.HeadraceError | None = None
            try:
                try:
                    await self._take_all()
                except errors.HeadraceError as error:
                    wrong = error  # told when what came before has been answered
                while self._tasks:
                    await asyncio.wait(self._tasks)
            finally:
                rest = list(self._tasks)
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)
            if wrong is not None:
                raise wrong

    async def _take_all(self) -> None:
        stream, number, refused = self._stream, 0, 0
        async for compressed, message in stream.messages(self._services.limits):
            number += 1
            call = StreamedCall(stream, message, compressed, number)
            if refusal := self._no_room(call):
                refused += 1
                if refused > _MAX_REFUSED:
                    raise refusal
                await call.refuse(refusal, no_form)
            else:
                refused = 0
                task = asyncio.create_task(self._answer(call))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if number % _A_TURN == 0:
                await asyncio.sleep(0)

    def _no_room(self, call: StreamedCall) -> errors.HeadraceError | None:
        """Why one more message cannot wait. Nothing is left unread for that: HAProxy takes a
        gateway that does not read for lost."""
        if len(self._tasks) >= MAX_WAITING:
            return errors.Overloaded(
                f"{MAX_WAITING} messages of this stream are not answered yet; read answers before "
                "sending more",
                retry_after_s=errors.SOON_S,
                reason="stream_full",
            )
        try:
            call.keep(self._services.limits.room)
        except errors.Overloaded as full:
            return full
        return None

    async def _answer(self, call: StreamedCall) -> None:
        try:
            async with self._places:
                if not self._stream.left.is_set():
                    await self._pipeline.answer(call, self._codec, None)
        except Exception:
            logger.exception("unexpected", extra={"request_id": call.request_id.decode("latin-1")})
            await call.failed()
        finally:
            call.close()


class StreamedCall(GrpcExchange):
    """One message of a stream, and its answers. `number`: which of the stream's."""

    __slots__ = ("_ended", "_message", "_stream", "_writes")
    may_stream = True

    def __init__(
        self, stream: MessageStream, message: bytes, compressed: bool, number: int
    ) -> None:
        call = stream.call
        super().__init__(scope_within(call), unused, unused, call.watch, call.max_message_bytes)
        if number > 1:
            self.headers.pop(b"grpc-timeout", None)  # that of the stream
        self.request_id = b"%b-%d" % (call.request_id, number)
        self._stream, self._message, self._compressed = stream, message, compressed
        self._writes = False  # an answer in pieces
        self._ended = False  # its last message was sent

    async def body(self, limits: BodyLimits) -> bytes | memoryview:
        check_message(self._message, limits)
        message, self._message = self._message, b""
        return message

    def keep(self, room: BodyRoom) -> None:
        """Count the message until it is answered. Raises Overloaded."""
        self.quota_key = self._stream.call.quota_key
        self.hold(len(self._message) + _CALL_BYTES, room)

    async def until_disconnect(self) -> None:
        await self._stream.left.wait()

    async def refuse(
        self,
        error: errors.HeadraceError,
        form: Callable[[errors.HeadraceError], Encoded],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> int:
        self.replied = True
        await self._say(error.message)
        return error.status

    async def failed(self) -> None:
        """Of a fault that nobody expected."""
        if not self._ended:
            await self._say(
                "an unexpected error; the server's log has its details under the request id "
                + self.request_id.decode("latin-1")
            )

    async def _say(self, message: str) -> None:
        self._ended = True
        said = without_keys(message[: frames.MAX_TEXT])
        answer = ModelStreamInferResponse(error_message=said)
        answer.infer_response.id = self.message_id or id_of(self._message)
        await self._stream.send(answer.SerializeToString())

    async def _send_whole(self, status: int, answer: Encoded, headers: Headers) -> None:
        self._ended = True
        await self._stream.send(*_response(answer.body, _FINAL))

    async def begin(self, answer: Encoded, headers: Headers) -> None:
        """Of a large answer: nobody else writes until its end."""
        self.replied = True
        size = answer.size + len(_FINAL)
        head = _RESPONSE + varint(size)
        await self._stream.lock.acquire()
        self._writes = True
        await self._stream.write(frames.prefix(len(head) + size), head, answer.body)

    async def start_stream(self, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.replied = True

    async def send_chunk(self, data: bytes | memoryview) -> None:
        if self.text is None:
            await self._stream.write(data)
            return
        for response, error in self.text.pieces(bytes(data)):
            if error:
                self.text.ends_empty = False
                await self._say(error)
            else:
                await self._stream.send(*_response(response))

    async def end_stream(self) -> None:
        self._ended = True
        if self.text is None:
            await self._stream.write(_FINAL)
            self._writes = False
            self._stream.lock.release()
        elif self.text.ends_empty:
            await self._stream.send(*_response(self.text.last()))

    async def await_drained(self, room: BodyRoom) -> None:
        self.release()

    def close(self) -> None:
        """However it ended. A message that is not whole ends the stream."""
        self.release()
        if self._writes:
            self._writes = False
            self._stream.left.set()
            self._stream.lock.release()


def _response(body: bytes, last: bytes = b"") -> tuple[bytes, ...]:
    return _RESPONSE + varint(len(body) + len(last)), body, last
