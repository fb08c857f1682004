"""One HTTP request and its answer: headers, the bounded body, the reply, a client that disconnects.

A body is read only when somebody asks for it, up to a bound and a time limit. An answer that comes
before the end of a large body closes the connection: reading on would cost what the refusal saved.
HEAD gets the headers of the answer alone. What a client has not yet taken of a large answer counts
for its request as the body did. Whether a client has disconnected is looked at only after a while:
most answers are there before it pays. HAProxy compresses answers (`control/ingress/haproxy_rules`);
the header `no-transform`, which it obeys and removes, excludes the answers that would not gain.
Source: ASGI 3.0, HTTP connection scope; RFC 9110 §9.3.2, §12.5.3; RFC 9112 §9.3; RFC 9111 §5.2.2.6.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from functools import lru_cache
from ipaddress import ip_address
from random import getrandbits
from types import coroutine
from typing import Any, NamedTuple, TypeVar

from deployments.contract import errors
from deployments.gateway.http.body import BodyLimits, BodyRoom
from deployments.gateway.http.fast_path import Receive, Scope, Send
from deployments.gateway.http.protocols import error_shapes
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.whole_response import UNCOUNTED_BYTES, WholeResponseCycle
from deployments.gateway.tenancy.rates import NOBODY

_OWN_CLOCK_MARGIN_S = 0.020
_READ_TO_KEEP_BYTES = 65_536
_MAX_DIGITS = 18
# Bodies that hold tensors as they are, which are read as views of what arrived.
BINARY_HEADER = b"inference-header-content-length"
ARROW_STREAM = b"application/vnd.apache.arrow.stream"
_TENSOR_TYPES = (ARROW_STREAM, b"application/grpc")
SESSION = re.compile(rb"[\x20-\x7e]{1,128}")
_PREFIX = re.compile(rb"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}){1,32}")
AUTHORITY = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_SCHEMES = (b"http", b"https")
Message = MutableMapping[str, Any]
_WATCH_AFTER_S = 0.05
T = TypeVar("T")


class RequestOptions(NamedTuple):
    """What the headers ask for. `budget_s`: seconds the caller gives, None when it doesn't say;
    `session`: prefers the replica that served it last, "" for none; `repeatable`: may run twice."""

    budget_s: float | None
    session: str
    repeatable: bool


NO_OPTIONS = RequestOptions(None, "", True)
_OPTIONS = frozenset(
    b"grpc-timeout x-idempotent x-request-timeout-seconds x-session-id x-timeout-ms".split()
)


class Exchange:
    """`watch`: what all of a gateway's requests share. `arrived`: `time.perf_counter()` when the
    request's headers were read. `quota_key`: whose share it takes what it holds from.
    `is_large`: it was answered with more than a connection keeps. `request_id`: the caller's, or
    one made here; every reply carries it. `cors`: what every reply says to pages."""

    __slots__ = (
        "_answer_bytes",
        "_cycle",
        "_held_by",
        "_held_bytes",
        "_receive",
        "_room",
        "_send",
        "_shares",
        "_slow",
        "_whole",
        "arrived",
        "client",
        "cors",
        "headers",
        "is_large",
        "method",
        "path",
        "query",
        "quota_key",
        "replied",
        "request_id",
        "watch",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, watch: DisconnectWatch | None = None
    ) -> None:
        self.watch = watch or DisconnectWatch()
        self._receive = receive
        self._send = send
        self.arrived = time.perf_counter()
        self.method: str = scope["method"]
        # As it was sent: what stood before the gateway saw no other (request_head.py).
        self.path: str = scope["raw_path"].decode("latin-1")
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client = scope.get("client")
        self.quota_key = self._held_by = NOBODY
        self.cors: Iterable[tuple[bytes, bytes]] = ()
        self.replied = self.is_large = False
        self.request_id = _request_id(self.headers.get(b"x-request-id"))
        cycle = getattr(receive, "__self__", None)  # None: of another server
        self._cycle = cycle if isinstance(cycle, WholeResponseCycle) else None
        self._slow = self._whole = self._shares = False
        self._held_bytes = 0
        self._answer_bytes = 0  # of those
        self._room: BodyRoom | None = None

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def caller_address(self) -> str:
        """Where it came from before HAProxy, by the last word of X-Forwarded-For; who connected,
        where that is none; "?": nobody knows. HAProxy lets nobody write that header whom the
        settings do not trust."""
        said = (self.header(b"x-forwarded-for") or "").rpartition(",")[2].strip()
        try:
            return str(ip_address(said))
        except ValueError:
            return self.client[0] if self.client else "?"

    @property
    def prefix(self) -> str:
        """The path below which the caller reaches this server, "" for none: who takes it off the
        path, a trusted proxy or what accepts connections here, says so."""
        said = self.headers.get(b"x-forwarded-prefix", b"").rstrip(b"/")
        return said.decode() if _PREFIX.fullmatch(said) else ""

    @property
    def base_url(self) -> str:
        """What the paths of documents follow: with the scheme and the host that the caller used,
        where a trusted proxy names them; else the path alone, which is right at any host."""
        host = self.headers.get(b"x-forwarded-host", b"").rpartition(b",")[2].strip()
        scheme = self.headers.get(b"x-forwarded-proto", b"http").rpartition(b",")[2].strip().lower()
        if not AUTHORITY.fullmatch(host) or scheme not in _SCHEMES:
            return self.prefix or "/"
        return f"{scheme.decode()}://{host.decode()}{self.prefix}"

    @property
    def encoding(self) -> bytes:
        """Of the body, as Content-Encoding names it."""
        return self.headers.get(b"content-encoding", b"identity").lower()

    def number(self, name: bytes) -> int | None:
        """A header that is a whole number, None without it. Raises BadRequest for anything else."""
        raw = self.headers.get(name)
        if raw is None:
            return None
        if not raw.isdigit():
            raise errors.BadRequest(f"{name.decode().title()} must be a whole number of bytes")
        # Nothing real is longer, and Python refuses to read thousands of digits.
        return int(raw) if len(raw) <= _MAX_DIGITS else 10**_MAX_DIGITS

    def check_length(self, limits: BodyLimits) -> int | None:
        """The declared length, None without one. Refuses by header alone: a length over the bound,
        or one that is no length."""
        declared = self.number(b"content-length")
        if declared is not None and declared > limits.max_bytes:
            raise _too_large(limits)
        return declared

    @property
    def has_tensors(self) -> bool:
        """Whether the body holds tensors as bytes, by its headers."""
        if BINARY_HEADER in self.headers:
            return True
        return self.headers.get(b"content-type", b"").lower().startswith(_TENSOR_TYPES)

    @property
    def concerns_arrow(self) -> bool:
        """Whether the body or the wanted answer is an Arrow stream."""
        kind, accepts = self.headers.get(b"content-type", b""), self.headers.get(b"accept", b"")
        if kind == b"application/json" and not accepts:
            return False  # as of nearly all
        return kind.lower().startswith(ARROW_STREAM) or ARROW_STREAM in accepts.lower()

    @property
    def is_direct(self) -> bool:
        """Whether it came over a connection of this process's own, not through Serve's proxy."""
        return self._cycle is not None

    async def body(self, limits: BodyLimits) -> bytes | memoryview:
        """The raw body; a read-only view of one that `has_tensors` and came later than its headers.
        Raises BodyTooLarge, BodyTimeout, Overloaded or CallerLeft."""
        # Most bodies arrive with their headers: then no timer is set (it costs 3 us a request).
        whole = None if self._cycle is None else self._cycle.take_whole()
        if whole is not None:
            return self._last(whole, limits)
        waiting = self._receive().__await__()
        try:
            pending = next(waiting)
        except StopIteration as there:
            message: Message = there.value
            if not message.get("more_body", False):
                return bytes(self._end(message, limits))
        else:
            message = {}
        try:
            limits.arriving.begin(self.quota_key)
        except errors.Overloaded:
            waiting.close()
            raise
        try:
            async with asyncio.timeout(limits.due_s(0)) as clock:
                first = message or await _resumed(waiting, pending)
                return await self._rest(first, limits, clock)
        except TimeoutError:
            self._slow = True
            raise errors.BodyTimeout(_too_slow(limits)) from None
        finally:
            limits.arriving.end(self.quota_key)

    async def _rest(
        self, message: Message, limits: BodyLimits, clock: asyncio.Timeout
    ) -> bytes | memoryview:
        body, size = bytearray(), 0
        began = asyncio.get_running_loop().time()
        if self._cycle is not None and message.get("more_body", False):
            # The connection puts what follows where it stays: `size` is then what it says.
            self._cycle.keep(message["body"], self.number(b"content-length"))
            message["body"], message["size"] = b"", len(message["body"])
        while message.get("more_body", False):
            body += message.get("body", b"")
            before, size = size, message.get("size", len(body))
            if size > limits.max_bytes:
                raise _too_large(limits)
            self.hold(size - before, limits.room)
            clock.reschedule(began + limits.due_s(size))
            message = await self._receive()
        last = self._end(message, limits)
        if body:
            body += last
        elif isinstance(last, bytearray):
            body = last
        else:
            return last
        if len(body) > limits.max_bytes:
            raise _too_large(limits)
        return memoryview(body).toreadonly() if self.has_tensors else bytes(body)

    def _end(self, message: Message, limits: BodyLimits) -> bytes | bytearray:
        if message["type"] == "http.disconnect":
            raise errors.CallerLeft("the client disconnected before its body was complete")
        last: bytes | bytearray = message.get("body", b"")
        return self._last(last, limits)

    def _last(self, part: T, limits: BodyLimits) -> T:
        self._whole = True
        if len(part) > limits.max_bytes:  # type: ignore[arg-type]
            raise _too_large(limits)
        return part

    def hold(self, size_bytes: int, room: BodyRoom) -> None:
        """Memory that this request keeps to its end, `release`. Raises Overloaded."""
        if not size_bytes:
            return
        if not self._held_bytes:  # the caller may be another one later
            self._held_by = self.quota_key
        room.take(self._held_by, size_bytes, self._held_bytes)
        self._room = room
        self._held_bytes += size_bytes

    def hold_answer(self, size_bytes: int, room: BodyRoom) -> None:
        """Memory that the answer will take, before it is there; what was said last counts, if it is
        more than before. Raises Overloaded."""
        if size_bytes > max(self._answer_bytes, UNCOUNTED_BYTES):
            self.hold(size_bytes - self._answer_bytes, room)
            self._answer_bytes = size_bytes

    def release(self) -> None:
        self._answer_bytes = 0
        if self._room is not None and self._held_bytes:
            self._room.give(self._held_by, self._held_bytes)
            self._held_bytes = 0

    async def next_part(self) -> Message:
        """Of the body, or that the client has left: ASGI's message, of a body that is a stream."""
        return await self._receive()

    async def until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def options(self) -> RequestOptions:
        """Raises BadRequest for a header that makes no sense."""
        if _OPTIONS.isdisjoint(self.headers):
            return NO_OPTIONS
        return RequestOptions(self._budget_s(), self._session(), self._repeatable())

    def _session(self) -> str:
        given = self.headers.get(b"x-session-id")
        if given is None:
            return ""
        if not SESSION.fullmatch(given):
            raise errors.BadRequest("x-session-id must be 1 to 128 printable characters")
        return given.decode("ascii")

    def _repeatable(self) -> bool:
        given = self.headers.get(b"x-idempotent", b"true").lower()
        if given not in (b"true", b"false"):
            raise errors.BadRequest("x-idempotent must be true or false")
        return given == b"true"

    def _budget_s(self) -> float | None:
        """Ray Serve acts on `x-request-timeout-seconds` itself, so ours ends a little earlier and
        answers first."""
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
            value = -1.0 if b"_" in raw else float(raw)
        except ValueError:
            value = -1.0
        if not 0.0 < value < 1e9:
            raise errors.BadRequest(f"{name.decode()} must be a positive number")
        return value

    def reply(
        self,
        status: int,
        answer: Encoded,
        headers: list[tuple[bytes, bytes]] | None = None,
        room: BodyRoom | None = None,
    ) -> Awaitable[None]:
        """`room`: where a large answer is to count until it is taken. Raises Overloaded, having
        sent nothing, where it has no place there."""
        if len(answer.body) > UNCOUNTED_BYTES and self.is_direct and room is not None:
            if len(answer.body) > self._answer_bytes:
                room.check(self.quota_key, len(answer.body) - self._answer_bytes, self._held_bytes)
            self.is_large = True
        self.replied = True
        return self._send_whole(status, answer, headers or ())

    async def refuse(
        self,
        error: errors.HeadraceError,
        form: Callable[[errors.HeadraceError], Encoded],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> int:
        """`form`: how the path's protocol writes an error. Returns the status that was sent."""
        headers = error.headers() if headers is None else headers
        error.request_id = self.request_id.decode("latin-1")
        answer = form(error)
        status = answer.status or error.status
        await self.reply(status, answer, headers)
        return status

    def _send_whole(
        self, status: int, answer: Encoded, headers: Iterable[tuple[bytes, bytes]]
    ) -> Awaitable[None]:
        head = self._head(answer, headers, (b"content-length", b"%d" % len(answer.body)))
        close = self._closes()
        body = b"" if self.method == "HEAD" else answer.body
        if self._cycle is not None:
            return self._cycle.answer(status, head, body, close=close)
        if close:
            head.append((b"connection", b"close"))
        return self._send_messages(status, head, body)

    async def _send_messages(
        self, status: int, head: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, answer: Encoded, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head and the beginning of a large answer; `send_chunk` and `end_stream` follow."""
        self.replied, self.is_large = True, self.is_direct
        size = [(b"content-length", b"%d" % answer.size)] if answer.size else []
        head = self._head(answer, headers, *size)
        await self._send({"type": "http.response.start", "status": 200, "headers": head})
        await self.send_chunk(answer.body)

    def _head(
        self,
        answer: Encoded,
        headers: Iterable[tuple[bytes, bytes]],
        *size: tuple[bytes, bytes],
    ) -> list[tuple[bytes, bytes]]:
        head = [
            (b"content-type", answer.content_type),
            *size,
            *self._names(),
            *answer.headers,
            *headers,
            *self.cors,
        ]
        accepts = self.headers.get(b"accept-encoding")
        if accepts is not None and stays_as_it_is(accepts, answer.content_type, len(answer.body)):
            head.append(AS_IT_IS)
        return head

    def _names(self) -> list[tuple[bytes, bytes]]:
        """The request's id, for Anthropic's clients under their own name, too."""
        named = [(b"x-request-id", self.request_id)]
        if self.path.startswith(error_shapes.MESSAGES):
            named.append((b"request-id", self.request_id))
        return named

    async def await_drained(self, room: BodyRoom) -> None:
        """Of a large answer: returns once the client has all of it but what a connection keeps, or
        has left. Until then what it has not is held, instead of the request's body. A view keeps
        all that it is a part of: then all is held, until the client has everything."""
        if self._cycle is None:
            return
        if self._shares:
            try:
                await self._cycle.all_taken()
            finally:
                self.release()
            return
        self.release()

        def held(size_bytes: int) -> None:
            room.keep(self.quota_key, size_bytes)
            self._room, self._held_bytes, self._held_by = room, size_bytes, self.quota_key

        try:
            await self._cycle.taken(held)
        finally:
            self.release()

    async def start_stream(self, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """The head of an answer whose body comes in chunks of unknown number."""
        self.replied = True
        head = [(b"content-type", content_type), *self._names(), *headers, *self.cors]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def send_chunk(self, data: bytes | memoryview) -> None:
        """Waits while the client is behind. A view is sent as it is, so its memory may not change
        until the client has it."""
        if isinstance(data, memoryview):
            if self.is_direct:
                self._shares = True
            else:  # another server, which may take bytes alone
                data = bytes(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    def _closes(self) -> bool:
        """Whether what is left of the body is too much, unknown, or too slow to wait for."""
        if self._whole:
            return False
        declared = self.headers.get(b"content-length", b"0")
        if self._slow or b"transfer-encoding" in self.headers:
            return True
        if not declared.isdigit() or len(declared) > _MAX_DIGITS:
            return True
        return int(declared) > _READ_TO_KEEP_BYTES


def _too_large(limits: BodyLimits) -> errors.BodyTooLarge:
    return errors.BodyTooLarge(
        f"the body is larger than {limits.limit_name} ({limits.max_bytes} bytes)"
    )


def _too_slow(limits: BodyLimits) -> str:
    said = f"the body did not arrive within {limits.timeout_s:g} s"
    if not limits.min_bytes_per_s or limits.grace_s >= limits.timeout_s:
        return said
    rate = f"less than {limits.min_bytes_per_s:g} bytes a second"
    return f"{said}, or {rate} came after {limits.grace_s:g} s"


def _request_id(given: bytes | None) -> bytes:
    """The caller's, if it is short and printable; it goes into logs and answers as it is."""
    if given is not None and SESSION.fullmatch(given):
        return given
    return b"%032x" % getrandbits(128)


@coroutine
def _resumed(waiting: Generator[Any, Any, Any], pending: Any) -> Generator[Any, Any, Any]:
    """Goes on awaiting what was begun by hand and first asked to wait for `pending`."""
    while True:
        thrown: BaseException | None = None
        try:
            sent = yield pending
        except BaseException as fault:
            thrown = fault
        try:
            pending = waiting.send(sent) if thrown is None else waiting.throw(thrown)
        except StopIteration as end:
            return end.value


async def run_until_disconnect(
    exchange: Exchange, answers: Awaitable[T], left: Callable[..., None], *of: Any
) -> T:
    """What is awaited; `left(*of)` is called if the client leaves before."""
    exchange.watch.begin(exchange, left, *of)
    try:
        return await answers
    except asyncio.CancelledError:
        left(*of)
        raise
    finally:
        exchange.watch.end(exchange)


class DisconnectWatch:
    """Calls `left` of the requests whose clients disconnect. One timer looks for those that have
    waited for a while: one a request costs 5 us, and most are answered before."""

    def __init__(self) -> None:
        self._waiting: dict[Exchange, tuple[float, Callable[..., None], tuple[Any, ...]]] = {}
        self._watching: dict[Exchange, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, exchange: Exchange, left: Callable[..., None], *of: Any) -> None:
        self._waiting[exchange] = time.perf_counter(), left, of
        if self._timer is None:
            self._look_in(_WATCH_AFTER_S)

    def end(self, exchange: Exchange) -> None:
        if self._waiting.pop(exchange, None) is None:
            self._watching.pop(exchange).cancel()

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            seconds, self._look, context=contextvars.Context()
        )

    def _look(self) -> None:
        self._timer = None
        now = time.perf_counter()
        for exchange, (since, left, of) in list(self._waiting.items()):
            if now - since < _WATCH_AFTER_S:  # and so have all behind it
                self._look_in(_WATCH_AFTER_S - (now - since))
                return
            del self._waiting[exchange]
            self._watching[exchange] = asyncio.create_task(_until_gone(exchange, left, *of))


async def _until_gone(exchange: Exchange, left: Callable[..., None], *of: Any) -> None:
    await exchange.until_disconnect()
    left(*of)


MIN_BYTES = 4096
AS_IT_IS = (b"cache-control", b"no-transform")
_COMPRESSED = b"application/json"
_MAX_KEPT = 256
_LONGEST_KEPT = 200


def stays_as_it_is(accept_encoding: bytes, content_type: bytes, size_bytes: int) -> bool:
    """Of JSON; nothing else is compressed anyway."""
    if content_type != _COMPRESSED:
        return False
    if size_bytes < MIN_BYTES or len(accept_encoding) > _LONGEST_KEPT:
        return True
    return not prefers_gzip(accept_encoding)


@lru_cache(_MAX_KEPT)
def prefers_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is accepted, and nothing uncompressed is asked for before it."""
    weights = dict(_weighed(part) for part in accept_encoding.lower().split(b","))
    gzip = weights.get(b"gzip", weights.get(b"*", 0.0))
    return gzip > 0.0 and gzip >= weights.get(b"identity", 0.0)


def _weighed(part: bytes) -> tuple[bytes, float]:
    name, _, parameters = part.partition(b";")
    weight = parameters.strip().removeprefix(b"q=")
    if not parameters:
        return name.strip(), 1.0
    try:
        return name.strip(), min(max(float(weight), 0.0), 1.0)
    except ValueError:
        return name.strip(), 0.0
