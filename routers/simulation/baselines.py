"""What the dispatcher is compared with in the same simulation: the disciplines of plain servers.

`Fifo` is one queue, first in, first out, batches padded to their longest; `RoundRobin` is a proxy
that sends each request straight to the next engine, which batches by itself; `AdapterHash` sends
it to the one that its adapter's name belongs to. All are a `simulator.Core`, fair to nobody, and
forget what its caller has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from routers.api.actions import Abort, Action, Dispatch, Evict, Reject
from routers.api.events import Arrive, Cancel, Closed, Event, Progress, Replicas
from routers.api.requests import LeaseEnd, Reason, Replica, Request
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import Snapshot

RETRY_AFTER_S = 1.0  # what a refused caller is told, whatever waits

_Leased = TypeVar("_Leased")


class _Baseline(Generic[_Leased]):
    """Takes events apart and keeps leases, by id: the replica and what was sent there."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self._leases: dict[int, tuple[str, _Leased]] = {}
        self._last_lease = 0

    def step(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        match event:
            case Arrive(request):
                if max(request.lengths) > self._settings.bucket_edges[-1]:
                    actions.append(Reject(request.request_id, Reason.TOO_LONG))
                else:
                    self._arrive(request, actions)
            case Cancel(request_id):
                self._cancel(request_id, actions)
            case Progress(lease_id):
                self._moved(lease_id)
            case Closed():
                self._closed(event, actions)
            case Replicas(replicas):
                self._listed(replicas, actions)
        self._settle(now, actions)
        return actions

    def _arrive(self, request: Request, actions: list[Action]) -> None:
        raise NotImplementedError

    def _cancel(self, request_id: int, actions: list[Action]) -> None:
        raise NotImplementedError

    def _moved(self, lease_id: int) -> None:
        """Something of its answer has come."""

    def _closed(self, event: Closed, actions: list[Action]) -> None:
        raise NotImplementedError

    def _listed(self, replicas: tuple[Replica, ...], actions: list[Action]) -> None:
        raise NotImplementedError

    def _settle(self, now: float, actions: list[Action]) -> None:
        """What follows from any event."""

    def _send(
        self, replica_id: str, leased: _Leased, rows: Sequence[tuple[int, int]], to: list[Action]
    ) -> None:
        self._last_lease += 1
        self._leases[self._last_lease] = replica_id, leased
        edge = self._settings.bucket_edges[-1]
        to.append(Dispatch(self._last_lease, replica_id, tuple(rows), edge, 0.0))

    def _snapshot(self, waiting_rows: int, requests: int, wait_s: float, leased: int) -> Snapshot:
        return Snapshot(
            waiting_rows=waiting_rows,
            late_rows=0,
            waiting_requests=requests,
            oldest_wait_s=wait_s,
            leases=len(self._leases),
            leased_rows=leased,
            drift=0,
            rows_by_bucket=(),
            backlog_s=0.0,
            replicas=(),
        )


@dataclass(slots=True, eq=False)
class _Live:
    """`left`: rows not answered yet."""

    request: Request
    left: int
    retried: bool = False


_Row = tuple[_Live, int]


class Fifo(_Baseline[list[_Row]]):
    """One queue, first in, first out, batches padded to their longest.

    It sends up to `max_size` rows and `max_tokens` in order of arrival to the replica with the
    fewest batches, as soon as one has a slot. It bounds its queue, gives up what has expired when
    its turn comes, and tries rows that were lost or failed again once, in front; nothing else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self._queue: deque[_Row] = deque()
        self._live: dict[int, _Live] = {}
        self._free: dict[str, float] = {}  # slots by replica

    def snapshot(self, now: float) -> Snapshot:
        waiting = [(live, row) for live, row in self._queue if self._is_live(live)]
        requests = len({live.request.request_id for live, _ in waiting})
        wait_s = now - waiting[0][0].request.arrival if waiting else 0.0
        leased = sum(len(rows) for _, rows in self._leases.values())
        return self._snapshot(len(waiting), requests, wait_s, leased)

    def _arrive(self, request: Request, actions: list[Action]) -> None:
        rows = len(request.lengths)
        if len(self._queue) + rows > self._settings.max_queue_rows:
            actions.append(Reject(request.request_id, Reason.QUEUE_FULL, RETRY_AFTER_S))
        else:
            live = self._live[request.request_id] = _Live(request, rows)
            self._queue.extend((live, row) for row in range(rows))

    def _cancel(self, request_id: int, actions: list[Action]) -> None:
        self._live.pop(request_id, None)

    def _listed(self, replicas: tuple[Replica, ...], actions: list[Action]) -> None:
        taken = [replica_id for replica_id, _ in self._leases.values()]
        self._free = {
            each.replica_id: each.capacity - taken.count(each.replica_id) for each in replicas
        }

    def _closed(self, event: Closed, actions: list[Action]) -> None:
        replica_id, rows = self._leases.pop(event.lease_id)
        end = event.end
        if end is LeaseEnd.LOST:
            self._free.pop(replica_id, None)  # until it is listed again
        elif replica_id in self._free:
            self._free[replica_id] += 1.0
        for at, (live, row) in reversed([*enumerate(rows)]):
            if not self._is_live(live):
                continue
            failed = end is LeaseEnd.LOST or at in event.failed
            if end is LeaseEnd.DONE and not failed:
                live.left -= 1
                if not live.left:
                    del self._live[live.request.request_id]
            elif failed and live.retried:
                reason = Reason.LOST if end is LeaseEnd.LOST else Reason.FAILED
                self._evict(live, reason, actions)
            else:
                self._queue.appendleft((live, row))
        for at, (live, _) in enumerate(rows):
            live.retried = live.retried or end is LeaseEnd.LOST or at in event.failed

    def _settle(self, now: float, actions: list[Action]) -> None:
        while self._queue:
            replica_id = max(self._free, key=self._free.__getitem__, default="")
            if self._free.get(replica_id, 0.0) < 1.0:
                return
            rows = self._next_batch(now, actions)
            if not rows:
                return
            self._free[replica_id] -= 1.0
            ids = [(live.request.request_id, row) for live, row in rows]
            self._send(replica_id, rows, ids, actions)

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


class RoundRobin(_Baseline[int]):
    """Each request goes to the next replica at once and waits there.

    First come, first served, whoever sent it and however long it is; with one replica, one queue.
    It tries a lost request once more on the next one, unless its caller has had a part of it."""

    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self._replicas: tuple[str, ...] = ()
        self._turn = 0
        self._live: dict[int, Request] = {}
        self._unsent: list[int] = []
        self._tried: set[int] = set()
        self._shown: set[int] = set()

    def snapshot(self, now: float) -> Snapshot:
        unsent = len(self._unsent)
        return self._snapshot(unsent, unsent, 0.0, len(self._leases))

    def _arrive(self, request: Request, actions: list[Action]) -> None:
        self._live[request.request_id] = request
        self._send_on(request.request_id, actions)

    def _listed(self, replicas: tuple[Replica, ...], actions: list[Action]) -> None:
        self._replicas = tuple(each.replica_id for each in replicas)
        unsent, self._unsent = self._unsent, []
        for request_id in unsent:
            self._send_on(request_id, actions)

    def _send_on(self, request_id: int, actions: list[Action]) -> None:
        if request_id not in self._live:
            return
        if not self._replicas:
            self._unsent.append(request_id)
            return
        replica_id = self.next_replica(self._replicas, self._live[request_id])
        self._send(replica_id, request_id, [(request_id, 0)], actions)

    def next_replica(self, replicas: tuple[str, ...], request: Request) -> str:
        """The one that gets the request; there is at least one."""
        self._turn += 1
        return replicas[self._turn % len(replicas)]

    def _cancel(self, request_id: int, actions: list[Action]) -> None:
        self._live.pop(request_id, None)
        for lease_id, (replica_id, of) in self._leases.items():
            if of == request_id:
                actions.append(Abort(lease_id, replica_id))

    def _moved(self, lease_id: int) -> None:
        request = self._live.get(self._leases[lease_id][1])
        if request is not None and request.streams:
            self._shown.add(request.request_id)

    def _closed(self, event: Closed, actions: list[Action]) -> None:
        replica_id, request_id = self._leases.pop(event.lease_id)
        lost = event.end is LeaseEnd.LOST
        if lost:
            self._replicas = tuple(each for each in self._replicas if each != replica_id)
        if request_id not in self._live:
            return
        failed = lost or bool(event.failed)
        has_part = request_id in self._shown
        if failed and not has_part and request_id not in self._tried:
            self._tried.add(request_id)
            self._send_on(request_id, actions)
            return
        del self._live[request_id]
        if failed:
            reason = Reason.INTERRUPTED if has_part else Reason.LOST
            actions.append(Evict(request_id, reason if lost else Reason.FAILED))


class AdapterHash(RoundRobin):
    """As `RoundRobin`, but the requests for an adapter all go to one replica, whatever it has to
    do. A replica that comes or goes moves only the adapters that are its own (rendezvous)."""

    def next_replica(self, replicas: tuple[str, ...], request: Request) -> str:
        adapter = "" if request.generation is None else request.generation.adapter
        if not adapter:
            return super().next_replica(replicas, request)
        return max(replicas, key=lambda each: blake2b(f"{adapter} {each}".encode()).digest())
