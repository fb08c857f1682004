"""What is a request while it waits in a model's queue or runs?

- `PendingBatchRequest` has a future, which resolves to the answers of all its rows.
- `PendingStreamRequest` has a buffer. The queue puts in the pieces that the replica sends, and the
  caller takes them out at its own pace. Unread bytes are bounded by `MAX_UNREAD_BYTES`: a client
  that reads too slowly loses its answer, holds up nobody else and cannot grow the gateway's memory.
  An answer that is not streamed is handed out only when it is whole, so that until then the request
  may still run elsewhere.

`BatchRecord` is what a finished batch tells metrics and tracing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from deployments.contract import errors
from deployments.contract.channel.frames import BatchReply
from deployments.contract.channel.stream_messages import Piece
from deployments.gateway.queues.dispatcher_driver import VersionTerms
from deployments.gateway.queues.suspect_permits import Permit
from deployments.gateway.rows import RowAnswer, Rows
from deployments.gateway.tracing import TraceContext
from routers.api.requests import Generation, LeaseEnd, Request, Tokens

MAX_UNREAD_BYTES = 1 << 20  # of one answer; one piece may be larger


class PendingBatchRequest(msgspec.Struct, eq=False):
    """A request whose caller waits for the answers of all rows."""

    request: Request  # as the dispatcher knows it
    rows: Rows
    terms: VersionTerms  # under which the rows were parsed
    future: asyncio.Future[tuple[RowAnswer, ...]]  # all rows' answers, in order, or the error
    answers: list[RowAnswer | None]  # so far, by row
    missing: int  # rows without an answer
    trace: TraceContext | None = None
    sent: bool = False  # a row of it was sent to a replica, once at least
    sent_again: bool = False  # in a second lease: one of other rows, a copy, or after a loss
    last_fault: errors.HeadraceError | None = None  # of a row that failed last

    @property
    def begun(self) -> bool:
        """Its caller is given all of the answer at once."""
        return False

    def fail(self, error: errors.HeadraceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class BatchEnd(Enum):
    """What became of a lease that was sent, as metrics count it."""

    ANSWERED = "answered"
    UNUSED = "unused"  # answered, but no request waited for any of its answers any more
    RETURNED = "returned"  # not started: no room, or another batch's turn
    DROPPED = "dropped"  # no whole answer: a batch not started, a stream that stopped or failed
    LOST = "lost"  # the replica was lost, or did not answer in time


LEASE_COUNTS = {
    LeaseEnd.DONE: BatchEnd.ANSWERED,
    LeaseEnd.BUSY: BatchEnd.RETURNED,
    LeaseEnd.ABORTED: BatchEnd.DROPPED,
    LeaseEnd.LOST: BatchEnd.LOST,
}


@dataclass(slots=True)
class BatchRecord:
    """What a finished batch tells metrics and tracing."""

    replica_id: str
    size: int  # rows
    bucket: int  # upper edge, tokens
    predicted_s: float  # service time
    started: float  # when it was dispatched, on the monotonic clock
    round_trip_s: float  # from dispatch to reply
    tokens: int  # of all rows, without padding
    reply: BatchReply
    traces: tuple[TraceContext | None, ...]  # of its requests, each once


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to generate, as it is measured by the gateway and sent to an engine."""

    endpoint: str  # as in `runtimes.types.StreamRequest`
    body: bytes  # as in `runtimes.types.StreamRequest`
    tokens: int  # of the prompt, as far as the gateway can tell, at most a context's
    generation: Generation  # what the request may take besides
    streams: bool  # the caller wants each piece as it comes
    total_tokens: int = 0  # of all prompts of the request
    salt: str = ""  # whose cached prompts it may find; "": everybody's
    fingerprint: bytes = b""  # equal where an engine is given the same work
    hashed_tokens: int = 0  # of the prompt that the hashes of `generation.blocks` are of


