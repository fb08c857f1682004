"""May a new request wait: on time, late, or not at all?

1. Is the request within the bounds of model, queue and tenant (`bounded`)?
2. Was a request like it rejected a moment ago (`fast_reject`, by the `RejectionCache`)?
3. Do the controllers of arrival let it wait on time (`judge`, `OnArrival`)?
4. If it is late: is there a place, and do the controllers of late work let it in (`OnceLate`)?

`Admission` asks the bounds and controllers in this order, marks late requests and caches late
rejections. Work: O(1). A rejection is final. If the queue is the reason, it says after how many
seconds to ask again: the predicted work that waits, divided among the replicas. While no replica
runs and one is expected at a known time, a request that would be over before is rejected at once.
"""

from __future__ import annotations

from typing import Any, Final

from routers.api.requests import FlowKey, Reason, Request
from routers.api.settings import DispatcherSettings
from routers.policies.admission.lateness import has_place, is_over
from routers.policies.admission.queue_ahead import QueueAhead
from routers.policies.admission.queue_bound import BoundView, bound_reached
from routers.policies.admission.types import ADMIT, Newcomer
from routers.shared.controllers import Controllers
from routers.state.flows import Flow
from routers.state.rejection_cache import CachedRejection, RejectionCache, TimesLeft
from routers.state.replicas import ReplicaSet
from routers.state.rows import TrackedRequest

MIN_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 60.0
# Asking again does not help.
_PERMANENT: Final = (Reason.TOO_LONG, Reason.TOO_LARGE, Reason.EXPIRED)
_MIN_LATE_S: Final = 1e-9  # 0.0 means on time


class Rejection:
    """A rejection, as the caller is told."""

    reason: Reason
    retry_after_s: float  # after which asking again may help; 0: never, or unknown

    def __init__(self, reason: Reason, retry_after_s: float = 0.0) -> None:
        self.reason, self.retry_after_s = reason, retry_after_s


