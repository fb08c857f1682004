"""What would become of requests that are sent straight to the engines, in turn?

What a plain proxy in front of engines that batch by themselves does, to be compared with the
dispatcher in the same simulation: each request goes to the next replica at once and waits there,
first come, first served, whoever sent it and however long it is; with one replica, one queue. It
tries a lost request once more on the next one, and forgets what its caller has left.
"""

from __future__ import annotations

from routers.settings import DispatcherSettings
from routers.types import (
    Abort,
    Action,
    Arrive,
    Cancel,
    Closed,
    Dispatch,
    Event,
    Evict,
    LeaseEnd,
    Reason,
    Reject,
    Replicas,
    Request,
    Snapshot,
)


class RoundRobin:
    """See `routers.simulation.simulator.Core`."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self._replicas: tuple[str, ...] = ()
        self._turn = 0
        self._live: dict[int, Request] = {}
        self._homeless: list[int] = []
        self._leases: dict[int, tuple[str, int]] = {}
        self._tried: set[int] = set()
        self._last_lease = 0

    def step(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        match event:
            case Arrive(request):
                self._arrive(request, actions)
            case Cancel(request_id):
                self._cancel(request_id, actions)
            case Closed(lease_id, end):
                self._closed(lease_id, end, actions)
            case Replicas(replicas):
                self._replicas = tuple(each.replica_id for each in replicas)
                homeless, self._homeless = self._homeless, []
                for request_id in homeless:
                    self._send(request_id, actions)
        return actions

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            waiting_rows=len(self._homeless),
            late_rows=0,
            waiting_requests=len(self._homeless),
            oldest_wait_s=0.0,
            leases=len(self._leases),
            leased_rows=len(self._leases),
            drift=0,
            rows_by_bucket=(),
            backlog_s=0.0,
            replicas=(),
        )

    def _arrive(self, request: Request, actions: list[Action]) -> None:
        if max(request.lengths) > self._settings.bucket_edges[-1]:
            actions.append(Reject(request.request_id, Reason.TOO_LONG))
            return
        self._live[request.request_id] = request
        self._send(request.request_id, actions)

    def _send(self, request_id: int, actions: list[Action]) -> None:
        if request_id not in self._live:
            return
        if not self._replicas:
            self._homeless.append(request_id)
            return
        self._turn += 1
        replica_id = self._replicas[self._turn % len(self._replicas)]
        self._last_lease += 1
        self._leases[self._last_lease] = replica_id, request_id
        edge, rows = self._settings.bucket_edges[-1], ((request_id, 0),)
        actions.append(Dispatch(self._last_lease, replica_id, rows, edge, 0.0))

    def _cancel(self, request_id: int, actions: list[Action]) -> None:
        self._live.pop(request_id, None)
        for lease_id, (replica_id, of) in self._leases.items():
            if of == request_id:
                actions.append(Abort(lease_id, replica_id))

    def _closed(self, lease_id: int, end: LeaseEnd, actions: list[Action]) -> None:
        replica_id, request_id = self._leases.pop(lease_id)
        if end is LeaseEnd.LOST:
            self._replicas = tuple(each for each in self._replicas if each != replica_id)
        if request_id not in self._live:
            return
        if end is LeaseEnd.LOST and request_id not in self._tried:
            self._tried.add(request_id)
            self._send(request_id, actions)
            return
        del self._live[request_id]
        if end is LeaseEnd.LOST:
            actions.append(Evict(request_id, Reason.LOST))
