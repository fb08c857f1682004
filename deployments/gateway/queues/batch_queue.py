"""One model's batches: rows of its waiting callers become calls, replies become their answers.

The dispatcher decides, this queue obeys and feeds the ends of calls back as events. A future is
registered before its rows can be dispatched, and is resolved once: by the first answer to each of
its rows, of whichever lease, or by an error. A row that the runtime failed on alone is no answer
while a speculative copy of its lease still runs: its failure is pending until that one has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deployments.contract import errors
from deployments.contract.batch_wire import BatchReply
from deployments.contract.replica_directory import RunningReplica
from deployments.gateway.queues.batch_calls import LeaseCalls, Sent, deliver_rows
from deployments.gateway.queues.core_loop import CoreLoop, Demand, Terms, changed, clock, refusal
from deployments.gateway.queues.pending_requests import BatchRecord, Ticket
from deployments.gateway.queues.transport import Transport
from deployments.gateway.rows.types import RowAnswer, Rows
from routers.settings import DispatcherSettings
from routers.types import (
    Abort,
    Arrive,
    Cancel,
    Closed,
    Dispatch,
    LeaseEnd,
    Opened,
    Reason,
    Replica,
    Replicas,
    Report,
)
from runtimes.types import EngineLoad

_IDLE_S = 20.0  # a replica that has not answered for so long is not busy


@dataclass(frozen=True, slots=True)
class PendingRowFailure:
    """A row that failed with `error` on `replica_id`, and may be answered by the other lease."""

    ticket: Ticket
    of: tuple[int, int]
    error: errors.HeadraceError
    replica_id: str


class Copies:
    def __init__(self) -> None:
        self._open: dict[int, Dispatch] = {}
        self._other: dict[int, int] = {}
        self._hopes: dict[int, list[PendingRowFailure]] = {}

    def began(self, lease: Dispatch) -> None:
        self._open[lease.lease_id] = lease
        if lease.copy_of in self._open:
            self._other[lease.lease_id] = lease.copy_of
            self._other[lease.copy_of] = lease.lease_id

    def ended(self, lease_id: int) -> list[PendingRowFailure]:
        """What was hoped of this lease; its rows have been delivered."""
        self._open.pop(lease_id, None)
        other = self._other.pop(lease_id, None)
        if other is not None:
            del self._other[other]
        return self._hopes.pop(lease_id, [])

    def hope(self, lease_id: int, hope: PendingRowFailure) -> bool:
        """A row failed in this lease; whether another one that carries it still runs."""
        other = self._other.get(lease_id)
        if other is None or hope.of not in self._open[other].rows:
            return False
        self._hopes.setdefault(other, []).append(hope)
        return True

    def is_hoped_for(self, lease_id: int) -> bool:
        return lease_id in self._hopes


class BatchQueue(CoreLoop[Ticket]):
    """`on_batch` hears of every batch that was answered."""

    output_tokens = 0

    def __init__(
        self,
        settings: DispatcherSettings,
        terms: Terms,
        transport: Transport,
        *,
        gateway: str,
        on_batch: Callable[[BatchRecord], None],
    ) -> None:
        super().__init__(settings, terms)
        self.calls = LeaseCalls(self, transport, gateway)
        self._copies = Copies()
        self._on_batch = on_batch
        self._duty: dict[str, tuple[float, float]] = {}

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(self, rows: Rows, terms: Terms, demand: Demand) -> Ticket:
        """Queues a request whose rows were parsed under `terms`.

        Raises the error of an immediate rejection. The ticket's future gets the row answers, in
        order, or the error.
        """
        if not self.terms.take(terms):
            raise changed()
        now = clock()
        request = self._request(rows.lengths, terms, demand, now)
        count = len(rows.lengths)
        future: asyncio.Future[tuple[RowAnswer, ...]] = self._loop.create_future()
        ticket = Ticket(request, rows, terms, future, [None] * count, count)
        self._enter(ticket, now)
        if ticket.future.done():
            ticket.future.result()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """The caller left: its place is free, its future raises `CallerLeft`; idempotent."""
        super().cancel(ticket)
        if ticket.future.done():
            ticket.future.exception()  # seen: perhaps nobody awaits it any more

    def set_replicas(self, replicas: Sequence[RunningReplica], slots: int) -> None:
        known = tuple(Replica(r.replica_id, slots) for r in replicas)
        self._duty = {r.replica_id: self._duty.get(r.replica_id, (0.0, 0.0)) for r in replicas}
        self.calls.forget(self._duty.keys())
        self._step(Replicas(known), clock())

    @property
    def duty(self) -> dict[str, float]:
        """Busy share of wall time by replica, 0..1, as of its last answer; 0 when that is old."""
        now = clock()
        return {r: duty if now - at < _IDLE_S else 0.0 for r, (duty, at) in self._duty.items()}

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """Engines' own accounts, which batch replicas have none of."""
        return {}

    # ---- obeying ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        self._copies.began(lease)
        if lease.copy_of:
            known = self.calls.members(lease.copy_of)
            members = [known[row] for row in lease.rows]
        else:
            members = [self._tickets[request_id] for request_id, _ in lease.rows]
        self.calls.send(lease, members, now)

    def _abort(self, action: Abort) -> None:
        if not self._copies.is_hoped_for(action.lease_id):
            self.calls.abort(action.lease_id)

    # ---- what becomes of leases (`LeaseOwner`) ------------------------------------------------

    def may_send(self, sent: Sent) -> bool:
        stale = [m for m in sent.members if not self.terms.take(m.terms)]
        for ticket in stale:
            self._finish(ticket, changed())
        return not stale

    def opened(self, sent: Sent) -> None:
        self._step(Opened(sent.lease.lease_id), clock())

    def answered(self, sent: Sent, version: str, round_trip_s: float, reply: BatchReply) -> bool:
        lease = sent.lease
        self._duty[lease.replica_id] = reply.duty, clock()
        self._on_batch(_record(sent, round_trip_s, reply))
        answers = deliver_rows(lease, sent.at, version, reply)
        wanted = [
            (ticket, of, answer)
            for ticket, of, answer in zip(sent.members, lease.rows, answers, strict=True)
            if _awaits(ticket, of)
        ]
        for ticket, of, answer in wanted:
            self._row_done(lease, ticket, of, answer)
        return bool(wanted)

    def failed(self, sent: Sent) -> None:
        """Whoever has no answer yet gets an error, and no second try."""
        for ticket, (request_id, _) in zip(sent.members, sent.lease.rows, strict=True):
            if ticket.request.request_id == request_id:
                self._finish(ticket, errors.RowFailed("the request could not be answered"))

    def closed(self, sent: Sent, end: LeaseEnd, report: Report) -> None:
        lease_id = sent.lease.lease_id
        hopes = self._copies.ended(lease_id)
        self._step(Closed(lease_id, end, report), clock())
        for hope in hopes:
            if _awaits(hope.ticket, hope.of):
                self._row_failed(hope)

    # ---- what becomes of rows -----------------------------------------------------------------

    def _row_done(
        self, lease: Dispatch, ticket: Ticket, of: tuple[int, int], answer: RowAnswer
    ) -> None:
        """A row's answer or error; the last row resolves the caller's future."""
        if not _awaits(ticket, of):
            return
        if answer.error is not None:
            failed = PendingRowFailure(ticket, of, answer.error, lease.replica_id)
            if isinstance(answer.error, errors.RowFailed) and self._hope(lease, failed):
                return
            self._row_failed(failed)
            return
        ticket.answers[of[1]] = answer
        ticket.missing -= 1
        if ticket.missing == 0:
            self._resolve(ticket)

    def _hope(self, lease: Dispatch, failed: PendingRowFailure) -> bool:
        """Leaves a row to the other lease that carries it, if one still runs. The dispatcher deems
        it answered, so its time is kept here."""
        if not self._copies.hope(lease.lease_id, failed):
            return False
        ticket = failed.ticket
        left_s = max(ticket.request.expires - clock(), 0.0)
        self._loop.call_later(left_s, self._finish, ticket, refusal(Reason.EXPIRED, 0.0))
        return True

    def _row_failed(self, failed: PendingRowFailure) -> None:
        ticket, error = failed.ticket, failed.error
        if isinstance(error, errors.RowFailed) and self._retry(ticket, failed.replica_id):
            return
        self._finish(ticket, error)

    def _resolve(self, ticket: Ticket) -> None:
        self._leave(ticket)
        ticket.future.set_result(tuple(a for a in ticket.answers if a is not None))

    def _retry(self, ticket: Ticket, replica_id: str) -> bool:
        """A row that a runtime failed on, alone, runs once more as a request of its own, on another
        replica than `replica_id` where there is one."""
        old = ticket.request
        now = clock()
        if ticket.retried or not old.retryable or old.expires <= now:
            return False
        ticket.retried = True
        del self._tickets[old.request_id]
        again = replace(old, request_id=next(self._ids), avoid=replica_id)
        ticket.request = again
        ticket.answers = [None] * len(old.lengths)
        ticket.missing = len(old.lengths)
        self._tickets[again.request_id] = ticket
        self._step(Cancel(old.request_id), now)
        self._step(Arrive(again), now)
        return True


def _awaits(ticket: Ticket, of: tuple[int, int]) -> bool:
    """Whether an answer to this row, (request id, row) of a lease, is still wanted: not of one that
    the other lease has answered, nor of what the ticket was before its retry."""
    request_id, row = of
    if ticket.future.done() or ticket.request.request_id != request_id:
        return False
    return ticket.answers[row] is None


def _record(sent: Sent, round_trip_s: float, reply: BatchReply) -> BatchRecord:
    lease, members = sent.lease, sent.members
    tokens = sum(m.request.lengths[row] for m, (_, row) in zip(members, lease.rows, strict=True))
    return BatchRecord(
        lease.replica_id, len(lease.rows), lease.bucket, lease.predicted_s, sent.at, round_trip_s,
        tokens, reply, tuple(dict.fromkeys(m.trace for m in members)),
    )  # fmt: skip