class Admission:
    """The admission to one model's queue."""

    def __init__(
        self,
        settings: DispatcherSettings,
        replicas: ReplicaSet[Any],
        bounds: BoundView,
        *,
        by_room: bool,
    ) -> None:
        """`by_room`: replicas take requests one by one, as their room allows."""
        self.controllers = Controllers(settings)
        self.rejections = RejectionCache()
        self._settings = settings
        self._waiting = bounds.waiting
        self._replicas = replicas
        self._bounds = bounds
        self._by_room = by_room
        self._ahead = QueueAhead(bounds.waiting, replicas, by_room=by_room)

    def tune(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what the controllers have learnt is kept."""
        self._settings = settings
        self.controllers.tune(settings)
        self.rejections.clear()

    @property
    def capacity_in_s(self) -> float:
        """While no replica runs, or none that takes some length: seconds until one is expected
        to, as last told; 0.0: unknown."""
        return self._ahead.capacity_in_s

    def expect_capacity(self, in_s: float) -> None:
        """While no replica runs, or none that takes some length: seconds until one is expected
        to; 0.0: unknown."""
        if in_s < self._ahead.capacity_in_s:
            self.rejections.clear()
        self._ahead.capacity_in_s = in_s

    # -- in the order of the questions

    def bounded(self, request: Request, now: float) -> Rejection | None:
        """The rejection by a bound, before rows are made; None: the request is within them all."""
        reason = bound_reached(self._bounds, request, now)
        if reason is None:
            return None
        return Rejection(reason, 0.0 if reason in _PERMANENT else self.queue_s())

    def fast_reject(
        self, flow: FlowKey, edge: int, times: TimesLeft, now: float
    ) -> Rejection | None:
        """The cached rejection that also holds for one row of this bucket; None: there is none."""
        cached = self.rejections.of(flow, edge, times, self._waiting.gone, now)
        return None if cached is None else Rejection(Reason.LATE, cached.retry_after_s)

    def judge(self, tracked: TrackedRequest, now: float) -> Rejection | None:
        """The rejection, or None: the request may wait. Sets its `late`, and its `forecast_s` where
        it may wait on time."""
        newcomer = self._ahead.found_by(tracked, now)
        late_by_s, forecast_s = _late_by_s(newcomer), 0.0
        for each in self.controllers.on_arrival:
            each.came(newcomer, now)
            answer = each.judge(newcomer, now)
            if answer is ADMIT:
                continue
            if answer.teaches:
                each.told(newcomer, answer, now)
            if answer.forecast_s > forecast_s:
                forecast_s = answer.forecast_s
            if (answer.refused or answer.late_by_s > 0.0) and each.verdicts.no():
                if answer.refused:
                    return Rejection(each.reason, self._queue_s(newcomer.capacity))
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
        over_before_s = 0.0 if newcomer.capacity else self._over_before_capacity_s(newcomer, now)
        if over_before_s > 0.0:
            rejection = Rejection(Reason.LATE, self._queue_s(newcomer.capacity))
            self._cache_rejection(newcomer, over_before_s, rejection, now)
            return rejection
        late = self._ahead.late_work(tracked, request.expires - now, is_new=True)
        if (
            is_over(request, self._settings, now)
            or not has_place(tracked.open, tracked.flow, self._waiting, self._settings)
            or self.controllers.refuse_late(late, now)
        ):
            rejection = Rejection(Reason.LATE, retry_after_s(late_by_s, 1))
            self._cache_rejection(newcomer, late_by_s, rejection, now)
            return rejection
        return None

    def _over_before_capacity_s(self, newcomer: Newcomer, now: float) -> float:
        """While no replica runs that takes it: by how many seconds the request is over before one
        is expected; 0.0: not before, or unknown."""
        if not newcomer.capacity_in_s:
            return 0.0
        request = newcomer.tracked.request
        until = request.deadline if self._settings.late == "refuse" else request.expires
        return max(0.0, now + newcomer.capacity_in_s - until)

    def cannot_be_served_late(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether the deadline of a queued request has passed and the controllers expect no idle
        moment that could serve it. Then it is better refused now than when it expires."""
        request = tracked.request
        if now < request.deadline or tracked.queued < tracked.open:
            return False
        late = self._ahead.late_work(tracked, request.expires - now, is_new=False)
        return self.controllers.refuse_late(late, now)

    # -- the rejection cache

    def _cache_rejection(
        self, newcomer: Newcomer, late_by_s: float, rejection: Rejection, now: float
    ) -> None:
        tracked = newcomer.tracked
        if tracked.open != 1:
            return
        request, edges = tracked.request, [tracked.edge]
        if not tracked.forecast_edge or not newcomer.capacity:
            edges = [edge for edge in self._waiting.edges if edge >= tracked.edge]
        times = TimesLeft(min(request.deadline, request.expires) - now, request.expires - now)
        cached = CachedRejection(times, late_by_s, rejection.retry_after_s)
        for edge in edges:
            self.rejections.keep(tracked.flow.key, edge, cached, self._waiting.gone, now)

    def reject_unread(self, flow: Flow, times: TimesLeft, now: float) -> Rejection | None:
        """The rejection that holds for one row of any length; None: some bucket may let it in. Once
        the cache holds a rejection for one bucket, the answers of the other buckets are predicted.
        No request is told a predicted answer."""
        edges, gone, rejections = self._waiting.edges, self._waiting.gone, self.rejections
        if all(rejections.last(flow.key, edge, gone, now) is None for edge in edges):
            return None
        soonest_s = MAX_RETRY_S
        for edge in edges:
            cached = rejections.foreseen(flow.key, edge, gone, now)
            if cached is None:
                cached = self._predict_answer(flow, edge, times, now)
                rejections.foresee(flow.key, edge, cached, gone, now)
            if not cached.holds_for(times):
                return None
            soonest_s = min(soonest_s, cached.retry_after_s)
        return Rejection(Reason.LATE, soonest_s)

    def _predict_answer(
        self, flow: Flow, edge: int, times: TimesLeft, now: float
    ) -> CachedRejection:
        """What `judge` would answer to one row of this bucket; changes nothing. Where requests are
        taken as room allows, and while no replica runs that takes the row, the answer is always
        that it may wait."""
        groups = self._replicas.groups
        let_in = CachedRejection(times, 0.0, 0.0)
        if not groups.capacity or self._by_room:
            return let_in
        newcomer = self._ahead.found_by(self._hypothetical(flow, edge, times, now), now)
        if not newcomer.capacity:
            return let_in
        late_by_s = _late_by_s(newcomer)
        for each in self.controllers.on_arrival:
            if each.verdicts.acts:
                late_by_s = max(late_by_s, each.judge(newcomer, now).late_by_s)
        if late_by_s <= 0.0:
            return let_in
        late = self._ahead.late_work(newcomer.tracked, times.expires_s, is_new=True)
        if has_place(1, flow, self._waiting, self._settings) and not (
            self.controllers.would_refuse_late(late, now)
        ):
            return let_in
        return CachedRejection(times, late_by_s, retry_after_s(late_by_s, 1))

    def _hypothetical(self, flow: Flow, edge: int, times: TimesLeft, now: float) -> TrackedRequest:
        """A hypothetical request of one row, the longest of this bucket."""
        groups, deadline, expires = self._replicas.groups, now + times.left_s, now + times.expires_s
        request = Request(
            -1, (edge,), now, deadline, expires, flow.tenant, flow.priority, weight=flow.weight
        )
        latest = groups.latest_start(edge, now, deadline)
        cost_s = groups.reference.cost.unit_s(edge)
        return TrackedRequest(request, flow, now, latest, edge, cost_s)

    def queue_s(self) -> float:
        """Seconds after which a request that found the queue full may be sent again."""
        return self._queue_s(self._replicas.groups.capacity)

    def _queue_s(self, capacity: float) -> float:
        """The same, of a request that finds so much capacity."""
        after_s = retry_after_s(self._waiting.seconds, capacity)
        return after_s if capacity else min(MAX_RETRY_S, max(after_s, self.capacity_in_s))


def _late_by_s(newcomer: Newcomer) -> float:
    """Seconds since the request's latest start, at least `_MIN_LATE_S`; 0.0: it lies ahead."""
    return max(_MIN_LATE_S, -newcomer.slack_s) if newcomer.slack_s <= 0.0 else 0.0


def retry_after_s(work_s: float, capacity: float) -> float:
    """Seconds in which `capacity` replicas serve `work_s`, between both bounds; 0 counts as 1."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, work_s / (capacity or 1.0)))
