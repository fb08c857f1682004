"""The live requests, from arrival until each is answered, rejected, evicted or cancelled.

`RequestTable` owns the live requests, the queue and the timers. It is the only place where a
request enters or leaves the core, so that each leaves once, with all its rows. A late request waits
behind all that are on time (`shared/bounds.py` says for how long). A request expires
wherever its rows are, queued or at a replica. Rows that come back from a replica keep their age,
and are queued however full the queue is: its bounds hold for new requests only. The schedulers
decide which rows are served next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from routers.api.actions import Action, Evict, Reject
from routers.api.errors import BadRequestEvent
from routers.api.events import RefusedUnread
from routers.api.requests import FlowWork, Reason, Report, Request
from routers.api.settings import DispatcherSettings, length_bounds, validate
from routers.api.snapshot import GenerationSnapshot
from routers.estimates.groups import LengthRange
from routers.policies.registry import ORDERS, PLACEMENTS, check_names
from routers.shared.admission import Admission, Controllers, Rejection
from routers.shared.arrivals import Arrivals
from routers.shared.bounds import (
    Bounds,
    is_over,
    is_refused,
    keeps_its_place,
    max_rows,
    next_moment,
)
from routers.shared.suspects import Suspects, end_reason, may_run_after_failure, may_run_again
from routers.state.flows import Charge, Flows
from routers.state.leases import abandon
from routers.state.rejection_cache import RejectionCache, TimesLeft
from routers.state.replica_state import AnyLease
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import Row, TrackedRequest
from routers.state.timers import Timers

# An `Evict` says when to try again.
_RETRY_LATER: Final = frozenset({Reason.LATE, Reason.SHED, Reason.QUEUE_FULL})


class ServedWork:
    """Passes served work on to the flows' accounts, the controllers and the rejection cache."""

    def __init__(self, flows: Flows, controllers: Controllers, rejections: RejectionCache) -> None:
        self._flows = flows
        self._controllers = controllers
        self._rejections = rejections

    def settle(self, charge: Charge, service_s: float | None, now: float) -> None:
        """The lease has ended after `service_s` measured seconds; None: nothing was started, so
        what was charged for it is refunded."""
        self._rejections.clear()
        if service_s is None:
            self._flows.refund(charge.paid, epoch=charge.epoch)
            return
        served = charge.split(service_s)
        self._flows.settle(charge, served)
        self._controllers.served(served, now, late=bool(charge.rank[0]), flows=charge.flows)

    def charge(self, priority: int, tenant: str, seconds: float) -> None:
        """Charge a flow for what its lease takes beyond what was paid."""
        flow = self._flows.by_key.get((priority, tenant))
        if flow is not None:
            self._flows.charge(flow, seconds)

    def report(self, work: FlowWork, rank: tuple[int, int, float], now: float) -> None:
        """Tell the controllers what a lease was given that goes on; the account is settled when it
        ends. `rank`: see `api.actions.Dispatch`."""
        self._controllers.served((work,), now, late=bool(rank[0]))

    def settle_told(self, charge: Charge, served_s: float, untold_s: float, now: float) -> None:
        """The lease has ended after `served_s` in all, of which the controllers have not been told
        `untold_s`."""
        self._rejections.clear()
        self._flows.settle(charge, charge.split(served_s))
        if untold_s > 0.0:
            priority, tenant, _ = charge.charges[0]
            self.report((priority, tenant, untold_s), charge.rank, now)

    def learn(self, report: Report, speed: float, now: float) -> None:
        """Take in what a report says of other gateways' work. `speed`: seconds of the reference
        group that a second of the replica's group is worth."""
        if speed != 1.0 and report.served:
            served = tuple([(p, tenant, seconds * speed) for p, tenant, seconds in report.served])
            report = replace(report, served=served)
        self._flows.learn(report, now)
        if report.served:
            self._controllers.served(report.served, now, late=False)


