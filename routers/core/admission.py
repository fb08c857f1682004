"""What becomes of a new request: it waits on time, waits late, or is refused.

The order of the questions: is there room (the bounds of model, queue and tenant), was the like of
it refused a moment ago, what do the controllers say of one that comes (`OnArrival`), and if it is
late, is there a place for it, and what do they say of that (`OnceLate`). The bounds and controllers
decide, by what the queue keeps sums of; here that is written down, and late rejections are kept in
a `RejectionCache`. O(1) in what waits. A rejection is final; where the queue is the reason it
carries the seconds after which asking again may help: the predicted work that waits over the
replicas that serve it, or until there is one. While none runs and it is known when one is expected,
what would be over before that is refused at once; the rest waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.requests import FlowKey, Reason, Request
from routers.api.settings import DispatcherSettings
from routers.core.controllers import Controllers
from routers.policies.admission.lateness import has_place, is_over
from routers.policies.admission.queue_ahead import QueueAhead
from routers.policies.admission.queue_bound import bound_reached
from routers.policies.admission.types import ADMIT, LateWork, Newcomer
from routers.state.flows import Flow, Flows
from routers.state.rejection_cache import CachedRejection, RejectionCache, TimesLeft
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

MIN_RETRY_S = 0.05
MAX_RETRY_S = 60.0
_NEVER = (Reason.TOO_LONG, Reason.TOO_LARGE, Reason.EXPIRED)
_LEAST_LATE_S = 1e-9


@dataclass(slots=True)
class Rejection:
    """`retry_after_s`: after which asking again may help; 0: never, or nobody can say when."""

    reason: Reason
    retry_after_s: float = 0.0


class Admission:
    """For one model's queue. `controllers`: those that settings name."""

    def __init__(
        self,
        settings: DispatcherSettings,
        waiting: RequestQueue,
        flows: Flows,
        replicas: ReplicaSet,
    ) -> None:
        self.controllers = Controllers(settings)
        self.rejections = RejectionCache()
        self._settings = settings
        self._waiting = waiting
        self._replicas = replicas
        self._ahead = QueueAhead(waiting, flows, replicas)

    def tune(self, settings: DispatcherSettings) -> None:
        """Other settings; what was learnt stays."""
        self._settings = settings
        self.controllers.tune(settings)
        self.rejections.clear()

    @property
    def capacity_in_s(self) -> float:
        """While no replica runs, seconds until one is expected to, as last told; 0.0: nobody
        knows."""
        return self._ahead.capacity_in_s

    def expect_capacity(self, in_s: float) -> None:
        """While no replica runs, one is expected to in so many seconds; 0.0: nobody knows."""
        if in_s < self._ahead.capacity_in_s:
            self.rejections.clear()
        self._ahead.capacity_in_s = in_s

    # -- in the order of the questions

    def bounded(self, request: Request, now: float) -> Rejection | None:
        """By bounds alone, before anything is made of the request."""
        reason = bound_reached(request, self._waiting, self._settings, self._replicas.groups, now)
        if reason is None and request.generation is not None:
            # None of the running replicas could hold all of it, were it alone there.
            tokens = request.lengths[0] + request.generation.max_tokens
            most = self._replicas.largest
            reason = Reason.TOO_LONG if tokens > most > 0.0 else None
        if reason is None:
            return None
        return Rejection(reason, 0.0 if reason in _NEVER else self.queue_s())

    def fast_reject(
        self, flow: FlowKey, edge: int, times: TimesLeft, now: float
    ) -> Rejection | None:
        """By the rejection cache: for one row of this bucket, before anything else is asked."""
        cached = self.rejections.of(flow, edge, times, self._waiting.gone, now)
        return None if cached is None else Rejection(Reason.LATE, cached.retry_after_s)

    def judge(self, tracked: TrackedRequest, now: float) -> Rejection | None:
        """Makes the request late where it is; the rejection, if it may not wait at all."""
        newcomer = self._ahead.found_by(tracked, now)
        late_by_s, forecast_s = _overdue_s(newcomer), 0.0
        for came, judge, each in self.controllers.arrivals:
            came(newcomer, now)
            answer = judge(newcomer, now)
            if answer is ADMIT:
                continue
            if answer.teaches:
                each.told(newcomer, answer, now)
            if answer.forecast_s > forecast_s:
                forecast_s = answer.forecast_s
            if (answer.refused or answer.late_by_s > 0.0) and each.verdicts.no():
                if answer.refused:
                    return Rejection(each.reason, self.queue_s())
                if answer.late_by_s > late_by_s:
                    late_by_s = answer.late_by_s
        if late_by_s > 0.0:
            tracked.late = True
            return self._judge_late(newcomer, late_by_s, now)
        if newcomer.capacity:
            tracked.forecast_s = forecast_s
        return None

    def _judge_late(self, newcomer: Newcomer, late_by_s: float, now: float) -> Rejection | None:
        tracked = newcomer.tracked
        request = tracked.request
        in_vain_s = 0.0 if newcomer.capacity else self._in_vain_s(newcomer, now)
        if in_vain_s > 0.0:
            rejection = Rejection(Reason.LATE, self.queue_s())
            self._keep(newcomer, in_vain_s, rejection, now)
            return rejection
        left_s, work_s = request.expires - now, self._waiting.late_s + tracked.cost_s
        if (
            is_over(request, self._settings, now)
            or not has_place(tracked.open, tracked.flow, self._waiting, self._settings)
            or self.controllers.refuse_late(LateWork(work_s, left_s, newcomer.capacity, True), now)
        ):
            rejection = Rejection(Reason.LATE, retry_after_s(late_by_s, 1))
            self._keep(newcomer, late_by_s, rejection, now)
            return rejection
        return None

    def _in_vain_s(self, newcomer: Newcomer, now: float) -> float:
        """How long before a replica is there its time is up; 0.0: it can wait for that, or nobody
        knows."""
        if not newcomer.capacity_in_s:
            return 0.0
        request = newcomer.tracked.request
        until = request.deadline if self._settings.late == "refuse" else request.expires
        return max(0.0, now + newcomer.capacity_in_s - until)

    def waits_in_vain(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether its deadline has passed and no idle moment is to come that could serve it: better
        refused now than when it expires."""
        request = tracked.request
        if now < request.deadline or tracked.queued < tracked.open:
            return False
        work_s = self._waiting.late_s + (0.0 if tracked.late else tracked.cost_s)
        left_s, capacity = request.expires - now, self._replicas.groups.capacity
        return self.controllers.refuse_late(LateWork(work_s, left_s, capacity, False), now)

    # -- what was said to the like of it

    def _keep(self, newcomer: Newcomer, late_by_s: float, rejection: Rejection, now: float) -> None:
        tracked = newcomer.tracked
        if tracked.open != 1:
            return
        request, edges = tracked.request, [tracked.edge]
        if tracked.plan is not None or not newcomer.capacity:
            edges = [edge for edge in self._waiting.edges if edge >= tracked.edge]
        times = TimesLeft(min(request.deadline, request.expires) - now, request.expires - now)
        cached = CachedRejection(times, late_by_s, rejection.retry_after_s)
        for edge in edges:
            self.rejections.keep(tracked.flow.key, edge, cached, self._waiting.gone, now)

    def reject_unread(self, flow: Flow, times: TimesLeft, now: float) -> Rejection | None:
        """By the rejection cache: for one row whose length nobody knows. Once some bucket has
        refused a moment ago, the others are asked what they would say; no request is told that."""
        edges, gone, rejections = self._waiting.edges, self._waiting.gone, self.rejections
        if all(rejections.last(flow.key, edge, gone, now) is None for edge in edges):
            return None
        soonest_s = MAX_RETRY_S
        for edge in edges:
            cached = rejections.foreseen(flow.key, edge, gone, now)
            if cached is None:
                cached = self._would_say(flow, edge, times, now)
                rejections.foresee(flow.key, edge, cached, gone, now)
            if not cached.holds_for(times):
                return None
            soonest_s = min(soonest_s, cached.retry_after_s)
        return Rejection(Reason.LATE, soonest_s)

    def _would_say(self, flow: Flow, edge: int, times: TimesLeft, now: float) -> CachedRejection:
        """What `judge` would say to a row of this bucket, were it late; changes nothing. Of models
        that generate, and while no replica runs, nothing."""
        groups = self._replicas.groups
        let_in = CachedRejection(times, 0.0, 0.0)
        if not groups.capacity or groups.reference.engine is not None:
            return let_in
        newcomer = self._ahead.found_by(self._imagined(flow, edge, times, now), now)
        late_by_s = _overdue_s(newcomer)
        for each in self.controllers.on_arrival:
            if each.verdicts.acts:
                late_by_s = max(late_by_s, each.judge(newcomer, now).late_by_s)
        if late_by_s <= 0.0:
            return let_in
        work_s = self._waiting.late_s + newcomer.tracked.cost_s
        late = LateWork(work_s, times.expires_s, groups.capacity, True)
        if has_place(1, flow, self._waiting, self._settings) and not (
            self.controllers.would_refuse_late(late, now)
        ):
            return let_in
        return CachedRejection(times, late_by_s, retry_after_s(late_by_s, 1))

    def _imagined(self, flow: Flow, edge: int, times: TimesLeft, now: float) -> TrackedRequest:
        """A request of one row that has not come."""
        groups, deadline, expires = self._replicas.groups, now + times.left_s, now + times.expires_s
        request = Request(
            -1, (edge,), now, deadline, expires, flow.tenant, flow.priority, weight=flow.weight
        )
        latest = groups.latest_start(edge, now, deadline)
        cost_s = groups.reference.cost.unit_s(edge)
        return TrackedRequest(request, flow, now, latest, 1, edge, cost_s)

    def queue_s(self) -> float:
        """Seconds after which asking a full queue again may help."""
        capacity = self._replicas.groups.capacity
        after_s = retry_after_s(self._waiting.seconds, capacity)
        return after_s if capacity else min(MAX_RETRY_S, max(after_s, self.capacity_in_s))


def _overdue_s(newcomer: Newcomer) -> float:
    """Since its latest start; 0.0: there is time left."""
    return max(_LEAST_LATE_S, -newcomer.slack_s) if newcomer.slack_s <= 0.0 else 0.0


def retry_after_s(work_s: float, capacity: float) -> float:
    """`capacity`: of the running replicas, 0: none runs."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, work_s / (capacity or 1.0)))
