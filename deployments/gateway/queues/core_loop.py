"""A model's dispatcher at work, whatever its replicas are: feeds it events, performs its actions.

What is the same for batches and for streams: the timer, the pending requests by id, what a request
demands and under which version's terms, how it is refused or retried, how settings and versions
change. What a lease means, and how it becomes a call, is said by the queue that builds on this.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from routers.api.actions import Abort, Action, Dispatch, Evict, Reject, WakeAt
from routers.api.events import (
    Arrive,
    Cancel,
    CapacityExpected,
    Close,
    Event,
    Heard,
    Reconfigure,
    RefusedUnread,
    Replicas,
    ServedElsewhere,
    Tick,
)
from routers.api.requests import Reason, Replica, Request
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import Snapshot
from routers.core.dispatcher import Dispatcher
from routers.estimates.cost.model import Coefficients, CostError

clock = time.monotonic
INTERNAL_ERROR = "the request could not be answered because of an internal error"
MODEL_FAILED = "the model failed on this request; send it again"


@dataclass(frozen=True, slots=True)
class VersionTerms:
    """What a version of a model promises the rows that are sent to it.

    `signature`: equal ones take the same rows and give the same outputs. `retryable`: a row may run
    again after its replica was lost. `call_limit_s`: a call without an answer for that long counts
    as died. `crashes`: of rows that end replicas.
    """

    version: str
    signature: Any
    retryable: bool = True
    call_limit_s: float = 35.0
    crashes: CrashTerms = field(default_factory=CrashTerms)

    def take(self, other: VersionTerms) -> bool:
        """Whether rows that were parsed under `other` may be sent under these."""
        return other is self or other.signature == self.signature


class Demand(NamedTuple):
    """What a request asks of a queue besides its rows: who pays and how urgent it is, how long it
    has, what may be done with it.

    `deadline_s`, `expires_s`: its SLO and its timeout, from now. `priority`: 0 is the most urgent.
    `repeatable`: it may run twice, if the model's terms allow that. `is_first`: no other model was
    asked before. `suspect`: a row of it was on a replica that was lost. The rest as in
    `api.requests.Request`.
    """

    tenant: str
    priority: int
    deadline_s: float
    expires_s: float
    weight: float = 1.0
    tenant_rows: int = 0
    session: str = ""
    repeatable: bool = True
    is_first: bool = True
    suspect: bool = False


def changed() -> errors.HeadraceError:
    """For rows that were parsed for a version whose tensors are not the live one's."""
    return errors.NotReady(
        "the model was replaced by a version with other inputs or outputs; send the request again",
        retry_after_s=1.0,
    )


