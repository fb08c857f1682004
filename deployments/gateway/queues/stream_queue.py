"""One model's streams: callers' prompts become runs at replicas, pieces become their answers.

The dispatcher decides which prompt goes where and when; this queue obeys, and tells it what pieces
say: how many tokens a run has had and holds. What a run brings goes to its caller at once. A caller
that leaves, reads too slowly or runs out of time has its run aborted, which frees its tokens. Lost
work runs once more elsewhere while its caller has been given nothing; afterwards the answer ends
with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deployments.contract import errors
from deployments.contract.description import Generating
from deployments.contract.replica_directory import RunningReplica
from deployments.contract.stream_wire import GenerateCall, Piece, StreamEnd
from deployments.gateway.queues.core_loop import CoreLoop, Demand, Terms, changed, clock
from deployments.gateway.queues.pending_requests import MOST_UNREAD_BYTES, Prompt, StreamTicket
from deployments.gateway.queues.stream_calls import Run, StreamCalls
from deployments.gateway.queues.transport import StreamTransport
from routers.settings import DispatcherSettings
from routers.types import (
    Abort,
    Arrive,
    Cancel,
    Closed,
    Dispatch,
    LeaseEnd,
    Opened,
    Progress,
    Replica,
    ReplicaKind,
    Replicas,
    Report,
)
from runtimes.types import EngineLoad

_LATER_S = 1.0  # a replica gives up this much later than we do, so that we say why
_TELL_TOKENS = 16  # how often the dispatcher hears of a run: a step of it costs 10 to 30 us


class StreamQueue(CoreLoop[StreamTicket]):
    """`gateway`: its name at the replicas. `output_tokens`: that callers were brought, ever."""

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: Terms,
        transport: StreamTransport,
        *,
        gateway: str,
    ) -> None:
        super().__init__(settings, terms)
        self.calls = StreamCalls(self, transport)
        self._gateway = gateway
        self._shape = Generating(0, 0, 0)
        self.output_tokens = 0

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, prompt: Prompt, terms: Terms, demand: Demand) -> StreamTicket:
        """Queues a request that was measured under `terms`. Raises the error of an immediate
        rejection; the ticket gives the answer, or its error."""
        if not self.terms.take(terms):
            raise changed()
        now = clock()
        request = self._request((prompt.tokens,), terms, demand, now)
        request.generation = prompt.generation
        ticket = StreamTicket(request, prompt, terms)
        self._enter(ticket, now)
        if ticket.error is not None:
            raise ticket.error
        return ticket

    def set_replicas(self, replicas: Sequence[RunningReplica], shape: Generating) -> None:
        """`shape`: what each of them may hold."""
        self._shape = shape
        self.calls.follow({r.replica_id for r in replicas})
        self.links_changed()

    def close(self) -> None:
        """What waits is refused, what runs goes on to its end."""
        super().close()
        self.calls.follow(frozenset())

    @property
    def duty(self) -> dict[str, float]:
        """Share of each replica's key-value cache that is in use, 0..1."""
        return {uid: load.cache_used for uid, load in self.calls.loads.items()}

    @property
    def loads(self) -> dict[str, EngineLoad]:
        return self.calls.loads

    # ---- obeying ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        ticket = self._tickets[lease.rows[0][0]]
        ticket.dispatched_at, ticket.replica_id = now, lease.replica_id
        self.calls.begin(lease, ticket)

    def _abort(self, action: Abort) -> None:
        """An answer of which something was given cannot be put back: it goes on."""
        run = self.calls.run(action.lease_id)
        if run is not None and not (self._is_live(run) and run.ticket.begun):
            self.calls.abort(action.lease_id)

    def _is_live(self, run: Run) -> bool:
        """Whether its caller waits for this very run."""
        request = run.ticket.request
        return request.request_id == run.lease.rows[0][0] and request.request_id in self._tickets

    # ---- what becomes of runs (`RunOwner`) ----------------------------------------------------

    def links_changed(self) -> None:
        shape = self._shape
        up = tuple(
            Replica(uid, float(shape.cache_tokens), ReplicaKind.STREAM, shape.max_sequences)
            for uid in self.calls.up
        )
        self._step(Replicas(up), clock())

    def may_begin(self, run: Run) -> bool:
        if self.terms.take(run.ticket.terms):
            return True
        self._finish(run.ticket, changed())
        return False

    def call_of(self, run: Run) -> GenerateCall:
        lease, ticket = run.lease, run.ticket
        left_s = max(ticket.request.expires - clock(), 0.0) + _LATER_S
        prompt, priority = ticket.prompt, ticket.request.priority
        return GenerateCall(
            self._gateway, lease.lease_id, prompt.endpoint, prompt.body, left_s, priority
        )

    def opened(self, run: Run) -> None:
        self._step(Opened(run.lease.lease_id), clock())

    def progressed(self, run: Run, piece: Piece) -> None:
        if run.aborted or not self._is_live(run):
            return  # nothing of it is given any more
        ticket, now = run.ticket, clock()
        if not self._take(ticket, piece, now):
            self._finish(ticket, _too_slow())
            return
        new = ticket.tokens.output - ticket.told
        if not ticket.told or new >= _TELL_TOKENS:
            ticket.told = ticket.tokens.output
            progress = Progress(
                run.lease.lease_id, piece.service_s, float(piece.held_tokens), ticket.tokens
            )
            self._step(progress, now)

    def ended(self, run: Run, piece: Piece, report: Report) -> LeaseEnd:
        how = piece.end or StreamEnd.DONE
        end, ticket = _END[how], run.ticket
        if not self._is_live(run):
            end = LeaseEnd.ABORTED if end is LeaseEnd.DONE else end  # nobody waited for it any more
        elif run.aborted:  # its rows were wanted back: pieces of it may have been dropped
            end = LeaseEnd.ABORTED if how in (StreamEnd.DONE, StreamEnd.FAILED) else end
            self._unanswered(ticket)
        elif how in (StreamEnd.DONE, StreamEnd.FAILED):
            end = self._answered(ticket, piece, how)
        else:
            self._unanswered(ticket)
        self._step(Closed(run.lease.lease_id, end, report), clock())
        return end

    def closed(self, run: Run, end: LeaseEnd, report: Report) -> None:
        if self._is_live(run):
            self._unanswered(run.ticket)
        self._step(Closed(run.lease.lease_id, end, report), clock())

    # ---- what becomes of callers --------------------------------------------------------------

    def _unanswered(self, ticket: StreamTicket) -> None:
        """Its run is over, and the dispatcher may have it run again."""
        if ticket.begun:
            self._finish(ticket, errors.ReplicaLost("the replica that wrote this answer was lost"))
        else:
            ticket.again()

    def _answered(self, ticket: StreamTicket, piece: Piece, how: StreamEnd) -> LeaseEnd:
        """Only a whole answer is a sample of what answers cost."""
        failed = how is StreamEnd.FAILED
        if failed and self._retry(ticket):
            return LeaseEnd.ABORTED
        begun = ticket.begun
        fits = self._take(ticket, piece, clock())
        if not fits:
            self._finish(ticket, _too_slow())
            return LeaseEnd.DONE
        if failed and (begun or not piece.data):
            self._finish(ticket, errors.RowFailed("the engine failed on this request"))
            return LeaseEnd.ABORTED
        self._leave(ticket)
        ticket.finish()
        if not failed and ticket.status == 200:
            return LeaseEnd.DONE
        self._step(Cancel(ticket.request.request_id), clock())
        return LeaseEnd.ABORTED

    def _take(self, ticket: StreamTicket, piece: Piece, now: float) -> bool:
        before = ticket.tokens.output
        fits = ticket.take(piece, now)
        self.output_tokens += max(ticket.tokens.output - before, 0)
        return fits

    def _retry(self, ticket: StreamTicket) -> bool:
        """What the engine failed on runs once more as a request of its own, on another replica
        where there is one."""
        old, now = ticket.request, clock()
        if ticket.begun or ticket.retried or not old.retryable or old.expires <= now:
            return False
        self._leave(ticket)
        ticket.retried = True
        ticket.request = replace(old, request_id=next(self._ids), avoid=ticket.replica_id)
        ticket.again()
        self._tickets[ticket.request.request_id] = ticket
        self._step(Cancel(old.request_id), now)
        self._step(Arrive(ticket.request), now)
        return True


_END = {
    StreamEnd.DONE: LeaseEnd.DONE,
    StreamEnd.ABORTED: LeaseEnd.ABORTED,
    StreamEnd.BUSY: LeaseEnd.BUSY,
    StreamEnd.FAILED: LeaseEnd.ABORTED,
}


def _too_slow() -> errors.ReaderTooSlow:
    return errors.ReaderTooSlow(
        f"over {MOST_UNREAD_BYTES} bytes of the answer were not read in time"
    )