class RequestTable:
    """One model's live requests."""

    def __init__(
        self, settings: DispatcherSettings, replicas: ReplicaSet[Any], *, by_room: bool = False
    ) -> None:
        """`by_room`: replicas take requests one by one, as their room allows."""
        self.live: dict[int, TrackedRequest] = {}  # by request id
        self.timers = Timers()
        self.flows = Flows(ORDERS[settings.policies.order](settings))
        self.groups = replicas.groups
        self.is_closed = False
        self.waiting = RequestQueue(settings.bucket_edges, self.flows)
        self._replicas = replicas
        self.bounds = Bounds(self.waiting, self.groups, settings)
        self.admission = Admission(settings, replicas, self.bounds, by_room=by_room)
        self.controllers = self.admission.controllers
        self.served = ServedWork(self.flows, self.controllers, self.admission.rejections)
        self.arrivals = self.make_arrivals(settings)
        self.suspects = Suspects(replicas)
        self._adopt(settings)

    # -- what differs by kind

    def make_arrivals(self, settings: DispatcherSettings) -> Arrivals:
        return Arrivals(settings, self.waiting, self.groups)

    def check(self, request: Request) -> None:
        """Raises `BadRequestEvent` for a request of the other kind."""
        if request.generation is not None:
            raise BadRequestEvent(f"request {request.request_id} generates; this model does not")

    def exceeds(self, request: Request) -> bool:
        """Whether the request is too long for all replicas that run."""
        return False

    def generation_snapshot(self) -> GenerationSnapshot | None:
        """What is published of requests that generate; None: these do not."""
        return None

    # -- coming in

    def arrive(self, request: Request, now: float, actions: list[Action]) -> bool:
        """Queue the request, or append its `Reject`; whether it was queued. Raises
        `BadRequestEvent` when the id is live already or the rows are not as they must be."""
        if request.request_id in self.live or not request.lengths:
            raise BadRequestEvent(f"request {request.request_id} is live already or has no rows")
        self.check(request)
        arrivals = self.arrivals
        if arrivals.edges.watches:
            arrivals.follow(request.lengths, now)
        arrivals.offered.came += 1
        refused = self._reject_early(request, now)
        if refused is None:
            tracked = arrivals.track(request, now)
            arrivals.offers(request, tracked)
            refused = self.admission.judge(tracked, now)
            if refused is None:
                refused = self._make_room(tracked, actions)
            if refused is None:
                self._enqueue(tracked, now)
                return True
        else:
            arrivals.count_rejected(request, refused.reason)
        arrivals.offered.refuse(refused.reason.value)
        actions.append(Reject(request.request_id, refused.reason, refused.retry_after_s))
        return False

    def _reject_early(self, request: Request, now: float) -> Rejection | None:
        """The rejection that needs no forecast: closed, over a bound, or from the cache."""
        if self.is_closed:
            return Rejection(Reason.CLOSED)
        refused = self.admission.bounded(request, now)
        if refused is None and self.exceeds(request):
            return Rejection(Reason.TOO_LONG)
        if refused is not None or not self.admission.rejections.kept or len(request.lengths) > 1:
            return refused
        edge = self.waiting.edges[self.waiting.bucket_of(request.lengths[0])]
        times = TimesLeft(min(request.deadline, request.expires) - now, request.expires - now)
        flow = self._priority(request.priority), request.tenant
        refused = self.admission.fast_reject(flow, edge, times, now)
        if refused is not None:
            self.controllers.rejected_from_cache(flow, self.arrivals.forecast_edge(edge), now)
        return refused

    def reject_unread(
        self, tenant: str, priority: int, left_s: float, expires_s: float, now: float
    ) -> Rejection | None:
        """The cached rejection of a one-row request of unknown length; None: it may be let in.
        `left_s`, `expires_s`: seconds from now to its deadline and to its expiry."""
        flow = self.flows.by_key.get((self._priority(priority), tenant))
        if flow is None or not self.admission.rejections.kept:
            return None
        times = TimesLeft(min(left_s, expires_s), expires_s)
        return self.admission.reject_unread(flow, times, now)

    def refused_unread(self, event: RefusedUnread, now: float) -> None:
        """Count a request that the gateway refused by its headers alone."""
        self.arrivals.offered.came += 1
        self.arrivals.offered.refuse(event.reason.value)
        if event.reason is Reason.LATE:
            self.controllers.rejected_from_cache(
                (self._priority(event.priority), event.tenant), None, now
            )
        if event.is_first and event.reason is not Reason.TENANT_FULL:
            self.arrivals.turned_away_unread(event.tenant, event.priority)

    def _priority(self, priority: int) -> int:
        return min(max(priority, 0), self.settings.priorities - 1)

    def _make_room(self, tracked: TrackedRequest, actions: list[Action]) -> Rejection | None:
        """While the queue is full, evict from the tenant that is furthest over its share of places,
        as many rows as the request has; the rejection, if there is none or it is its own."""
        most = max(max_rows(self.bounds, tracked.open), self.waiting.shares.rows) - tracked.open
        while self.waiting.shares.rows > most:
            row = self.waiting.furthest_over()
            if row is None or row.tracked.flow.tenant == tracked.flow.tenant:
                return Rejection(Reason.QUEUE_FULL, self.retry_after_s())
            self.evict(row.tracked, Reason.QUEUE_FULL, actions)
        return None

    def _enqueue(self, tracked: TrackedRequest, now: float) -> None:
        self.live[tracked.request.request_id] = tracked
        self.arrivals.add_rows(tracked)
        if tracked.request.suspect:
            for row in tracked.rows:
                row.held_until = self.suspects.held_until(row, now)
        if not tracked.flow.active:
            self.flows.enter(tracked.flow, now)
        tracked.flow.live += 1
        for row in tracked.rows:
            self.waiting.add(row, now)
        self.arrivals.note(tracked.edge, now)
        self.timers.push(next_moment(tracked, now), tracked)

    # -- what the dispatcher tells and asks

    def take_out(self, row: Row, now: float) -> None:
        """Take the row, which is sent now, out of the queue. A request that had a forecast of its
        queue wait is reported to the controllers, which learn how good the forecast was."""
        self.waiting.remove(row)
        if row.tracked.forecast_s is not None:
            self.starts(row.tracked, now)

    def starts(self, tracked: TrackedRequest, now: float) -> None:
        """The request's first row goes to a replica on time; its forecast is checked."""
        self.controllers.waited(tracked, now, taken=True)
        tracked.forecast_s = None

    def sheds(self, tracked: TrackedRequest, now: float, actions: list[Action]) -> bool:
        """Whether the controllers shed this request now that the turn of one of its rows has come;
        then it has been evicted."""
        if tracked.forecast_s is None or tracked.queued < len(tracked.rows):
            return False
        if not self.controllers.shed_at_turn(tracked, now):
            return False
        self.evict(tracked, Reason.SHED, actions)
        return True

    def most_urgent(self, lengths: LengthRange | None = None) -> int | None:
        """The most urgent priority that has on-time rows of these lengths (None: any) waiting;
        None: no such row waits on time."""
        for lane in self.waiting.on_time:
            if lane.rows and (lengths is None or lane.seconds_in(lengths) > 0.0):
                return lane.priority
        return None

    # -- coming back from a replica

    def answered(self, members: list[Row]) -> None:
        """These rows have their answers; a request leaves with its last one."""
        for row in members:
            tracked = row.tracked
            tracked.open -= 1
            if not tracked.open:
                self.arrivals.offered.served_s += tracked.work_s
                self._drop(tracked)
        self.timers.trim(len(self.live))

    def answered_late(self, rows: list[Row], actions: list[Action]) -> None:
        """A replica has answered rows that had been moved from it and now wait or run elsewhere."""
        for row in rows:
            if row.bucket is not None:
                self.waiting.remove(row)
            else:
                abandon(row, actions)
        self.answered(rows)

    def put_back(self, members: list[Row], now: float, actions: list[Action]) -> None:
        """Rows that never started take their old places; requests that may not wait are evicted."""
        for row in members:
            tracked = row.tracked
            if not tracked.open:
                continue  # evicted because of a row before this one
            if self.is_closed:
                self.evict(tracked, Reason.CLOSED, actions)
            elif row.length > self.settings.bucket_edges[-1]:
                self.evict(tracked, Reason.TOO_LONG, actions)
            elif is_over(tracked.request, self.settings, now):
                self.evict(tracked, Reason.LATE, actions)
            else:
                if self.groups.bounds:
                    self.waiting.place(row)
                self.waiting.add(row, now)
                if tracked.late and keeps_its_place(tracked, self.settings):
                    self._move_lane(tracked, now, late=False)

    def retry(self, members: list[Row], lease: AnyLease, now: float, actions: list[Action]) -> None:
        """Queue rows of a lost lease, each to travel alone, or evict their requests as lost."""
        for row in members:
            if not row.tracked.open:
                continue
            row.losses += 1
            if may_run_again(row, now, had_begun=lease.may_have_begun):
                row.go_alone(lease.replica_id)
                self.suspects.lost(lease.replica, now)
                row.held_until = self.suspects.held_until(row, now)
                self.put_back([row], now, actions)
            else:
                self.evict(row.tracked, end_reason(row), actions)

    def retry_failed(
        self, members: list[Row], lease: AnyLease, now: float, actions: list[Action]
    ) -> None:
        """The same for rows that the model failed on, with the reason `FAILED`."""
        for row in members:
            if not row.tracked.open:
                continue
            row.losses += 1
            may_wait = not (self.is_closed or is_over(row.tracked.request, self.settings, now))
            if may_wait and may_run_after_failure(row, now):
                row.failed = True
                row.go_alone(lease.replica_id)
                self.put_back([row], now, actions)
            else:
                self.evict(row.tracked, Reason.FAILED, actions)

    # -- going out

    def cancel(self, request_id: int, actions: list[Action]) -> None:
        """The caller has left; does nothing for an id that is not live."""
        tracked = self.live.get(request_id)
        if tracked is not None:
            self._remove(tracked, actions)

    def close(self, actions: list[Action]) -> None:
        """Evict requests with a queued row and reject new ones; those at replicas may finish."""
        self.is_closed = True
        for tracked in [tracked for tracked in self.live.values() if tracked.queued]:
            self.evict(tracked, Reason.CLOSED, actions)

    def run_timers(self, now: float, actions: list[Action]) -> None:
        """Evict requests that have expired or may not wait late; demote those that turned late."""
        while (tracked := self.timers.due(now)) is not None:
            request = tracked.request
            if request.expires <= now:
                self.evict(tracked, Reason.EXPIRED, actions)
            elif keeps_its_place(tracked, self.settings):
                self.timers.push(request.expires, tracked)
            elif self._may_not_stay_late(tracked, now):
                self.evict(tracked, Reason.LATE, actions)
            else:
                self._demote(tracked, now)
                self.timers.push(next_moment(tracked, now), tracked)

    def _may_not_stay_late(self, tracked: TrackedRequest, now: float) -> bool:
        if tracked.queued and is_refused(tracked, self.waiting, self.settings, now):
            return True
        return self.admission.cannot_be_served_late(tracked, now)

    def evict(self, tracked: TrackedRequest, reason: Reason, actions: list[Action]) -> None:
        """Remove the request, wherever its rows are, and append the `Evict`."""
        self.arrivals.offered.refuse(reason.value)
        retry_after = self.retry_after_s() if reason in _RETRY_LATER else 0.0
        actions.append(Evict(tracked.request.request_id, reason, retry_after))
        self._remove(tracked, actions)

    def _remove(self, tracked: TrackedRequest, actions: list[Action]) -> None:
        """Take all rows out of the queue and out of their leases, whose answers for them are then
        ignored."""
        tracked.open = 0
        for row in tracked.rows:
            if row.bucket is not None:
                self.waiting.remove(row)
            else:
                abandon(row, actions)
        self._drop(tracked)
        self.timers.trim(len(self.live))

    def _drop(self, tracked: TrackedRequest) -> None:
        del self.live[tracked.request.request_id]
        tracked.flow.live -= 1
        tracked.rows = ()  # else rows and request refer to each other until garbage is collected

    # -- being late

    def demote_or_evict(self, tracked: TrackedRequest, now: float, actions: list[Action]) -> None:
        """A request that waits on time can no longer meet its deadline: demote or evict it."""
        if is_refused(tracked, self.waiting, self.settings, now):
            self.evict(tracked, Reason.LATE, actions)
        else:
            self._demote(tracked, now)  # its timer still stands at its latest start: harmless

    def _demote(self, tracked: TrackedRequest, now: float) -> None:
        if tracked.late:
            return
        if tracked.forecast_s is not None:
            self.controllers.waited(tracked, now, taken=False)
            tracked.forecast_s = None
        self._move_lane(tracked, now, late=True)

    def _move_lane(self, tracked: TrackedRequest, now: float, *, late: bool) -> None:
        """Move the queued rows to the late lane of their priority, or to its on-time lane."""
        queued = [row for row in tracked.rows if row.bucket is not None]
        for row in queued:
            self.waiting.remove(row)
        tracked.late = late
        for row in queued:
            self.waiting.add(row, now)

    # -- settings

    def reconfigure(self, settings: DispatcherSettings, now: float, actions: list[Action]) -> None:
        """Adopt new settings, and reopen a closed model. Where edges differ, move queued rows to
        their new buckets and evict requests with a row that is now too long."""
        validate(settings)
        check_names(settings)
        self.arrivals.adopt(settings)
        self.admission.tune(settings)
        if settings.policies.placement != self.settings.policies.placement:
            self._replicas.adopt(PLACEMENTS[settings.policies.placement](), now)
        self.waiting.adopt(ORDERS[settings.policies.order](settings), now)
        moved = settings.bucket_edges != self.settings.bucket_edges or (
            length_bounds(settings) != self.groups.bounds
        )
        if moved:
            self.waiting.edges = settings.bucket_edges
        self._adopt(settings)
        if not moved:
            return
        longest = settings.bucket_edges[-1]
        for tracked in [tracked for tracked in self.live.values() if tracked.queued]:
            queued = [row for row in tracked.rows if row.bucket is not None]
            if any(row.length > longest for row in queued):
                self.evict(tracked, Reason.TOO_LONG, actions)
                continue
            for row in queued:
                self.waiting.move(row, now)
        self.waiting.tidy()

    def _adopt(self, settings: DispatcherSettings) -> None:
        self.settings, self.ageing_s = settings, settings.ageing_s
        self.bounds.adopt(settings)
        self.suspects.hold_s = settings.suspect_hold_s
        self.is_closed = False
        used = {replica.group.name for replica in self._replicas.by_id.values()}
        self.groups.adopt(settings, self.waiting.edges, used)

    def expect_capacity(self, in_s: float) -> None:
        """While no replica runs: seconds until one is expected to run; 0.0: unknown."""
        self.admission.expect_capacity(in_s)

    def retry_after_s(self) -> float:
        """Seconds after which a request that found the queue full may be sent again."""
        return self.admission.queue_s()