@dataclass(slots=True, eq=False)
class PendingStreamRequest:
    """A request whose answer comes piece by piece."""

    request: Request  # as the dispatcher knows it
    prompt: Prompt
    terms: VersionTerms  # under which the prompt was measured
    trace: TraceContext | None = None
    repeats: int = 0  # leases that it has been in besides the first

    # What has come of it.
    status: int = 200  # HTTP's, of the first piece
    tokens: Tokens = field(default_factory=Tokens)  # so far
    service_s: float = 0.0  # at its replica, so far

    # Times on the monotonic clock; 0.0: not yet.
    dispatched_at: float = 0.0
    first_at: float = 0.0  # its first token came
    last_at: float = 0.0  # its last token came

    replica_id: str = ""  # where it runs, or ran last
    # The leases that it runs as, and the replica of each. There are two while one races the other;
    # until the race is decided the caller has been given nothing of either.
    leases: dict[int, str] = field(default_factory=dict)
    last_words: Piece | None = None  # what its engine sent as it failed on it
    last_reported: int = 0  # output tokens that the dispatcher was told of
    permit: Permit | None = None  # to run although it is a suspect; its first token releases it
    # Told of the tokens that its run still had between its end and the run's.
    counts_late: Callable[[Tokens], None] | None = None

    _unread: list[bytes] = field(default_factory=list)  # pieces that the caller has not taken
    _unread_bytes: int = 0
    _given: bool = False  # the caller was given something, or may have been
    _ended: bool = False  # whole, or failed
    _error: errors.HeadraceError | None = None
    _reader_wakes: asyncio.Future[None] | None = None  # what a caller in `next` awaits

    # ---- the caller's side ----------------------------------------------------------------

    async def next(self) -> bytes:
        """Wait for more of the answer: at least one byte, or b"" at its end. Raises the error that
        ended it; of a streamed answer, once all that came before has been taken."""
        while not self._readable:
            self._reader_wakes = asyncio.get_running_loop().create_future()
            try:
                await self._reader_wakes
            finally:
                self._reader_wakes = None
        if self._error is not None and not (self._unread and self.prompt.streams):
            raise self._error
        data = b"".join(self._unread)
        self._discard_unread()
        return data

    @property
    def _readable(self) -> bool:
        return self._ended or (self.prompt.streams and bool(self._unread))

    # ---- the queue's side -----------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the answer is whole or has failed."""
        return self._ended

    @property
    def error(self) -> errors.HeadraceError | None:
        return self._error

    @property
    def sent(self) -> bool:
        """Whether the request was sent to a replica, once at least."""
        return self.dispatched_at > 0.0

    @property
    def begun(self) -> bool:
        """Whether the caller was given a part of the answer, or may have been."""
        return self._given

    def runs_as(self, lease_id: int, replica_id: str) -> None:
        """From now on this lease answers the request, and no other."""
        self.leases, self.replica_id = {lease_id: replica_id}, replica_id

    def goes_on_without(self, lease_id: int) -> None:
        """One of two leases has ended; the other one answers the request."""
        del self.leases[lease_id]
        (self.replica_id,) = self.leases.values()

    def take(self, piece: Piece, now: float) -> bool:
        """Take in a piece: counts, times and bytes. False: there was no room for its bytes, and
        all unread bytes are discarded; counts and times are kept."""
        if piece.output_tokens > self.tokens.output:
            if self.permit is not None:
                self.permit.release()
                self.permit = None
            self.first_at, self.last_at = self.first_at or now, now
        self.tokens = Tokens(piece.input_tokens, piece.cached_tokens, piece.output_tokens)
        self.service_s = piece.service_s
        if not piece.data:
            return True
        if self._unread and self._unread_bytes + len(piece.data) > MAX_UNREAD_BYTES:
            self._discard_unread()
            return False
        if not self._given and not self._unread:
            self.status = piece.status
        self._given = self._given or self.prompt.streams
        self._unread.append(piece.data)
        self._unread_bytes += len(piece.data)
        if self.prompt.streams:
            self._wake_reader()
        return True

    def take_late(self, lease_id: int, piece: Piece) -> None:
        """Take in the last counts of a run that was aborted because the request had ended."""
        if lease_id not in self.leases:
            return
        before = self.tokens
        self.tokens = Tokens(
            max(before.input, piece.input_tokens),
            max(before.cached, piece.cached_tokens),
            max(before.output, piece.output_tokens),
        )
        if self.counts_late is not None and self.tokens != before:
            now = self.tokens
            more = now.input - before.input, now.cached - before.cached, now.output - before.output
            self.counts_late(Tokens(*more))

    def forget_run(self) -> None:
        """Forget what the run has brought, unless its caller was given a part of it."""
        if self._given:
            return
        self._discard_unread()
        self.tokens, self.last_reported = Tokens(), 0
        self.first_at = self.last_at = self.service_s = 0.0

    def finish(self) -> None:
        """The answer is whole."""
        self._ended = True
        self._wake_reader()

    def fail(self, error: errors.HeadraceError) -> None:
        """End the answer with an error, unless it has ended already."""
        if self._ended:
            return
        self._error = error
        self.finish()

    def _discard_unread(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0

    def _wake_reader(self) -> None:
        if self._reader_wakes is not None and not self._reader_wakes.done():
            self._reader_wakes.set_result(None)
