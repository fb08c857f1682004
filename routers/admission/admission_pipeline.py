"""May this newcomer wait, and if so on time or late?

The order of the questions: is there room (`bounds`), has its flow more in the core than its limit,
can it still be started in time behind what waits, and if not, is there an idle moment to come that
could serve it late. Each controller answers for itself; this only asks them with the sums that the
queue keeps. O(1) in what waits. A refusal says when asking again may help.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.admission.bounds import refusal, retry_after_s
from routers.admission.controllers import Admission
from routers.admission.feasibility import Claim
from routers.admission.lateness import has_place, is_over
from routers.admission.rejection_cache import Refused, RejectionCache
from routers.flows import Flows
from routers.replicas import ReplicaSet
from routers.request_queue import RequestQueue
from routers.settings import DispatcherSettings
from routers.tickets import Ticket
from routers.types import FlowKey, Generation, Reason, Request

_NEVER = (Reason.TOO_LONG, Reason.TOO_LARGE, Reason.EXPIRED)


@dataclass(slots=True)
class Refusal:
    reason: Reason
    retry_after_s: float = 0.0


class AdmissionPipeline:
    def __init__(self, waiting: RequestQueue, flows: Flows, replicas: ReplicaSet) -> None:
        self._waiting = waiting
        self._flows = flows
        self._replicas = replicas
        self.echoes = RejectionCache()

    def bounded(self, request: Request, settings: DispatcherSettings, now: float) -> Refusal | None:
        """What counts alone say, before anything is made of the request."""
        reason = refusal(request, self._waiting, settings, self._replicas.running, now)
        if reason is None and request.generation is not None:
            reason = self._too_large(request, request.generation)
        if reason is None:
            return None
        return Refusal(reason, 0.0 if reason in _NEVER else self.queue_s())

    def _too_large(self, request: Request, generation: Generation) -> Reason | None:
        """Whether no running replica could hold all of it, were it alone there."""
        most = self._replicas.largest
        whole = request.lengths[0] + generation.max_tokens
        return Reason.TOO_LONG if whole > most > 0.0 else None

    def heard(
        self, flow: FlowKey, edge: int, left_s: float, expires_s: float, now: float
    ) -> Refusal | None:
        """What the like of it, one row of this bucket, was told a moment ago and would be again."""
        found = self.echoes.of(flow, edge, left_s, expires_s, self._waiting.gone, now)
        return None if found is None else Refusal(Reason.LATE, found.retry_after_s)

    def judge(
        self, ticket: Ticket, admission: Admission, settings: DispatcherSettings, now: float
    ) -> Refusal | None:
        """Makes the ticket late where it is; the refusal, if it may not wait at all."""
        flow = ticket.flow
        if admission.limit.sheds(flow.key, flow.live, now):
            return Refusal(Reason.SHED, self.queue_s())
        late_by_s = self._late_by_s(ticket, admission, now)
        if late_by_s <= 0.0:
            return None
        ticket.late, request = True, ticket.request
        late_s = self._waiting.late_s + ticket.cost_s
        left_s, running = request.expires - now, self._replicas.running
        if (
            is_over(request, settings, now)
            or not has_place(ticket.open, self._waiting, settings)
            or admission.late_room.refuses(late_s, left_s, running, now)
        ):
            found = Refusal(Reason.LATE, retry_after_s(late_by_s, 1))
            self._keep(ticket, late_by_s, found, now)
            return found
        return None

    def _keep(self, ticket: Ticket, late_by_s: float, found: Refusal, now: float) -> None:
        if ticket.open != 1:
            return
        request, after_s = ticket.request, found.retry_after_s
        left_s = min(request.deadline, request.expires) - now
        told = Refused(ticket.edge, left_s, request.expires - now, late_by_s, after_s)
        self.echoes.keep(ticket.flow.key, told, self._waiting.gone, now)

    def queue_s(self) -> float:
        """Seconds after which asking a full queue again may help."""
        return retry_after_s(self._waiting.seconds, self._replicas.running)

    def _late_by_s(self, ticket: Ticket, admission: Admission, now: float) -> float:
        """0 for one that is on time."""
        latest = ticket.latest_start
        if latest <= now:
            return max(1e-9, now - latest)
        running = self._replicas.running
        if not running:
            return 0.0  # nothing is known of when they come
        flow = ticket.flow
        before_s = self._before_s(ticket) if flow.rows or self._waits_for_room(ticket) else 0.0
        urgent_s = self._waiting.urgent_s(flow.priority)
        rivals = self._flows.weights[flow.priority]
        claim = Claim(flow.key, flow.weight, before_s, rivals, urgent_s, running)
        forecast = admission.feasibility.judge(claim, latest, now)
        if forecast.late_by_s <= 0.0:
            ticket.forecast = forecast  # what is late from the start teaches nothing
        return forecast.late_by_s

    def _waits_for_room(self, ticket: Ticket) -> bool:
        """Whether as much as it needs has to be given up first by what runs."""
        return ticket.plan is not None and not self._replicas.has_ready

    def _before_s(self, ticket: Ticket) -> float:
        """Gateways take turns with a flow, so that of what it has waiting elsewhere no more goes
        before than waits here; else who has the least here would always be called late."""
        flow, before_s = ticket.flow, ticket.cost_s
        lanes = self._waiting.on_time
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # else all it has are retried rows
            before_s = queue.before_s(ticket.edge, before_s)
        if flow.elsewhere_s > 0.0:
            before_s += min(before_s, flow.elsewhere_s)
        return before_s
