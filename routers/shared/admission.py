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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from routers.api.policies import ARRIVALS, DEADLINES, SHARES, Ranking
from routers.api.requests import FlowKey, FlowWork, Reason, Request
from routers.api.settings import DispatcherSettings, Mode
from routers.api.snapshot import ControllerSnapshot
from routers.policies.admission.types import (
    ADMIT,
    AtTurn,
    Controller,
    LateWork,
    Newcomer,
    OnArrival,
    OnceLate,
)
from routers.policies.registry import ADMISSIONS
from routers.shared.bounds import Bounds, bound_reached, has_place, is_over
from routers.state.flows import Flow
from routers.state.lanes import Lane
from routers.state.rejection_cache import CachedRejection, RejectionCache, TimesLeft
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
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


class QueueAhead:
    """What does a new request find before it? Makes `Newcomer` records, O(1) in what waits.

    Work that waits for its flow at other gateways counts, as far as reports tell, but at most as
    much as waits here: gateways take turns with a flow, and a request at the gateway with the least
    of the flow's work would otherwise always be called late. Where groups of replicas take
    different lengths, a request finds no replica if none runs that takes its longest row. Work that
    only a part of the replicas may do counts as much more as that part is smaller than all of them,
    so that it may be divided by the capacity of all. Urgent work that is too long for the replicas
    that take the request does not stand before it there. Late work counts alike.
    """

    def __init__(
        self, waiting: RequestQueue, replicas: ReplicaSet[Any], *, by_room: bool = False
    ) -> None:
        """`by_room`: replicas take requests one by one, as their room allows."""
        self._waiting = waiting
        self._flows = waiting.flows
        self._replicas = replicas
        self._by_room = by_room
        # While no replica runs, or none that takes some length: seconds until one is expected, as
        # last told; 0.0: not known.
        self.capacity_in_s = 0.0

    def found_by(self, tracked: TrackedRequest, now: float) -> Newcomer:
        """The request with what it finds; changes nothing."""
        flow, waiting = tracked.flow, self._waiting
        slack_s, longest = tracked.latest_start - now, self._longest(tracked)
        newcomer = Newcomer(tracked, flow, slack_s, self._capacity(longest))
        if slack_s <= 0.0 or not newcomer.capacity:
            newcomer.capacity_in_s = self.capacity_in_s
            return newcomer
        priority, ranking = flow.priority, self._flows.order.ranking
        shares = ranking is SHARES
        is_behind = flow.rows > 0 if shares else self._has_waiting(priority)
        if is_behind or (self._by_room and not self._replicas.has_ready):
            # A request without room waits even if its flow has nothing else in the queue.
            newcomer.before_s = self._before_s(tracked, ranking, longest)
        if priority:
            lanes = waiting.on_time[:priority]
            newcomer.urgent_s = self._sum(lanes, longest) if longest else waiting.urgent_s(priority)
        newcomer.competing_weight = self._flows.weights[priority] if shares else flow.weight
        return newcomer

    def late_work(self, tracked: TrackedRequest, left_s: float, *, is_new: bool) -> LateWork:
        """The late work that there would be with this request. `left_s`: until it expires."""
        waiting, longest = self._waiting, self._longest(tracked)
        own_s = 0.0 if tracked.late and not is_new else tracked.cost_s
        if longest:
            work_s = self._sum(waiting.late, longest) + own_s * self._counted(longest)(longest)
        else:
            work_s = waiting.late_s + own_s
        return LateWork(work_s, left_s, self._capacity(longest), is_new)

    def _longest(self, tracked: TrackedRequest) -> int:
        """The edge of its longest row; 0: all replicas take all lengths."""
        if not self._replicas.groups.bounds:
            return 0
        waiting = self._waiting
        return waiting.edges[waiting.bucket_of(max(tracked.request.lengths))]

    def _capacity(self, longest: int) -> float:
        """Of all running replicas; 0.0 where none takes rows of this edge."""
        groups = self._replicas.groups
        return groups.capacity if not longest or groups.takes(longest) else 0.0

    def _has_waiting(self, priority: int) -> bool:
        lanes = self._waiting.on_time
        return priority < len(lanes) and lanes[priority].rows > 0

    def _before_s(self, tracked: TrackedRequest, ranking: Ranking, longest: int) -> float:
        """Predicted seconds of its flow's work up to and with the request itself. `longest`: the
        edge of its longest row; 0: all replicas take all lengths."""
        flow, before_s, lanes = tracked.flow, tracked.cost_s, self._waiting.on_time
        counted = self._counted(longest) if longest else None
        if ranking is DEADLINES:
            # How much of what waits is due earlier is not known without a scan.
            return before_s * (counted(longest) if counted else 1.0)
        if ranking is ARRIVALS:
            ahead = lanes[flow.priority :][:1]
            if counted is not None:
                return before_s * counted(longest) + self._sum(ahead, longest)
            return before_s + sum([lane.waiting_s for lane in ahead])
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # None: all that the flow has waiting are rows that travel alone
            if counted is None:
                before_s = queue.before_s(tracked.edge, before_s)
            else:
                before_s = queue.counted_before_s(longest, before_s, counted)
        if flow.peer_demand_s > 0.0:
            before_s += min(before_s, flow.peer_demand_s)
        return before_s

    def _counted(self, longest: int) -> Callable[[int], float]:
        """How many times the work of a bucket counts for a request of that length."""
        groups = self._replicas.groups

        def times(edge: int) -> float:
            capacity = groups.capacity_for(min(edge, longest))
            return groups.capacity / capacity if capacity > 0.0 else 1.0

        return times

    def _sum(self, lanes: Sequence[Lane], longest: int) -> float:
        """Predicted seconds of what waits in the lanes, as it stands before a request of that
        length: all of it, at all replicas; or what is no longer than a bound, at the replicas that
        take nothing longer; whichever is less."""
        groups, counted = self._replicas.groups, self._counted(longest)
        work = [(e, c.waiting_s) for lane in lanes for e, c in lane.length_classes.items()]
        least_s = sum([seconds * counted(edge) for edge, seconds in work])
        for bound in groups.bounds:
            capacity = groups.capacity_for(longest, bound)
            if capacity > 0.0:
                shorter_s = sum([seconds for edge, seconds in work if edge <= bound])
                least_s = min(least_s, shorter_s * groups.capacity / capacity)
        return least_s


