"""What would one queue have done, first in, first out, batches padded to their longest?

The discipline that most servers come with, to be compared with the dispatcher in the same
simulation: it sends up to `max_size` rows and `max_tokens` in order of arrival to the replica with
the fewest batches, as soon as one has a slot. Fair to nobody. It bounds its queue, gives up what
has expired when its turn comes, and tries lost rows again once, in front; nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from routers.settings import DispatcherSettings
from routers.types import (
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

RETRY_AFTER_S = 1.0  # what a refused caller is told, whatever waits


@dataclass(slots=True, eq=False)
class _Live:
    """`left`: rows not answered yet."""

    request: Request
    left: int
    retried: bool = False


_Row = tuple[_Live, int]


class Fifo:
    """See `routers.simulation.simulator.Core`."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self._queue: deque[_Row] = deque()
        self._live: dict[int, _Live] = {}
        self._leases: dict[int, tuple[str, list[_Row]]] = {}
        self._free: dict[str, float] = {}  # slots by replica
        self._last_lease = 0

    def step(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        match event:
            case Arrive(request):
                self._arrive(request, actions)
            case Cancel(request_id):
                self._live.pop(request_id, None)
            case Closed(lease_id, end):
                self._closed(lease_id, end, actions)
            case Replicas(replicas):
                taken = [replica_id for replica_id, _ in self._leases.values()]
                self._free = {
                    each.replica_id: each.capacity - taken.count(each.replica_id)
                    for each in replicas
                }
        self._dispatch(now, actions)
        return actions

    def snapshot(self, now: float) -> Snapshot:
        waiting = [(live, row) for live, row in self._queue if self._is_live(live)]
        return Snapshot(
            waiting_rows=len(waiting),
            late_rows=0,
            waiting_requests=len({live.request.request_id for live, _ in waiting}),
            oldest_wait_s=now - waiting[0][0].request.arrival if waiting else 0.0,
            leases=len(self._leases),
            leased_rows=sum(len(rows) for _, rows in self._leases.values()),
            drift=0,
            rows_by_bucket=(),
            backlog_s=0.0,
            replicas=(),
        )

    def _arrive(self, request: Request, actions: list[Action]) -> None:
        rows, settings = len(request.lengths), self._settings
        if max(request.lengths) > settings.bucket_edges[-1]:
            actions.append(Reject(request.request_id, Reason.TOO_LONG))
        elif len(self._queue) + rows > settings.max_queue_rows:
            actions.append(Reject(request.request_id, Reason.QUEUE_FULL, RETRY_AFTER_S))
        else:
            live = self._live[request.request_id] = _Live(request, rows)
            self._queue.extend((live, row) for row in range(rows))

    def _closed(self, lease_id: int, end: LeaseEnd, actions: list[Action]) -> None:
        replica_id, rows = self._leases.pop(lease_id)
        if end is LeaseEnd.LOST:
            self._free.pop(replica_id, None)  # until it is listed again
        elif replica_id in self._free:
            self._free[replica_id] += 1.0
        for live, row in reversed(rows):
            if not self._is_live(live):
                continue
            if end is LeaseEnd.DONE:
                live.left -= 1
                if not live.left:
                    del self._live[live.request.request_id]
            elif end is LeaseEnd.LOST and live.retried:
                self._evict(live, Reason.LOST, actions)
            else:
                self._queue.appendleft((live, row))
        for live, _ in rows:
            live.retried = live.retried or end is LeaseEnd.LOST

    def _dispatch(self, now: float, actions: list[Action]) -> None:
        while self._queue:
            replica_id = max(self._free, key=self._free.__getitem__, default="")
            if self._free.get(replica_id, 0.0) < 1.0:
                return
            rows = self._next_batch(now, actions)
            if not rows:
                return
            self._last_lease += 1
            self._leases[self._last_lease] = replica_id, rows
            self._free[replica_id] -= 1.0
            of = tuple([(live.request.request_id, row) for live, row in rows])
            edge = self._settings.bucket_edges[-1]
            actions.append(Dispatch(self._last_lease, replica_id, of, edge, 0.0))

    def _next_batch(self, now: float, actions: list[Action]) -> list[_Row]:
        settings, queue = self._settings, self._queue
        batch: list[_Row] = []
        longest = total = 0
        while queue and len(batch) < settings.max_size:
            live, row = queue[0]
            if not self._is_live(live) or live.request.expires <= now:
                queue.popleft()
                if self._is_live(live):
                    self._evict(live, Reason.EXPIRED, actions)
                continue
            length = live.request.lengths[row]
            longest, total = max(longest, length), total + length
            tokens = (len(batch) + 1) * longest if settings.pads else total
            if batch and tokens > settings.max_tokens:
                break
            batch.append(queue.popleft())
        return batch

    def _evict(self, live: _Live, reason: Reason, actions: list[Action]) -> None:
        del self._live[live.request.request_id]
        actions.append(Evict(live.request.request_id, reason, RETRY_AFTER_S))

    def _is_live(self, live: _Live) -> bool:
        return live.request.request_id in self._live
