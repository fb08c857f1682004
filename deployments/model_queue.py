"""One model's dispatcher at work: performs its actions, keeps payloads and futures, sets timers.

The dispatcher decides, this loop obeys: it owns the map from request id to waiting caller, turns
leases into calls and calls' ends into events. Every lease ends in `finally`; a future is registered
before its rows can be dispatched. Lease tasks run in an empty context: inside a request's context
one caller's disconnect would cancel the whole batch (Serve cancels a request's children).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments import errors
from deployments.batch_calls import RowAnswer, build_call, deliver_rows
from deployments.ledger import RunningReplica
from deployments.rows import Rows
from deployments.trace_context import TraceContext
from deployments.transport import ReplicaDied, ReplicaFault, Transport, Unreached
from deployments.wire import BatchReply
from routers.cost import CostError
from routers.dispatcher import Dispatcher
from routers.types import (
    Abort,
    Action,
    Arrive,
    Cancel,
    Close,
    Closed,
    Dispatch,
    DispatcherSettings,
    Event,
    Evict,
    LeaseEnd,
    Reason,
    Reject,
    Replica,
    Replicas,
    Report,
    Request,
    Snapshot,
    Tick,
    WakeAt,
)

logger = logging.getLogger("headrace.queue")
clock = time.monotonic


@dataclass(slots=True, eq=False)
class Ticket:
    """A caller waiting for all its rows. `future` resolves to the tuple of row answers."""

    request: Request
    rows: Rows
    future: asyncio.Future[tuple[RowAnswer, ...]]
    answers: list[RowAnswer | None]
    missing: int
    trace: TraceContext | None = None
    retried: bool = False
    watcher: asyncio.Task[None] | None = None


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


class ModelQueue:
    """`call_limit_s`: a call without an answer for that long counts as died."""

    def __init__(
        self,
        settings: DispatcherSettings,
        transport: Transport,
        *,
        gateway: str,
        call_limit_s: float,
        on_batch: Callable[[BatchRecord], None],
    ) -> None:
        self.retryable = True
        self._dispatcher = Dispatcher(settings)
        self._transport = transport
        self._gateway = gateway
        self._call_limit_s = call_limit_s
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._tickets: dict[int, Ticket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._duty: dict[str, float] = {}

    # ---- what the gateway calls -----------------------------------------------------------

    def submit(
        self,
        rows: Rows,
        *,
        tenant: str,
        priority: int,
        deadline_s: float,
        expires_s: float,
        trace: TraceContext | None = None,
    ) -> Ticket:
        """Queues a request whose SLO and timeout are `deadline_s` / `expires_s` from now.

        Raises the error of an immediate rejection. The ticket's future gets the row answers, in
        order, or the error.
        """
        now = clock()
        request = Request(
            next(self._ids), rows.lengths, now, now + deadline_s, now + expires_s, tenant,
            priority, self.retryable,
        )  # fmt: skip
        count = len(rows.lengths)
        future: asyncio.Future[tuple[RowAnswer, ...]] = self._loop.create_future()
        ticket = Ticket(request, rows, future, [None] * count, count, trace)
        self._tickets[request.request_id] = ticket
        self._step(Arrive(request), now)
        if ticket.future.done():
            ticket.future.result()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """The caller left; idempotent."""
        if self._tickets.pop(ticket.request.request_id, None) is not None:
            self._step(Cancel(ticket.request.request_id), clock())

    def set_replicas(self, replicas: tuple[RunningReplica, ...], slots: int) -> None:
        known = tuple(Replica(r.replica_id, slots) for r in replicas)
        self._duty = {r.replica_id: self._duty.get(r.replica_id, 0.0) for r in replicas}
        self._step(Replicas(known), clock())

    def reconfigure(self, settings: DispatcherSettings) -> None:
        now = clock()
        self._perform(self._dispatcher.reconfigure(settings, now), now)

    def close(self) -> None:
        self._step(Close(), clock())

    def snapshot(self) -> Snapshot:
        return self._dispatcher.snapshot(clock())

    def cost_error(self) -> CostError:
        """How far predictions of service time have lately been off."""
        return self._dispatcher.cost_error()

    @property
    def duty(self) -> dict[str, float]:
        return dict(self._duty)

    @property
    def waiting_rows(self) -> int:
        return self._dispatcher.waiting_rows

    @property
    def inflight(self) -> int:
        """Requests that wait or run."""
        return len(self._tickets)

    # ---- obeying ----------------------------------------------------------------------------

    def _step(self, event: Event, now: float) -> None:
        self._perform(self._dispatcher.step(event, now), now)

    def _perform(self, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self._open(action, now)
            elif isinstance(action, WakeAt):
                self._wake_at(action.at)
            elif isinstance(action, Reject | Evict):
                self._refuse(action)
            else:
                self._abort(action)

    def _open(self, lease: Dispatch, now: float) -> None:
        members = [self._tickets[request_id] for request_id, _ in lease.rows]
        context = contextvars.Context()
        task = self._loop.create_task(self._run(lease, members, now), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _abort(self, action: Abort) -> None:
        """A batch replica is not waited for and not interrupted; its lease closes by itself."""

    async def _run(self, lease: Dispatch, members: list[Ticket], started: float) -> None:
        end, report = LeaseEnd.LOST, Report()
        try:
            payloads = [ticket.rows for ticket in members]
            call = build_call(self._gateway, lease, payloads, self._call_limit_s)
            reply = await self._transport.call(lease.replica_id, call, self._call_limit_s)
            end, report = self._settle(lease, members, started, reply)
        except Unreached:
            end, report = LeaseEnd.BUSY, Report(retry_in_s=0.01)
        except ReplicaDied as died:
            logger.warning("replica %s lost a batch: %s", lease.replica_id, died)
        except ReplicaFault as fault:
            end = LeaseEnd.DONE
            self._fail_members(lease, members, str(fault))
        finally:
            self._step(Closed(lease.lease_id, end, report), clock())

    def _settle(
        self, lease: Dispatch, members: list[Ticket], started: float, reply: BatchReply
    ) -> tuple[LeaseEnd, Report]:
        round_trip_s = clock() - started
        transport_s = max(round_trip_s - reply.wait_s - reply.service_s, 0.0)
        report = Report(
            reply.service_s, reply.padded_tokens, reply.inflight, reply.held, reply.seen,
            reply.retry_in_s, transport_s,
        )  # fmt: skip
        if reply.busy:
            return LeaseEnd.BUSY, report
        self._duty[lease.replica_id] = reply.duty
        tokens = sum(
            m.request.lengths[row] for m, (_, row) in zip(members, lease.rows, strict=True)
        )
        record = BatchRecord(
            lease.replica_id, len(lease.rows), lease.bucket, lease.predicted_s, started,
            round_trip_s, tokens, reply, tuple(dict.fromkeys(m.trace for m in members)),
        )  # fmt: skip
        self._on_batch(record)
        deliver_rows(
            lease, started, reply, lambda at, a: self._row_done(members[at], lease.rows[at], a)
        )
        return LeaseEnd.DONE, report

    def _row_done(self, ticket: Ticket, of: tuple[int, int], answer: RowAnswer) -> None:
        """A row's answer or error; the last row resolves the caller's future. `of` is the lease's
        (request id, row): an answer to what the ticket was before its retry is ignored."""
        request_id, row = of
        if ticket.future.done() or ticket.request.request_id != request_id:
            return
        if answer.error is not None:
            if isinstance(answer.error, errors.RowFailed) and self._retry(ticket):
                return
            self._finish(ticket, answer.error)
            return
        ticket.answers[row] = answer
        ticket.missing -= 1
        if ticket.missing == 0:
            self._resolve(ticket)

    def _resolve(self, ticket: Ticket) -> None:
        self._tickets.pop(ticket.request.request_id, None)
        ticket.future.set_result(tuple(a for a in ticket.answers if a is not None))

    def _finish(self, ticket: Ticket, error: errors.HeadraceError) -> None:
        """Ends a ticket with an error and tells the dispatcher that nobody waits any more."""
        if self._tickets.pop(ticket.request.request_id, None) is None:
            return
        if not ticket.future.done():
            ticket.future.set_exception(error)
        self._step(Cancel(ticket.request.request_id), clock())

    def _retry(self, ticket: Ticket) -> bool:
        """A row that a runtime failed on, alone, runs once more as a request of its own."""
        old = ticket.request
        now = clock()
        if ticket.retried or not old.retryable or old.expires <= now:
            return False
        ticket.retried = True
        del self._tickets[old.request_id]
        again = Request(
            next(self._ids), old.lengths, now, old.deadline, old.expires, old.tenant,
            old.priority, old.retryable,
        )  # fmt: skip
        ticket.request = again
        ticket.answers = [None] * len(old.lengths)
        ticket.missing = len(old.lengths)
        self._tickets[again.request_id] = ticket
        self._step(Cancel(old.request_id), now)
        self._step(Arrive(again), now)
        return True

    def _fail_members(self, lease: Dispatch, members: list[Ticket], detail: str) -> None:
        logger.error("replica %s failed a batch: %s", lease.replica_id, detail)
        for ticket, of in zip(members, lease.rows, strict=True):
            error = errors.RowFailed("the model failed on this request; it may be tried again")
            self._row_done(ticket, of, RowAnswer(error=error))

    def _refuse(self, action: Reject | Evict) -> None:
        ticket = self._tickets.pop(action.request_id, None)
        if ticket is None:
            return
        if not ticket.future.done():
            ticket.future.set_exception(refusal(action.reason, action.retry_after_s))

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(at - clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(Tick(), clock())


def refusal(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
    """The public error of a dispatcher's reason."""
    if reason is Reason.EXPIRED:
        return errors.Expired("the request's time was up before it could be answered")
    if reason is Reason.TOO_LONG:
        return errors.BadRequest("a row is longer than lengths.max of this model")
    if reason is Reason.TOO_LARGE:
        return errors.BadRequest("the request has more rows than queue.max_rows of this model")
    if reason is Reason.LOST:
        return errors.ReplicaLost(
            "the replica that worked on this was lost, and so was the retry", retry_after_s=1.0
        )
    if reason is Reason.CLOSED:
        return errors.NotReady("the model is being withdrawn", retry_after_s=1.0)
    message = {
        Reason.QUEUE_FULL: "the model's queue is full (queue.max_rows)",
        Reason.LATE: "the request could no longer be answered within the model's SLO",
    }[reason]
    return errors.Overloaded(message, retry_after_s=max(retry_after_s, 0.05))
