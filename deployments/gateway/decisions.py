"""Why did a request wait, go where it went, or fail? One log line per decision, off by default.

`gateway.log.decisions` turns it on; `headrace why REQUEST_ID` prints the lines of one request. A
line has the request id, the model, the event, the decision that was taken, and the reason. The
dispatcher's decisions are read from the events that it is given and the actions that it returns,
so the scheduling core knows nothing of the log. At most `MAX_LINES_PER_S` lines are written per
second; the next line says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from deployments.process.logs import DECISIONS, PerSecond
from routers.api.actions import Abort, Action, Dispatch, Evict, Reject
from routers.api.events import Arrive, Cancel, Closed, Event
from routers.api.requests import LeaseEnd, Request
from routers.api.snapshot import Snapshot

MAX_LINES_PER_S = 2000
_OF_LEASES = {
    LeaseEnd.DONE: ("answered", "the replica answered"),
    LeaseEnd.BUSY: ("returned", "the replica had no room; the rows take their old places"),
    LeaseEnd.LOST: ("lost", "the replica died, hung or cannot be reached; rows that may run twice "
                    "are tried once more, alone"),
    LeaseEnd.ABORTED: ("aborted", "as the gateway had asked"),
}  # fmt: skip
logger = logging.getLogger(DECISIONS)


class DecisionLog:
    """Writes the lines of one gateway. For the event loop's thread alone."""

    def __init__(self, gateway: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway, self._clock = gateway, clock
        self._bound = PerSecond(MAX_LINES_PER_S)
        self._suppressed = 0

    def note(
        self, request_id: str, model: str, event: str, decision: str, reason: str = ""
    ) -> None:
        """One decision about a request, whose id its caller knows as `x-request-id`."""
        if not self._bound.take(self._clock()):
            self._suppressed += 1
            return
        fields = {
            "gateway": self._gateway, "model": model, "request_id": request_id, "event": event,
            "decision": decision, "reason": reason, "suppressed": self._suppressed or None,
        }  # fmt: skip
        self._suppressed = 0
        logger.info("decision", extra=fields)


class QueueDecisions:
    """What one model's dispatcher decides about the requests that are named here. `snapshot`: the
    dispatcher's, asked for each request that arrives."""

    def __init__(self, log: DecisionLog, model: str, snapshot: Callable[[], Snapshot]) -> None:
        self._log, self._model, self._snapshot = log, model, snapshot
        # (id that its caller knows, arrival), by the dispatcher's id.
        self._named: dict[int, tuple[str, float]] = {}
        self._leases: dict[int, tuple[str, list[str]]] = {}  # (replica, requests), by open lease

    def name(self, request: Request, request_id: bytes) -> None:
        """A request is made, and not yet given to the dispatcher. b"": nobody asks for it."""
        if request_id:
            self._named[request.request_id] = request_id.decode("latin-1"), request.arrival

    def forget(self, number: int) -> None:
        """The request has ended."""
        self._named.pop(number, None)

    def event(self, event: Event, now: float) -> None:
        """The dispatcher is about to be given this event."""
        if isinstance(event, Arrive):
            self._arrived(event.request, now)
        elif isinstance(event, Cancel):
            self._say(event.request_id, "cancel", "ended", "its caller left, or it was ended here")
        elif isinstance(event, Closed) and event.lease_id in self._leases:
            replica_id, members = self._leases.pop(event.lease_id)
            decision, reason = _OF_LEASES[event.end]
            if event.end is LeaseEnd.DONE:
                reason += f" after {event.report.service_s * 1e3:.1f} ms of service"
            for request_id in members:
                self._log.note(
                    request_id, self._model, "close", f"{decision} by {replica_id}", reason
                )

    def action(self, action: Action, now: float) -> None:
        """The dispatcher has returned this action, which is about to be performed."""
        if isinstance(action, Dispatch):
            self._dispatched(action, now)
        elif isinstance(action, Reject | Evict) and action.request_id in self._named:
            wait = f"; ask again in {action.retry_after_s:.1f} s" if action.retry_after_s else ""
            event = "reject" if isinstance(action, Reject) else "evict"
            self._say(
                action.request_id, event, action.reason.value, f"{_load(self._snapshot())}{wait}"
            )
        elif isinstance(action, Abort) and action.lease_id in self._leases:
            replica_id, members = self._leases[action.lease_id]
            for request_id in members:
                self._log.note(
                    request_id, self._model, "abort", f"taken back from {replica_id}",
                    "nobody waits for it, its copy answered first, or it yields to urgent work",
                )  # fmt: skip

    def _arrived(self, request: Request, now: float) -> None:
        if request.request_id not in self._named:
            return
        reason = (
            f"rows: {len(request.lengths)}, the longest {max(request.lengths)}; "
            f"{(request.deadline - now) * 1e3:.0f} ms until its SLO, "
            f"{(request.expires - now) * 1e3:.0f} ms until its timeout; tenant {request.tenant}, "
            f"priority {request.priority}; {_load(self._snapshot())}"
        )
        isolated = ", alone: such an input was on a lost replica" if request.suspect else ""
        self._say(request.request_id, "arrive", f"offered to the queue{isolated}", reason)

    def _dispatched(self, lease: Dispatch, now: float) -> None:
        numbers = list(dict.fromkeys(number for number, _ in lease.rows))
        known = [number for number in numbers if number in self._named]
        if not known:
            return
        self._leases[lease.lease_id] = lease.replica_id, [self._named[n][0] for n in known]
        size = (
            f"batch of {len(lease.rows)} rows from {len(numbers)} requests, bucket {lease.bucket}"
        )
        why = f"{size}, predicted to take {lease.predicted_s * 1e3:.1f} ms"
        if lease.copy_of:
            why += "; a copy (hedge): the first one has not answered in its usual time"
        if lease.alone:
            why += "; alone, since such an input was on a replica that was lost"
        for number in known:
            waited_ms = (now - self._named[number][1]) * 1e3
            event = "hedge" if lease.copy_of else "dispatch"
            said = f"after {waited_ms:.1f} ms in the queue: {why}"
            self._say(number, event, f"sent to {lease.replica_id}", said)

    def _say(self, number: int, event: str, decision: str, reason: str) -> None:
        named = self._named.get(number)
        if named is not None:
            self._log.note(named[0], self._model, event, decision, reason)


def _load(found: Snapshot) -> str:
    """What makes a request wait at this moment."""
    replicas = [each for each in found.replicas if not each.draining]
    room = sum(each.held + 1 <= each.capacity and not each.unhealthy for each in replicas)
    if not replicas:
        who = "no replica can be reached"
    elif room:
        who = f"{room} of {len(replicas)} replicas have room"
    else:
        unhealthy = sum(each.unhealthy for each in replicas)
        who = f"all {len(replicas)} replicas are full or unhealthy ({unhealthy} unhealthy)"
    waiting = (
        f"{found.waiting_rows} rows wait, {found.backlog_s * 1e3:.0f} ms of work on one replica"
    )
    shedding = [each.name for each in found.controllers if each.mode == "enforce" and each.shed]
    return f"{waiting}; {who}" + (f"; {', '.join(shedding)} has shed before" if shedding else "")