def refusal(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
    """The public error of a dispatcher's reason, which it carries to metrics and logs."""
    error = _error(reason, retry_after_s)
    error.reason = reason.value
    return error


def _error(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
    if reason is Reason.EXPIRED:
        return errors.Expired("the request's time limit passed before it was answered")
    if reason is Reason.TOO_LONG:
        return errors.BadRequest("a row is longer than this model takes (lengths.max)")
    if reason is Reason.TOO_LARGE:
        return errors.BadRequest(
            "the request has more rows than this model's queue takes (queue.max_rows)"
        )
    if reason is Reason.LOST:
        return errors.ReplicaLost(
            "the replica that ran the request was lost, and no other replica answered it",
            retry_after_s=1.0,
        )
    if reason is Reason.INTERRUPTED:
        return errors.ReplicaLost(
            "the replica that generated this answer was lost", retry_after_s=1.0
        )
    if reason is Reason.FAILED:
        return errors.RowFailed(MODEL_FAILED, retry_after_s=1.0)
    if reason is Reason.CLOSED:
        return errors.NotReady("the model is being withdrawn or replaced", retry_after_s=1.0)
    retry_after_s = max(retry_after_s, 0.05)
    if reason is Reason.TENANT_FULL:
        return errors.OverOwnLimit(
            "too many rows of this tenant are waiting already (max_queue_rows)",
            retry_after_s=retry_after_s,
        )
    message = {
        Reason.QUEUE_FULL: "the model's queue is full (queue.max_rows, queue.max_work_s)",
        Reason.LATE: "the request cannot be answered before its deadline",
        Reason.SHED: "the model gets more requests than it can answer in time",
    }[reason]
    return errors.Overloaded(message, retry_after_s=retry_after_s)


class PendingRequest(Protocol):
    """A request that waits or runs. `fail` tells its caller, unless it has its answer already."""

    request: Request
    terms: VersionTerms

    def fail(self, error: errors.HeadraceError) -> None: ...


P = TypeVar("P", bound=PendingRequest)


def _nobody() -> None:
    pass


class CoreLoop(Generic[P]):
    """`terms` are the live version's. `on_crossing` is called when a request comes while no replica
    can be reached or more than `crossing_s` waits, seconds of work: `unserved` tells of the former
    until somebody sets it back. `on_reached` is called when the first replica can be reached, at
    first and after none could. Not `keeps_unreached`: what waits is refused when the last replica
    can no longer be reached, and what comes until one can."""

    def __init__(self, settings: DispatcherSettings, terms: VersionTerms) -> None:
        self.terms = terms
        self.replicas = 0  # that can be reached; asked for by every request
        self.on_crossing: Callable[[], None] = _nobody
        self.on_reached: Callable[[], None] = _nobody
        self.keeps_unreached = True
        self.crossing_s = inf
        self.unserved = False
        self._settings = settings
        self._dispatcher = Dispatcher(settings)
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._pending: dict[int, P] = {}
        self._decides = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- what the gateway calls -----------------------------------------------------------

    def cancel(self, pending: P) -> None:
        """The caller disconnected: its place is free; idempotent."""
        self._finish(pending, errors.CallerLeft("the client disconnected"))

    def retune(self, settings: DispatcherSettings) -> None:
        """Goes on under other settings with the same version and replicas."""
        if settings == self._settings:
            return
        self._settings = settings
        self._step(Reconfigure(settings), clock())

    def adopt(self, settings: DispatcherSettings, terms: VersionTerms) -> None:
        """Goes on under another version: what waits is queued anew, or refused where the version
        takes or gives other things. No replica is left to send to until the next list of them."""
        if terms == self.terms and settings == self._settings:
            return
        self._step(Replicas(()), clock())  # nothing may be sent to the old version's any more
        if not terms.take(self.terms):
            self._step(Close(), clock())
        self.terms, self._settings = terms, settings
        self._step(Reconfigure(settings), clock())

    def close(self) -> None:
        self._step(Close(), clock())

    def snapshot(self) -> Snapshot:
        return self._dispatcher.snapshot(clock())

    def cost_error(self) -> CostError:
        """How far predictions of service time have lately been off."""
        return self._dispatcher.cost_error()

    def coefficients(self) -> Coefficients:
        """What predictions of service time are made from."""
        return self._dispatcher.coefficients()

    @property
    def waiting_rows(self) -> int:
        return self._dispatcher.waiting_rows

    @property
    def inflight(self) -> int:
        """Requests that wait or run."""
        return len(self._pending)

    def check_room(self, demand: Demand) -> None:
        """Raises the refusal of a queue that is full, has as many of this tenant's rows as may
        wait, or has just refused the like of it; the dispatcher decides exactly."""
        dispatcher, most = self._dispatcher, demand.tenant_rows
        if most and dispatcher.waiting_rows_of(demand.tenant) >= most:
            raise self.turned_away(Reason.TENANT_FULL, demand, dispatcher.retry_after_s())
        if dispatcher.is_full(demand.tenant, demand.weight):
            raise self.turned_away(Reason.QUEUE_FULL, demand, dispatcher.retry_after_s())
        wait_s = dispatcher.fast_reject(
            demand.tenant, demand.priority, demand.deadline_s, demand.expires_s, clock()
        )
        if wait_s is not None:
            raise self.turned_away(Reason.LATE, demand, wait_s)

    def turned_away(
        self, reason: Reason, demand: Demand, retry_after_s: float
    ) -> errors.HeadraceError:
        """The refusal of a request that nobody has read, which counts as asked for all the same."""
        refused = RefusedUnread(demand.tenant, demand.priority, reason, demand.is_first)
        self._step(refused, clock())
        self._look()
        return refusal(reason, retry_after_s)

    def missed(self, tenant: str) -> None:
        """A request of this tenant did not get as far as here: no replica could be reached."""
        self._step(RefusedUnread(tenant, 0, Reason.CLOSED), clock())
        self._look()

    def expect_capacity(self, in_s: float) -> None:
        """While no replica runs, one is expected to in so many seconds; 0.0: nobody knows."""
        self._step(CapacityExpected(in_s), clock())

    def _request(
        self, lengths: tuple[int, ...], terms: VersionTerms, demand: Demand, now: float
    ) -> Request:
        """What the dispatcher is told of a newcomer, under an id of its own."""
        return Request(
            next(self._ids),
            lengths,
            arrival=now,
            deadline=now + demand.deadline_s,
            expires=now + demand.expires_s,
            tenant=demand.tenant,
            priority=demand.priority,
            retryable=terms.retryable and demand.repeatable,
            weight=demand.weight,
            tenant_rows=demand.tenant_rows,
            session=demand.session,
            is_first=demand.is_first,
            suspect=demand.suspect,
        )

    def served_elsewhere(self, tenant: str, priority: int, lengths: tuple[int, ...]) -> None:
        """Another version answered what this one was asked for: it is demand here all the same.
        `lengths`: () where they say nothing of the work."""
        self._step(ServedElsewhere(tenant, priority, lengths), clock())

    # ---- what calls ask of a lease's requests (`BatchCallsOwner`, `StreamCallsOwner`) ------------

    def heard(self, replica_id: str) -> None:
        self._take(Heard(replica_id), clock())

    def takes(self, pending: P) -> bool:
        return pending.terms is self.terms or self.terms.take(pending.terms)

    def outdated(self, pending: P) -> None:
        self._finish(pending, changed())

    # ---- performing ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        raise NotImplementedError

    def _abort(self, action: Abort) -> None:
        raise NotImplementedError

    def _list(self, reached: tuple[Replica, ...]) -> None:
        """These can be reached, and no others."""
        before, self.replicas = self.replicas, len(reached)
        now = clock()
        self._step(Replicas(reached), now)
        if reached and not before:
            self.on_reached()
        if self.keeps_unreached:
            return
        if not reached:
            self._step(Close(), now)
        elif not before:
            self._step(Reconfigure(self._settings), now)

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

    def _take(self, event: Event, now: float) -> None:
        """As `_step`, but what follows is decided once all of this turn of the loop is known: what
        came in one read makes one batch, not one and then the rest."""
        actions: list[Action] = []
        if self._dispatcher.take(event, now, actions) and not self._decides:
            self._decides = True
            self._loop.call_soon(self._decide, context=contextvars.Context())
        self._perform(actions, now)

    def _decide(self) -> None:
        self._decides = False
        now = clock()
        self._perform(self._dispatcher.decide(now), now)

    def _enter(self, pending: P, now: float) -> None:
        """A caller waits from now on, unless it is refused at once."""
        self._pending[pending.request.request_id] = pending
        self._take(Arrive(pending.request), now)
        self._look()

    def _look(self) -> None:
        """Whether those who decide how many replicas there are should know at once."""
        if not self.replicas:
            self.unserved = True
            self.on_crossing()
        elif self._dispatcher.backlog_s > self.crossing_s:
            self.on_crossing()

    def _leave(self, pending: P) -> bool:
        """Whether it was waiting still; the dispatcher is to be told by the caller of this."""
        return self._pending.pop(pending.request.request_id, None) is not None

    def _finish(self, pending: P, error: errors.HeadraceError) -> None:
        """Ends a request with an error and tells the dispatcher that nobody waits any more."""
        if self._leave(pending):
            pending.fail(error)
            self._step(Cancel(pending.request.request_id), clock())

    def _refuse(self, action: Reject | Evict) -> None:
        pending = self._pending.pop(action.request_id, None)
        if pending is not None:
            pending.fail(refusal(action.reason, action.retry_after_s))

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(at - clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(Tick(), clock())
