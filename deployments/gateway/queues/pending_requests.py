"""Requests that wait in a model's queue: for all their rows' answers, or for an answer that flows.

A batch request's future resolves to its rows' answers. Of a streamed answer the queue puts pieces
in as the replica brings them and the caller takes them out at its own pace; what lies unread is
bounded, so that a client that reads too slowly loses its answer and neither holds up others nor
grows the gateway's memory. Of an answer that is not streamed nothing is given before all is there,
so that it may still run elsewhere. A record is what one finished batch tells metrics and tracing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from deployments.contract import errors
from deployments.contract.channel.messages import BatchReply
from deployments.contract.channel.stream_messages import Piece
from deployments.gateway.queues.core_loop import VersionTerms
from deployments.gateway.queues.suspect_permits import Permit
from deployments.gateway.rows.types import RowAnswer, Rows
from deployments.gateway.telemetry.tracing import TraceContext
from routers.api.requests import Generation, LeaseEnd, Request, Tokens

MOST_UNREAD_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class PendingBatchRequest:
    """A caller waiting for all its rows. `future` resolves to the tuple of row answers. `sent`:
    rows of it have been sent to a replica, once at least."""

    request: Request
    rows: Rows
    terms: VersionTerms
    future: asyncio.Future[tuple[RowAnswer, ...]]
    answers: list[RowAnswer | None]
    missing: int
    trace: TraceContext | None = None
    sent: bool = False

    def fail(self, error: errors.HeadraceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class BatchEnd(Enum):
    """What became of a batch that was sent, as metrics count it."""

    ANSWERED = "answered"
    UNUSED = "unused"  # answered, when nobody waited for any of it any more
    RETURNED = "returned"  # not started: no room, or another's turn
    DROPPED = "dropped"  # not started, and nobody waits for it
    LOST = "lost"


LEASE_COUNTS = {
    LeaseEnd.DONE: BatchEnd.ANSWERED,
    LeaseEnd.BUSY: BatchEnd.RETURNED,
    LeaseEnd.ABORTED: BatchEnd.DROPPED,
    LeaseEnd.LOST: BatchEnd.LOST,
}


@dataclass(slots=True)
class BatchRecord:
    """What a finished batch tells metrics and tracing. Times are seconds."""

    replica_id: str
    size: int
    bucket: int
    predicted_s: float
    started: float
    round_trip_s: float
    tokens: int
    reply: BatchReply
    traces: tuple[TraceContext | None, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`endpoint`, `body`: as in `runtimes.types.Ask`. `tokens`: the prompt's, as far as the gateway
    can tell, at most a context's; `total_tokens`: of all its prompts. `streams`: the caller wants
    each piece as it comes; `salt`: whose cached prompts it may find, "" those of all;
    `fingerprint`: equal where the engine is given the same work."""

    endpoint: str
    body: bytes
    tokens: int
    generation: Generation
    streams: bool
    total_tokens: int = 0
    salt: str = ""
    fingerprint: bytes = b""


@dataclass(slots=True, eq=False)
class PendingStreamRequest:
    """`status`: HTTP's, of the first piece. Times are on the monotonic clock, 0.0: not yet;
    `first_at`, `last_at`: when its first and its last token came. `replica_id`: where it runs or
    ran last. `leases`: as what, and at which replica each: two while one races the other, then
    nothing of either has been given. `repeats`: leases besides the first that it has been in.
    `last_words`: what its engine said as it failed on it. `last_reported`: output tokens that the
    queue has passed on to the dispatcher. `permit`: of a suspect, released by its first token."""

    request: Request
    prompt: Prompt
    terms: VersionTerms
    trace: TraceContext | None = None
    repeats: int = 0
    status: int = 200
    tokens: Tokens = field(default_factory=Tokens)
    service_s: float = 0.0
    dispatched_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    replica_id: str = ""
    leases: dict[int, str] = field(default_factory=dict)
    last_words: Piece | None = None
    last_reported: int = 0
    permit: Permit | None = None
    _unread: list[bytes] = field(default_factory=list)
    _unread_bytes: int = 0
    _given: bool = False
    _over: bool = False
    _error: errors.HeadraceError | None = None
    _wake: asyncio.Future[None] | None = None

    # ---- the caller's side ----------------------------------------------------------------

    async def next(self) -> bytes:
        """What has come since the last time, at least one byte; b"" at the answer's end. Raises the
        error that ended it, once all that came before has been read."""
        while not self._readable:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        if self._error is not None and not (self._unread and self.prompt.streams):
            raise self._error
        data = b"".join(self._unread)
        self._drop()
        return data

    @property
    def _readable(self) -> bool:
        return self._over or (self.prompt.streams and bool(self._unread))

    # ---- the queue's side -----------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._over

    @property
    def error(self) -> errors.HeadraceError | None:
        return self._error

    @property
    def sent(self) -> bool:
        """Whether it has been sent to a replica, once at least."""
        return self.dispatched_at > 0.0

    @property
    def begun(self) -> bool:
        """Its caller has been given something, or may have been."""
        return self._given

    def runs_as(self, lease_id: int, replica_id: str) -> None:
        """This lease's pieces count, and no others'."""
        self.leases, self.replica_id = {lease_id: replica_id}, replica_id

    def goes_on_without(self, lease_id: int) -> None:
        """The other one of two goes on alone."""
        del self.leases[lease_id]
        (self.replica_id,) = self.leases.values()

    def take(self, piece: Piece, now: float) -> bool:
        """Whether there was room for it; counts and times are kept all the same."""
        if piece.output_tokens > self.tokens.output:
            if self.permit is not None:
                self.permit.release()
                self.permit = None
            self.first_at, self.last_at = self.first_at or now, now
        self.tokens = Tokens(piece.input_tokens, piece.cached_tokens, piece.output_tokens)
        self.service_s = piece.service_s
        if not piece.data:
            return True
        if self._unread and self._unread_bytes + len(piece.data) > MOST_UNREAD_BYTES:
            self._drop()
            return False
        if not self._given and not self._unread:
            self.status = piece.status
        self._given = self._given or self.prompt.streams
        self._unread.append(piece.data)
        self._unread_bytes += len(piece.data)
        if self.prompt.streams:
            self._awake()
        return True

    def forget_run(self) -> None:
        """What its run has brought, unless that is its caller's already."""
        if self._given:
            return
        self._drop()
        self.tokens, self.last_reported = Tokens(), 0
        self.first_at = self.last_at = self.service_s = 0.0

    def finish(self) -> None:
        """All of the answer is here."""
        self._over = True
        self._awake()

    def fail(self, error: errors.HeadraceError) -> None:
        if self._over:
            return
        self._error = error
        self.finish()

    def _drop(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
