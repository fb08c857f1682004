"""May this new request wait, and if so on time or late?

The order of the questions: is there room (the bounds of model, queue and tenant), was the like of
it refused a moment ago, has its flow more in the core than its limit, can it still be started in
time behind what waits, and if not, is there an idle moment to come that could serve it late. Each
controller answers for itself; `AdmissionPipeline` asks them with the sums that the queue keeps, and
keeps late rejections in a `RejectionCache`. O(1) in what waits. A rejection is final; where the
queue is the reason it carries the seconds after which asking again may help: the predicted work
that waits over the replicas that serve it, or until there is one. While none runs and it is known
when one is expected, what would be over before that is refused at once; the rest waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from routers.api.policies import Ranking
from routers.api.requests import FlowKey, Generation, Reason, Request
from routers.api.settings import DispatcherSettings
from routers.estimates.groups import ReplicaGroups
from routers.policies.admission.controllers import Admission
from routers.policies.admission.feasibility import QueueAhead
from routers.policies.admission.lateness import has_place, is_over
from routers.policies.admission.queue_bound import is_full
from routers.state.flows import Flow, Flows
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

MIN_RETRY_S = 0.05
MAX_RETRY_S = 60.0
KEPT_S = 0.02
_NEVER = (Reason.TOO_LONG, Reason.TOO_LARGE, Reason.EXPIRED)


@dataclass(slots=True)
class Rejection:
    """`retry_after_s`: after which asking again may help; 0: never, or nobody can say when."""

    reason: Reason
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimesLeft:
    """Seconds from now to the deadline (or the expiry, if that is sooner), and to the expiry."""

    left_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class CachedRejection:
    """`times`: what it had; `late_by_s`: how late it was; 0.0: it was not rejected."""

    times: TimesLeft
    late_by_s: float
    retry_after_s: float

    def holds_for(self, times: TimesLeft) -> bool:
        more_s = max(times.left_s - self.times.left_s, times.expires_s - self.times.expires_s)
        return more_s < self.late_by_s


class RejectionCache:
    """Was the like of this refused a moment ago, with nothing gone from the queue since?

    Under overload nearly every new request is refused, all for the same reason: what waits before
    them. A rejection as late holds for every further one-row request of that flow, in that bucket,
    that has not more time by as much as the first was late; until a row leaves the queue or a batch
    ends, and for `KEPT_S` at most, since forecasts move with time too. It says nothing of other
    buckets: each has turns of its own. So all but a few dozen new requests a second are refused by
    a look, and where every bucket refuses, by their headers alone, before their bodies are read.
    `at`: how many rows have left the queue so far; what was refused at another count does not
    count."""

    def __init__(self) -> None:
        self._last: dict[tuple[FlowKey, int], tuple[CachedRejection, int, float]] = {}

    def __bool__(self) -> bool:
        """Whether anything at all was refused a moment ago."""
        return bool(self._last)

    def keep(self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float) -> None:
        self._last[flow, edge] = refused, at, now + KEPT_S

    def last(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was found of that bucket a moment ago, if that still stands."""
        kept = self._last.get((flow, edge))
        if kept is None:
            return None
        refused, when, until = kept
        if when != at or now >= until:
            del self._last[flow, edge]
            return None
        return refused

    def of(
        self, flow: FlowKey, edge: int, times: TimesLeft, at: int, now: float
    ) -> CachedRejection | None:
        """The rejection that holds for such a row too."""
        refused = self.last(flow, edge, at, now)
        return refused if refused is not None and refused.holds_for(times) else None

    def clear(self) -> None:
        """A batch has ended, or settings are others: every request is judged anew."""
        self._last.clear()


