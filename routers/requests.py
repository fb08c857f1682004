"""Which requests are live, and how does each leave: answered, rejected, evicted or cancelled?

It owns tickets, queue and timers, and is the only place where a request comes in or goes out, so
that each goes out once and whole. A request is late once it can no longer be expected to meet its
deadline: it goes behind all that still can, until it expires (`late="demote"`) or until its
deadline (`late="refuse"`). Expiry takes a request wherever its rows are. Rows that come back from a
replica keep their age; the bounds are for newcomers. Who is served is the dispatcher's question.
"""

from __future__ import annotations

from routers.bounds import backlog_s, refusal, retry_after_s, validate
from routers.buckets import Waiting
from routers.cost import CostModel
from routers.deadlines import Timers, Turnaround
from routers.errors import BadRequestEvent
from routers.leases import abandon
from routers.replicas import ReplicaSet
from routers.settings import DispatcherSettings
from routers.tickets import Row, Ticket
from routers.types import Action, Evict, Reason, Reject, Request


class Requests:
    """`replicas` and `cost` are read for `retry_after_s` only."""

    def __init__(self, settings: DispatcherSettings, replicas: ReplicaSet, cost: CostModel) -> None:
        self.live: dict[int, Ticket] = {}
        self.timers = Timers()
        self.turnaround = Turnaround()
        self._replicas = replicas
        self._cost = cost
        self._rows_seen = 0
        self._adopt(settings)

    # -- coming in

    def arrive(self, request: Request, now: float, actions: list[Action]) -> None:
        if request.request_id in self.live or not request.lengths:
            raise BadRequestEvent(f"request {request.request_id} is live already or has no rows")
        if self.is_closed:
            reason: Reason | None = Reason.CLOSED
        else:
            reason = refusal(request, self.waiting, self.settings, now)
        if reason is None:
            ticket = self._ticket(request, now)
            reason = self._enqueue(ticket, now)
        if reason is not None:
            actions.append(Reject(request.request_id, reason, self._retry_after_s(reason)))

    def _ticket(self, request: Request, now: float) -> Ticket:
        lengths = request.lengths
        longest = lengths[0] if len(lengths) == 1 else max(lengths)
        edge = self.waiting.edges[self.waiting.bucket_of(longest)]
        due = min(request.deadline, request.expires)
        latest = self.turnaround.latest_start(edge, now, due)
        order = self._rows_seen
        self._rows_seen += len(lengths)
        ticket = Ticket(request, now, latest, len(lengths))
        ticket.rows = tuple([Row(ticket, i, length, order + i) for i, length in enumerate(lengths)])
        if request.avoid:
            for row in ticket.rows:
                row.retried, row.avoid = True, request.avoid
        return ticket

    def _enqueue(self, ticket: Ticket, now: float) -> Reason | None:
        """Queue it on time or late; the reason why not, if it is late and may not wait so."""
        request = ticket.request
        if ticket.latest_start <= now:
            ticket.late = True
            if self._may_not_wait(request, now) or self._late_is_full(len(ticket.rows)):
                return Reason.LATE
        self.live[request.request_id] = ticket
        for row in ticket.rows:
            self.waiting.add(row)
        self.timers.push(self._next_moment(ticket, now), ticket)
        return None

    # -- coming back from a replica

    def answered(self, members: list[Row]) -> None:
        for row in members:
            ticket = row.ticket
            ticket.open -= 1
            if not ticket.open:
                del self.live[ticket.request.request_id]
        self.timers.trim(len(self.live))

    def put_back(self, members: list[Row], now: float, actions: list[Action]) -> None:
        """Rows that were not started take their old places, unless they may not wait any more."""
        for row in members:
            ticket = row.ticket
            if not ticket.open:
                continue  # evicted because of a row before this one
            if self.is_closed:
                self._evict(ticket, Reason.CLOSED, actions)
            elif row.length > self.settings.bucket_edges[-1]:
                self._evict(ticket, Reason.TOO_LONG, actions)
            elif self._may_not_wait(ticket.request, now):
                self._evict(ticket, Reason.LATE, actions)
            else:
                self.waiting.add(row)

    def retry(self, members: list[Row], lost_by: str, now: float, actions: list[Action]) -> None:
        """Rows of a lost lease go back once, each to travel alone; else their request fails."""
        for row in members:
            request = row.ticket.request
            if not row.ticket.open:
                continue
            if row.retried or not request.retryable or request.expires <= now:
                self._evict(row.ticket, Reason.LOST, actions)
            else:
                row.retried, row.avoid = True, lost_by
                self.put_back([row], now, actions)

    # -- going out

    def cancel(self, request_id: int, actions: list[Action]) -> None:
        ticket = self.live.get(request_id)
        if ticket is not None:
            self._forget(ticket, actions)

    def close(self, actions: list[Action]) -> None:
        """Evict all that waits and refuse what comes; what is leased may finish."""
        self.is_closed = True
        for ticket in [ticket for ticket in self.live.values() if ticket.queued]:
            self._evict(ticket, Reason.CLOSED, actions)

    def run_timers(self, now: float, actions: list[Action]) -> None:
        while (ticket := self.timers.due(now)) is not None:
            request = ticket.request
            if request.expires <= now:
                self._evict(ticket, Reason.EXPIRED, actions)
            elif ticket.queued and self._is_refused(ticket, now):
                self._evict(ticket, Reason.LATE, actions)
            else:
                self._demote(ticket)
                self.timers.push(self._next_moment(ticket, now), ticket)

    def _evict(self, ticket: Ticket, reason: Reason, actions: list[Action]) -> None:
        retry_after = self._retry_after_s(reason)
        actions.append(Evict(ticket.request.request_id, reason, retry_after))
        self._forget(ticket, actions)

    def _forget(self, ticket: Ticket, actions: list[Action]) -> None:
        """The request leaves whole: queued rows at once, leased ones are ignored from now on."""
        del self.live[ticket.request.request_id]
        ticket.open = 0
        for row in ticket.rows:
            if row.queue is not None:
                self.waiting.remove(row)
            else:
                abandon(row, actions)
        self.timers.trim(len(self.live))

    # -- being late

    def _demote(self, ticket: Ticket) -> None:
        if ticket.late:
            return
        queued = [row for row in ticket.rows if row.queue is not None]
        for row in queued:
            self.waiting.remove(row)
        ticket.late = True
        for row in queued:
            self.waiting.add(row)

    def _next_moment(self, ticket: Ticket, now: float) -> float:
        if not ticket.late:
            return ticket.latest_start
        request = ticket.request
        return request.deadline if self._refuses and now < request.deadline else request.expires

    def _may_not_wait(self, request: Request, now: float) -> bool:
        return self._refuses and request.deadline <= now

    def _late_is_full(self, newcomers: int) -> bool:
        return self.waiting.late.rows + newcomers > self.settings.max_late_rows

    def _is_refused(self, ticket: Ticket, now: float) -> bool:
        """Whether a late request may not stay, or one that becomes late finds no place there."""
        newcomers = 0 if ticket.late else ticket.queued
        return self._may_not_wait(ticket.request, now) or (
            newcomers > 0 and self._late_is_full(newcomers)
        )

    # -- settings

    def reconfigure(self, settings: DispatcherSettings, now: float, actions: list[Action]) -> None:
        """Bucket anew what waits, evict rows that are now too long; reopens what was closed."""
        rows = [row for queue in self.waiting.queues() for row in queue.live()]
        self._adopt(settings)
        for row in rows:
            row.queue, row.ticket.queued = None, 0
        longest = settings.bucket_edges[-1]
        too_long = dict.fromkeys(row.ticket for row in rows if row.length > longest)
        for row in rows:
            if row.ticket not in too_long:
                self.waiting.add(row)
        for ticket in too_long:
            self._evict(ticket, Reason.TOO_LONG, actions)
        self.timers.heap.clear()
        for ticket in self.live.values():
            self.timers.push(self._next_moment(ticket, now), ticket)

    def _adopt(self, settings: DispatcherSettings) -> None:
        validate(settings)
        self.settings = settings
        self.is_closed = False
        self.waiting = Waiting(settings)
        self.turnaround.keep(settings.bucket_edges, settings.initial_cost_s)
        self._refuses = settings.late == "refuse"

    def _retry_after_s(self, reason: Reason) -> float:
        if reason not in (Reason.QUEUE_FULL, Reason.LATE):
            return 0.0
        return self.retry_after_s()

    def retry_after_s(self) -> float:
        """Seconds after which asking a full queue again may help."""
        work_s = backlog_s(self.waiting, self._cost, pads=self.settings.pads)
        return retry_after_s(work_s, self._replicas.running)
