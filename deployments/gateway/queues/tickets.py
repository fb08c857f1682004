"""A caller's place in a model's queue, and the words in which the queue speaks to the rest.

A ticket is one request that waits for all its rows, a demand what it asks for. Terms are what it
was parsed under: rows may be sent to a later version of the model only while that takes and gives
the same tensors. A record is what one finished batch tells metrics and tracing. Times are seconds.
Nothing here decides.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any

from deployments.contract import errors
from deployments.contract.batch_wire import BatchReply
from deployments.gateway.queues.batch_calls import RowAnswer
from deployments.gateway.rows.columns import Rows
from deployments.gateway.telemetry.tracing import TraceContext
from routers.types import Reason, Request


@dataclass(frozen=True, slots=True)
class Terms:
    """What a version of a model promises the rows that are sent to it.

    `signature`: equal ones take the same rows and give the same outputs. `retryable`: a row may run
    again after its replica was lost. `call_limit_s`: a call without an answer for that long counts
    as died.
    """

    version: str
    signature: Any
    retryable: bool = True
    call_limit_s: float = 35.0

    def take(self, other: Terms) -> bool:
        """Whether rows that were parsed under `other` may be sent under these."""
        return other is self or other.signature == self.signature


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of a queue besides its rows: who pays and how urgent it is, how long it
    has, what may be done with it.

    `deadline_s`, `expires_s`: its SLO and its timeout, from now. `priority`: 0 is the most urgent.
    `repeatable`: it may run twice, if the model's terms allow that. The rest as in
    `routers.types.Request`.
    """

    tenant: str
    priority: int
    deadline_s: float
    expires_s: float
    weight: float = 1.0
    tenant_rows: int = 0
    session: str = ""
    repeatable: bool = True


@dataclass(slots=True, eq=False)
class Ticket:
    """A caller waiting for all its rows. `future` resolves to the tuple of row answers."""

    request: Request
    rows: Rows
    terms: Terms
    future: asyncio.Future[tuple[RowAnswer, ...]]
    answers: list[RowAnswer | None]
    missing: int
    trace: TraceContext | None = None
    retried: bool = False

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


def changed() -> errors.HeadraceError:
    """For rows that were parsed for a version whose tensors are not the live one's."""
    return errors.NotReady(
        "the model was replaced by a version with other inputs or outputs; ask again",
        retry_after_s=1.0,
    )


def refusal(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
    """The public error of a dispatcher's reason, which it carries to metrics and logs."""
    error = _error(reason, retry_after_s)
    error.reason = reason.value
    return error


def _error(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
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
        return errors.NotReady("the model is being withdrawn or replaced", retry_after_s=1.0)
    retry_after_s = max(retry_after_s, 0.05)
    if reason is Reason.TENANT_FULL:
        return errors.OverOwnLimit(
            "as many of this tenant's rows wait as may (max_queue_rows)",
            retry_after_s=retry_after_s,
        )
    message = {
        Reason.QUEUE_FULL: "the model's queue is full (queue.max_rows, queue.max_work_s)",
        Reason.LATE: "the request could no longer be answered within the model's SLO",
        Reason.SHED: "the model has more requests than it can answer in time",
    }[reason]
    return errors.Overloaded(message, retry_after_s=retry_after_s)