class AdmissionPipeline:
    """Asks the bounds, the rejection cache and each controller in turn, for one model's queue.
    `capacity_in_s`: while no replica runs, seconds until one is expected to, as last told; 0.0:
    nobody knows."""

    def __init__(self, waiting: RequestQueue, flows: Flows, replicas: ReplicaSet) -> None:
        self._waiting = waiting
        self._flows = flows
        self._replicas = replicas
        self.rejections = RejectionCache()
        self.capacity_in_s = 0.0

    def bounded(
        self, request: Request, settings: DispatcherSettings, now: float
    ) -> Rejection | None:
        """By bounds alone, before anything is made of the request."""
        reason = bound_reached(request, self._waiting, settings, self._replicas.groups, now)
        if reason is None and request.generation is not None:
            reason = self._too_large(request, request.generation)
        if reason is None:
            return None
        return Rejection(reason, 0.0 if reason in _NEVER else self.queue_s())

    def _too_large(self, request: Request, generation: Generation) -> Reason | None:
        """Whether no running replica could hold all of it, were it alone there."""
        most = self._replicas.largest
        tokens = request.lengths[0] + generation.max_tokens
        return Reason.TOO_LONG if tokens > most > 0.0 else None

    def fast_reject(
        self, flow: FlowKey, edge: int, times: TimesLeft, now: float
    ) -> Rejection | None:
        """By the rejection cache: for one row of this bucket, before anything else is asked."""
        cached = self.rejections.of(flow, edge, times, self._waiting.gone, now)
        return None if cached is None else Rejection(Reason.LATE, cached.retry_after_s)

    def reject_unread(
        self,
        flow: Flow,
        times: TimesLeft,
        admission: Admission,
        settings: DispatcherSettings,
        now: float,
    ) -> Rejection | None:
        """By the rejection cache: for one row whose length nobody knows. Once some bucket has
        refused a moment ago, the others are asked what they would say, and that is kept, too."""
        edges, gone, last = self._waiting.edges, self._waiting.gone, self.rejections.last
        if all(last(flow.key, edge, gone, now) is None for edge in edges):
            return None
        soonest_s = MAX_RETRY_S
        for edge in edges:
            cached = last(flow.key, edge, gone, now)
            if cached is None:
                cached = self._would_say(flow, edge, times, admission, settings, now)
                self.rejections.keep(flow.key, edge, cached, gone, now)
            if not cached.holds_for(times):
                return None
            soonest_s = min(soonest_s, cached.retry_after_s)
        return Rejection(Reason.LATE, soonest_s)

    def judge(
        self,
        tracked: TrackedRequest,
        admission: Admission,
        settings: DispatcherSettings,
        now: float,
    ) -> Rejection | None:
        """Makes the request late where it is; the rejection, if it may not wait at all."""
        flow = tracked.flow
        if admission.limit.sheds(flow.key, flow.live, now):
            return Rejection(Reason.SHED, self.queue_s())
        late_by_s = self._late_by_s(tracked, admission, now)
        if late_by_s <= 0.0:
            return None
        tracked.late, request = True, tracked.request
        in_vain_s = self._in_vain_s(request, settings, now)
        if in_vain_s > 0.0:
            rejection = Rejection(Reason.LATE, self.queue_s())
            self._keep(tracked, in_vain_s, rejection, now)
            return rejection
        late_s = self._waiting.late_s + tracked.cost_s
        left_s, capacity = request.expires - now, self._replicas.groups.capacity
        if (
            is_over(request, settings, now)
            or not has_place(tracked.open, flow, self._waiting, settings)
            or admission.best_effort_capacity.refuses(late_s, left_s, capacity, now)
        ):
            rejection = Rejection(Reason.LATE, retry_after_s(late_by_s, 1))
            self._keep(tracked, late_by_s, rejection, now)
            return rejection
        return None

    def _keep(
        self, tracked: TrackedRequest, late_by_s: float, rejection: Rejection, now: float
    ) -> None:
        if tracked.open != 1:
            return
        request, edges = tracked.request, [tracked.edge]
        if tracked.plan is not None or not self._replicas.groups.capacity:
            edges = [edge for edge in self._waiting.edges if edge >= tracked.edge]
        times = TimesLeft(min(request.deadline, request.expires) - now, request.expires - now)
        cached = CachedRejection(times, late_by_s, rejection.retry_after_s)
        for edge in edges:
            self.rejections.keep(tracked.flow.key, edge, cached, self._waiting.gone, now)

    def _would_say(
        self,
        flow: Flow,
        edge: int,
        times: TimesLeft,
        admission: Admission,
        settings: DispatcherSettings,
        now: float,
    ) -> CachedRejection:
        """What `judge` would say to a row of this bucket; changes nothing. Of models that generate,
        and while no replica runs, nothing."""
        groups = self._replicas.groups
        let_in = CachedRejection(times, 0.0, 0.0)
        if not groups.capacity or groups.reference.engine is not None:
            return let_in
        cost_s = groups.reference.cost.unit_s(edge)
        latest = groups.latest_start(edge, now, now + times.left_s)
        late_by_s = now - latest
        if late_by_s < 0.0:
            is_behind = self._waits_behind(flow)
            before_s = self._before_s(flow, edge, cost_s) if is_behind else 0.0
            ahead = self._ahead(flow, before_s, edge, cost_s)
            late_by_s = admission.feasibility.late_by_s(ahead, latest, now)
        late_s, best_effort = self._waiting.late_s + cost_s, admission.best_effort_capacity
        if late_by_s <= 0.0 or (
            has_place(1, flow, self._waiting, settings)
            and not best_effort.would_refuse(late_s, times.expires_s, groups.capacity, now)
        ):
            return let_in
        return CachedRejection(times, late_by_s, retry_after_s(late_by_s, 1))

    def queue_s(self) -> float:
        """Seconds after which asking a full queue again may help."""
        capacity = self._replicas.groups.capacity
        after_s = retry_after_s(self._waiting.seconds, capacity)
        return after_s if capacity else min(MAX_RETRY_S, max(after_s, self.capacity_in_s))

    def _late_by_s(self, tracked: TrackedRequest, admission: Admission, now: float) -> float:
        """0 for one that is on time."""
        latest = tracked.latest_start
        if latest <= now:
            return max(1e-9, now - latest)
        if not self._replicas.groups.capacity:
            return self._late_when_one_comes_s(latest, admission, now)
        flow = tracked.flow
        before_s, edge, cost_s = 0.0, tracked.edge, tracked.cost_s
        if self._waits_behind(flow) or self._waits_for_room(tracked):
            before_s = self._before_s(flow, edge, cost_s)
        ahead = self._ahead(flow, before_s, edge if tracked.plan is None else 0, cost_s)
        forecast = admission.feasibility.judge(ahead, latest, now)
        if forecast.late_by_s <= 0.0:
            tracked.forecast = forecast  # what is late from the start teaches nothing
        return forecast.late_by_s

    def _late_when_one_comes_s(self, latest: float, admission: Admission, now: float) -> float:
        verdicts, late_by_s = admission.feasibility.verdicts, now + self.capacity_in_s - latest
        if not self.capacity_in_s or verdicts.off or late_by_s <= 0.0 or not verdicts.no():
            return 0.0
        return late_by_s

    def _in_vain_s(self, request: Request, settings: DispatcherSettings, now: float) -> float:
        """How long before a replica is there its time is up; 0.0: it can wait for that."""
        if self._replicas.groups.capacity or not self.capacity_in_s:
            return 0.0
        until = request.deadline if settings.late == "refuse" else request.expires
        return max(0.0, now + self.capacity_in_s - until)

    def _waits_behind(self, flow: Flow) -> bool:
        """Whether anything goes before a new request of the flow besides what is more urgent."""
        if self._shares:
            return flow.rows > 0
        lanes = self._waiting.on_time
        return flow.priority < len(lanes) and lanes[flow.priority].rows > 0

    @property
    def _shares(self) -> bool:
        return self._flows.order.ranking is Ranking.SHARES

    def _waits_for_room(self, tracked: TrackedRequest) -> bool:
        """Whether as much as it needs has to be given up first by what runs."""
        return tracked.plan is not None and not self._replicas.has_ready

    def _ahead(self, flow: Flow, before_s: float, edge: int, cost_s: float) -> QueueAhead:
        """`edge`: 0 of what generates, whose lengths are not told apart."""
        urgent_s = self._waiting.urgent_s(flow.priority)
        rivals = self._flows.weights[flow.priority] if self._shares else flow.weight
        capacity = self._replicas.groups.capacity
        return QueueAhead(flow.key, flow.weight, before_s, rivals, urgent_s, capacity, edge, cost_s)

    def _before_s(self, flow: Flow, edge: int, cost_s: float) -> float:
        """Gateways take turns with a flow, so that of what it has waiting elsewhere no more goes
        before than waits here; else who has the least here would always be called late."""
        before_s, lanes = cost_s, self._waiting.on_time
        if self._flows.order.ranking is Ranking.DEADLINES:
            return before_s  # how much of what waits is due earlier is not known without a scan
        if not self._shares:
            return before_s + sum([lane.waiting_s for lane in lanes[flow.priority :][:1]])
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # else all it has are retried rows
            before_s = queue.before_s(edge, before_s)
        if flow.peer_demand_s > 0.0:
            before_s += min(before_s, flow.peer_demand_s)
        return before_s


