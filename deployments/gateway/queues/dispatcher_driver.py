"""How does a model's dispatcher run inside the gateway's event loop?

`DispatcherDriver` feeds the dispatcher events and performs the actions that it returns. It owns
what is the same for batches and streams: the dispatcher's timer, the pending requests by id, what a
request demands and under which version's terms, the errors of refusals, and changes of settings and
versions. `BatchQueue` and `StreamQueue` build on it: they say what a lease is and how it becomes
messages. Times are seconds on the monotonic clock. For the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from deployments.gateway.decisions import QueueDecisions
from routers.api.actions import Abort, Action, Dispatch, Evict, Reject, WakeAt
from routers.api.events import (
    Arrive,
    Cancel,
    CapacityExpected,
    Close,
    Event,
    GatewayPlace,
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
from routers.estimates.cost.model import Coefficients, CostError
from routers.schedulers import AnyScheduler

clock = time.monotonic
INTERNAL_ERROR = "the request could not be answered because of an internal error"
MODEL_FAILED = "the model failed on this request; send it again"


@dataclass(frozen=True, slots=True)
class VersionTerms:
    """What a version of a model promises the rows that are sent to it."""

    version: str
    signature: Any  # versions of equal signatures take the same rows and give the same outputs
    retryable: bool = True  # a row may run again after its replica was lost
    call_limit_s: float = 35.0  # a batch without a reply for that long is lost
    crashes: CrashTerms = field(default_factory=CrashTerms)  # for rows that end replicas

    def take(self, other: VersionTerms) -> bool:
        """Whether rows that were parsed under `other` may be sent under these."""
        return other is self or other.signature == self.signature


class QueueRequest(msgspec.Struct, frozen=True):
    """What a request asks of a queue besides its rows. More on the fields of the same names:
    `api.requests.Request`."""

    # Who pays, and how urgent it is.
    tenant: str
    priority: int  # 0: the most urgent

    # How long it has, in seconds from `at`.
    slo_budget_s: float  # until its SLO
    budget_s: float  # until its timeout, or as its caller said

    # The tenant's.
    weight: float = 1.0
    tenant_rows: int = 0  # most rows of the tenant that may wait here; 0: no bound

    session: str = ""
    repeatable: bool = True  # it may run twice, if the model's terms allow that
    is_first: bool = True  # no other model was asked before
    suspect: bool = False  # a row of it was on a replica that was lost
    request_id: bytes = b""  # as its caller knows it, for the log of decisions
    at: float = 0.0  # on the monotonic clock; 0.0: now

    def left_at(self, now: float) -> tuple[float, float]:
        """Seconds that are left of both budgets."""
        spent_s = now - self.at if self.at else 0.0
        return self.slo_budget_s - spent_s, self.budget_s - spent_s


def changed() -> errors.HeadraceError:
    """The error for rows that were parsed for a version with other tensors than the live one."""
    return errors.NotReady(
        "the model was replaced by a version with other inputs or outputs; send the request again",
        retry_after_s=errors.SOON_S,
    )


def refusal(reason: Reason, retry_after_s: float) -> errors.HeadraceError:
    """The public error for a reason of the dispatcher. The error carries the reason to metrics and
    logs."""
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
            retry_after_s=errors.SOON_S,
        )
    if reason is Reason.INTERRUPTED:
        return errors.ReplicaLost(
            "the replica that generated this answer was lost", retry_after_s=errors.SOON_S
        )
    if reason is Reason.FAILED:
        return errors.RowFailed(MODEL_FAILED, retry_after_s=errors.SOON_S)
    if reason is Reason.CLOSED:
        return errors.NotReady(
            "the model is being withdrawn or replaced", retry_after_s=errors.SOON_S
        )
    retry_after_s = max(retry_after_s, 0.05)
    if reason is Reason.TENANT_FULL:
        return errors.OverOwnLimit(
            "too many rows of this tenant are waiting already (max_queue_rows)",
            retry_after_s=retry_after_s,
        )
    message = {
        Reason.QUEUE_FULL: "the model's queue is full (queue.max_rows)",
        Reason.LATE: "the request cannot be answered before its deadline",
        Reason.SHED: "the model gets more requests than it can answer in time",
    }[reason]
    return errors.Overloaded(message, retry_after_s=retry_after_s)


class PendingRequest(Protocol):
    """A request that waits or runs."""

    request: Request  # as the dispatcher knows it
    terms: VersionTerms  # under which its rows were parsed

    @property
    def begun(self) -> bool:
        """Whether the caller was given a part of the answer, or may have been."""

    def fail(self, error: errors.HeadraceError) -> None:
        """Tell the caller, unless the request has ended already."""


P = TypeVar("P", bound=PendingRequest)


def _do_nothing() -> None:
    pass


class DispatcherDriver(Generic[P]):
    """One model's dispatcher, its pending requests and its timer."""

    def __init__(
        self, dispatcher: AnyScheduler, settings: DispatcherSettings, terms: VersionTerms
    ) -> None:
        self.terms = terms  # the live version's
        self.replicas = 0  # that can be reached; kept as a number because every request asks for it

        # Called when the first replica can be reached, at the start and each time after none could.
        self.on_reached: Callable[[], None] = _do_nothing
        # Called with a request's longest row while replicas can be reached, but none that takes it,
        # and with the seconds since that began; raises the refusal, where the request may not wait.
        self.on_stranded: Callable[[int, float], None] = lambda longest, for_s: None
        # False: while no replica can be reached, what waits and what comes is refused.
        self.keeps_unreached = True

        # For whoever decides how many replicas there are. Called with each request that comes while
        # no replica can be reached, or while the backlog is more than `crossing_s`.
        self.on_crossing: Callable[[], None] = _do_nothing
        self.crossing_s = inf  # seconds of work
        # A request came while no replica could be reached; whoever reads it sets it back.
        self.unserved = False

        self.decisions: QueueDecisions | None = None  # the log of them, where settings ask

        self._settings = settings
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._pending: dict[int, P] = {}  # by request id
        # Of the first request that no replica took which can be reached, until one takes it: when
        # it came, and its longest row.
        # When rows of a length first found no group for it, by the length at which such groups end.
        self._stranded: dict[int, float] = {}
        self._decision_planned = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- what the gateway calls -----------------------------------------------------------

    def cancel(self, pending: P) -> None:
        """The caller has disconnected: end its request, which frees its place. Idempotent."""
        self._finish(pending, errors.CallerLeft("the client disconnected"))

    def end_all(self, error: errors.HeadraceError, *, begun_only: bool) -> None:
        """End the requests that wait or run here with this error. `begun_only`: those whose callers
        have a part of their answer, and no others."""
        for pending in [p for p in self._pending.values() if p.begun or not begun_only]:
            self._finish(pending, error)

    def retune(self, settings: DispatcherSettings) -> None:
        """Adopt other settings; version and replicas stay."""
        if settings == self._settings:
            return
        self._settings = settings
        self._step(Reconfigure(settings), clock())

    def adopt(self, settings: DispatcherSettings, terms: VersionTerms) -> None:
        """Adopt another version. What waits is queued anew, or refused where the new version has
        other inputs or outputs. Nothing is sent until the new version's replicas are listed."""
        if terms == self.terms and settings == self._settings:
            return
        self._step(Replicas(()), clock())  # nothing may be sent to the old version's replicas
        if not terms.take(self.terms):
            self._step(Close(), clock())
        self.terms, self._settings = terms, settings
        self._step(Reconfigure(settings), clock())

    def close(self) -> None:
        """Refuse what waits and what comes."""
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

    def check_room(self, demand: QueueRequest) -> None:
        """A cheap check before the body is read. Raises the refusal where the queue is full, holds
        as many of the tenant's rows as may wait, or has just refused a request like this one. The
        dispatcher decides exactly, once the rows are known."""
        dispatcher, most = self._dispatcher, demand.tenant_rows
        if most and dispatcher.waiting_rows_of(demand.tenant) >= most:
            raise self.turned_away(Reason.TENANT_FULL, demand, dispatcher.retry_after_s())
        if dispatcher.is_full(demand.tenant, demand.weight):
            raise self.turned_away(Reason.QUEUE_FULL, demand, dispatcher.retry_after_s())
        now = clock()
        wait_s = dispatcher.fast_reject(demand.tenant, demand.priority, *demand.left_at(now), now)
        if wait_s is not None:
            raise self.turned_away(Reason.LATE, demand, wait_s)

    def turned_away(
        self, reason: Reason, demand: QueueRequest, retry_after_s: float
    ) -> errors.HeadraceError:
        """The error for a request that is refused by its headers alone. The dispatcher counts the
        request as offered all the same."""
        refused = RefusedUnread(demand.tenant, demand.priority, reason, demand.is_first)
        self._step(refused, clock())
        self._signal_crossing()
        return refusal(reason, retry_after_s)

    def missed(self, tenant: str) -> None:
        """Count a request of this tenant that was refused before it came to the queue, because no
        replica could be reached."""
        self._step(RefusedUnread(tenant, 0, Reason.CLOSED), clock())
        self._signal_crossing()

    def expect_capacity(self, in_s: float) -> None:
        """While no replica runs, or none that takes some length: seconds until one is expected to;
        0.0: unknown."""
        self._step(CapacityExpected(in_s), clock())

    def take_place(self, index: int, gateways: int) -> None:
        """This gateway is number `index`, from 0, of those that live."""
        self._step(GatewayPlace(index, gateways), clock())

    def strands(self, length: int) -> bool:
        """Whether replicas can be reached, but none that takes rows of this length."""
        return self._dispatcher.strands((length,))

    def _check_taken(self, lengths: tuple[int, ...], demand: QueueRequest, now: float) -> None:
        """Raises what `on_stranded` raises, and counts the request as offered all the same."""
        if not self._dispatcher.strands(lengths):
            return
        longest = max(lengths)
        since = self._stranded.setdefault(self._dispatcher.bound_above(longest), now)
        try:
            self.on_stranded(longest, now - since)
        except errors.HeadraceError:
            refused = RefusedUnread(demand.tenant, demand.priority, Reason.CLOSED, demand.is_first)
            self._step(refused, now)
            raise

    def _request(
        self, lengths: tuple[int, ...], terms: VersionTerms, demand: QueueRequest, now: float
    ) -> Request:
        """A new request as the dispatcher is told of it, with a new id."""
        since = demand.at or now
        request = Request(
            next(self._ids),
            lengths,
            arrival=now,
            deadline=since + demand.slo_budget_s,
            expires=since + demand.budget_s,
            tenant=demand.tenant,
            priority=demand.priority,
            retryable=terms.retryable and demand.repeatable,
            weight=demand.weight,
            tenant_rows=demand.tenant_rows,
            session=demand.session,
            is_first=demand.is_first,
            suspect=demand.suspect,
        )
        if self.decisions is not None:
            self.decisions.name(request, demand.request_id)
        return request

    def served_elsewhere(self, tenant: str, priority: int, lengths: tuple[int, ...]) -> None:
        """Another version has answered a request for this one, which counts as offered here all
        the same. `lengths`: of its rows; () where lengths do not tell the work."""
        self._step(ServedElsewhere(tenant, priority, lengths), clock())

    # ---- what `BatchCalls` and `StreamCalls` ask of a lease's requests ---------------------------

    def heard(self, replica_id: str) -> None:
        """The replica has sent something."""
        self._take(Heard(replica_id), clock())

    def takes(self, pending: P) -> bool:
        """Whether the request's rows or prompt may be sent to the live version."""
        return pending.terms is self.terms or self.terms.take(pending.terms)

    def outdated(self, pending: P) -> None:
        """End a request that `takes` refuses."""
        self._finish(pending, changed())

    # ---- performing ----------------------------------------------------------------------------

    def _open(self, lease: Dispatch, now: float) -> None:
        """Send the lease to its replica."""
        raise NotImplementedError

    def _abort(self, action: Abort) -> None:
        """Ask the lease's replica to drop it."""
        raise NotImplementedError

    def _list(self, reached: tuple[Replica, ...]) -> None:
        """Tell the dispatcher which replicas can be reached: these and no others."""
        before, self.replicas = self.replicas, len(reached)
        now = clock()
        self._step(Replicas(reached), now)
        self._stranded = {
            bound: since
            for bound, since in self._stranded.items()
            if self.strands(bound or sys.maxsize)
        }
        if reached and not before:
            self.on_reached()
        if self.keeps_unreached:
            return
        if not reached:
            self._step(Close(), now)
        elif not before:
            self._step(Reconfigure(self._settings), now)

    def _step(self, event: Event, now: float) -> None:
        if self.decisions is not None:
            self.decisions.event(event, now)
        self._perform(self._dispatcher.step(event, now), now)

    def _perform(self, actions: list[Action], now: float) -> None:
        for action in actions:
            if self.decisions is not None:
                self.decisions.action(action, now)
            if isinstance(action, Dispatch):
                self._open(action, now)
            elif isinstance(action, WakeAt):
                self._wake_at(action.at)
            elif isinstance(action, Reject | Evict):
                self._refuse(action)
            else:
                self._abort(action)

    def _take(self, event: Event, now: float) -> None:
        """As `_step`, but the decisions that follow are made once, in the loop's next turn: then
        requests that arrived in one read become one batch, not a batch of one and one of the
        rest."""
        actions: list[Action] = []
        if self.decisions is not None:
            self.decisions.event(event, now)
        if self._dispatcher.take(event, now, actions) and not self._decision_planned:
            self._decision_planned = True
            self._loop.call_soon(self._decide, context=contextvars.Context())
        self._perform(actions, now)

    def _decide(self) -> None:
        self._decision_planned = False
        now = clock()
        self._perform(self._dispatcher.decide(now), now)

    def _enter(self, pending: P, now: float) -> None:
        """Give the request to the dispatcher, which may refuse it at once."""
        self._pending[pending.request.request_id] = pending
        self._take(Arrive(pending.request), now)
        self._signal_crossing(pending.request.lengths)

    def _signal_crossing(self, lengths: tuple[int, ...] = ()) -> None:
        """Call `on_crossing` where no replica can be reached, or none that takes rows of these
        lengths, or the backlog is over its bound."""
        if not self.replicas:
            self.unserved = True
            self.on_crossing()
        elif self._dispatcher.backlog_s > self.crossing_s or self._dispatcher.strands(lengths):
            self.on_crossing()

    def _leave(self, pending: P) -> bool:
        """Forget a request; whether it was pending. Whoever calls this tells the dispatcher."""
        if self.decisions is not None:
            self.decisions.forget(pending.request.request_id)
        return self._pending.pop(pending.request.request_id, None) is not None

    def _finish(self, pending: P, error: errors.HeadraceError) -> None:
        """End a request with an error, and cancel it at the dispatcher."""
        if self._leave(pending):
            pending.fail(error)
            self._step(Cancel(pending.request.request_id), clock())

    def _refuse(self, action: Reject | Evict) -> None:
        pending = self._pending.pop(action.request_id, None)
        if self.decisions is not None:
            self.decisions.forget(action.request_id)
        if pending is not None:
            pending.fail(refusal(action.reason, action.retry_after_s))

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(at - clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(Tick(), clock())