class Admission:
    """The admission to one model's queue."""

    def __init__(
        self,
        settings: DispatcherSettings,
        replicas: ReplicaSet[Any],
        bounds: Bounds,
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
            return self._judge_late(tracked, late_by_s, newcomer.capacity, now)
        if newcomer.capacity:
            tracked.forecast_s = forecast_s
        return None

    def _judge_late(
        self, tracked: TrackedRequest, late_by_s: float, capacity: float, now: float
    ) -> Rejection | None:
        """The same for a request that is late by so much, and finds so much capacity. A rejection
        is cached."""
        request = tracked.request
        over_before_s = 0.0 if capacity else self._over_before_capacity_s(request, now)
        if over_before_s > 0.0:
            late_by_s, rejection = over_before_s, Rejection(Reason.LATE, self._queue_s(capacity))
        else:
            late = self._ahead.late_work(tracked, request.expires - now, is_new=True)
            if (
                not is_over(request, self._settings, now)
                and has_place(tracked.open, tracked.flow, self._waiting, self._settings)
                and not self.controllers.refuse_late(late, now)
            ):
                return None
            rejection = Rejection(Reason.LATE, retry_after_s(late_by_s, 1))
        if tracked.open == 1:
            edges, gone = [tracked.edge], self._waiting.gone
            if not (tracked.forecast_edge and capacity):
                edges = [edge for edge in self._waiting.edges if edge >= tracked.edge]
            times = TimesLeft(min(request.deadline, request.expires) - now, request.expires - now)
            cached = CachedRejection(times, late_by_s, rejection.retry_after_s)
            for edge in edges:
                self.rejections.keep(tracked.flow.key, edge, cached, gone, now)
        return rejection

    def _over_before_capacity_s(self, request: Request, now: float) -> float:
        """While no replica runs that takes it: by how many seconds the request is over before one
        is expected; 0.0: not before, or unknown."""
        if not self.capacity_in_s:
            return 0.0
        until = request.deadline if self._settings.late == "refuse" else request.expires
        return max(0.0, now + self.capacity_in_s - until)

    def cannot_be_served_late(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether the deadline of a queued request has passed and the controllers expect no idle
        moment that could serve it. Then it is better refused now than when it expires."""
        request = tracked.request
        if now < request.deadline or tracked.queued < tracked.open:
            return False
        late = self._ahead.late_work(tracked, request.expires - now, is_new=False)
        return self.controllers.refuse_late(late, now)

    # -- the rejection cache

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
        tracked = self._hypothetical(flow, edge, times, now)
        newcomer = self._ahead.found_by(tracked, now)
        if not newcomer.capacity:
            return let_in
        late_by_s = _late_by_s(newcomer)
        for each in self.controllers.on_arrival:
            if each.verdicts.acts:
                late_by_s = max(late_by_s, each.judge(newcomer, now).late_by_s)
        if late_by_s <= 0.0:
            return let_in
        late = self._ahead.late_work(tracked, times.expires_s, is_new=True)
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


# ---- the controllers, as settings name them --------------------------------------------------

T = TypeVar("T", bound=Controller)


class Controllers:
    """The controllers, by the moment at which each is asked, and by what each wants to hear.

    At each moment they are asked in the order of the setting `policies.admission`. This class sets
    their modes, counts their refusals and passes on what they learn from; the caller decides what a
    refusal leads to. A controller with mode `off` is not asked and hears of no request, but still
    hears of served work, so that it is up to date when it is turned on.
    """

    def __init__(self, settings: DispatcherSettings) -> None:
        self._by_name: dict[str, Controller] = {}
        self.tune(settings)

    def tune(self, settings: DispatcherSettings) -> None:
        """Adopt new settings. A controller that is named in both keeps what it has learnt."""
        names, self._frozen = settings.policies.admission, settings.frozen
        self._by_name = {name: self._by_name.get(name) or ADMISSIONS[name]() for name in names}
        modes = dict(settings.admission.modes)
        for name, each in self._by_name.items():
            each.tune(settings)
            mode = each.mode(settings.admission)
            each.verdicts.tune(modes.get(name, Mode.ENFORCE) if mode is None else mode)
        every = self._by_name.values()
        asked = [each for each in every if not each.verdicts.off]
        self.on_arrival = tuple(each for each in asked if isinstance(each, OnArrival))
        self.once_late = tuple(each for each in asked if isinstance(each, OnceLate))
        self.at_turn = tuple(each for each in asked if isinstance(each, AtTurn))
        self._late_verdicts = tuple(each.verdicts for each in asked if each.reason is Reason.LATE)
        self._hear_refusals = _overriding(self.on_arrival, OnArrival.rejected_from_cache)
        self._hear_waits = _overriding(asked, Controller.waited)
        self._hear_work = _overriding(every, Controller.served)

    # -- questions to all controllers of one moment

    def refuse_late(self, late: LateWork, now: float) -> bool:
        """Whether a controller refuses to let the late work wait; counts the refusal."""
        return any(each.refuses(late, now) and each.verdicts.no() for each in self.once_late)

    def would_refuse_late(self, late: LateWork, now: float) -> bool:
        """What `refuse_late` would answer for a hypothetical request; counts nothing."""
        return any(each.verdicts.acts and each.refuses(late, now) for each in self.once_late)

    def shed_at_turn(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether a controller sheds a request whose turn has come; counts the refusal."""
        flow, wait_s = tracked.flow.key, now - tracked.queued_at
        for each in self.at_turn:
            known = each.seen(flow)
            seen, is_no = each.look(known, tracked, wait_s, now)
            if seen is not known:
                each.learn(flow, seen)
            if is_no and each.verdicts.no():
                return True
        return False

    # -- what they learn from

    def rejected_from_cache(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """The rejection cache refused a new request as late: tell the controllers of arrival, and
        count a refusal of every controller that refuses as late."""
        for each in self._hear_refusals:
            each.rejected_from_cache(flow, edge, now)
        for verdicts in self._late_verdicts:
            verdicts.no()

    def waited(self, tracked: TrackedRequest, now: float, *, taken: bool) -> None:
        """A request that had a forecast goes to a replica (`taken`), or has turned late."""
        flow, wait_s = tracked.flow, now - tracked.queued_at
        for each in self._hear_waits:
            each.waited(flow, tracked, wait_s, now, taken=taken)

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[Flow] = ()
    ) -> None:
        """Flows were given device seconds; `late`: for late rows; `flows`: theirs, if known."""
        for each in self._hear_work:
            each.served(work, now, late=late, flows=flows)

    # -- snapshot

    def snapshot(self, capacity: float, now: float) -> tuple[ControllerSnapshot, ...]:
        """One entry a controller, in the registry's order. `capacity`: running replicas."""
        shown = [(name, self._by_name[name]) for name in ADMISSIONS if name in self._by_name]
        return tuple(
            ControllerSnapshot(
                name,
                each.verdicts.mode.value,
                self._frozen,
                each.value(capacity, now),
                each.verdicts.shed,
                each.verdicts.would_shed,
                each.by_flow(now),
            )
            for name, each in shown
        )


def _overriding(controllers: Iterable[T], method: Callable[..., Any]) -> tuple[T, ...]:
    """The controllers whose class overrides this method; calling the others would do nothing."""
    name = method.__name__
    return tuple(each for each in controllers if getattr(type(each), name) is not method)