def bound_reached(
    request: Request,
    waiting: RequestQueue,
    settings: DispatcherSettings,
    groups: ReplicaGroups,
    now: float,
) -> Reason | None:
    """The bound that keeps the request from the queue. First those that waiting cannot change."""
    lengths = request.lengths
    rows = len(lengths)
    longest = lengths[0] if rows == 1 else max(lengths)
    if longest > settings.bucket_edges[-1]:
        return Reason.TOO_LONG
    if rows > settings.max_queue_rows:
        return Reason.TOO_LARGE
    if request.expires <= now:
        return Reason.EXPIRED
    if request.tenant_rows and waiting.rows_of(request.tenant) + rows > request.tenant_rows:
        return Reason.TENANT_FULL
    tenant, weight = request.tenant, request.weight
    if is_full(tenant, weight, rows, waiting, settings, groups):
        return Reason.QUEUE_FULL
    most_s = settings.admission.max_queue_s * (groups.capacity or 1.0)
    if most_s < inf and waiting.rows and waiting.seconds > most_s:
        shares = waiting.shares
        if shares.seconds_of(tenant) > most_s * shares.part(tenant, weight):
            return Reason.QUEUE_FULL
    return None


def retry_after_s(work_s: float, capacity: float) -> float:
    """`capacity`: of the running replicas, 0: none runs."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, work_s / (capacity or 1.0)))
