"""Who is served next, where and when, for one model at one gateway: events in, actions out.

`step(event, now)` is the only way in. It owns the queue and the leases and is their only writer; it
does no I/O, knows no clock and no payload. A batch is formed only at the moment a replica can take
it. Order of a step: the event, then what time has brought (late, refused, expired), then dispatch,
so that nothing is dispatched at or past its expiry. Batch and stream replicas differ in the share a
lease takes and in nothing else. Work an event: O(log n), plus what the event itself names.
Fairness between tenants, admission by feasibility and hedging are not here.
"""

from __future__ import annotations

from routers.batcher import form_batch
from routers.bounds import validate
from routers.cost import CostError, CostModel
from routers.endings import close_lease
from routers.holders import Holder
from routers.invariants import check
from routers.leases import LeaseBook
from routers.replicas import ReplicaSet
from routers.requests import Requests
from routers.settings import DispatcherSettings
from routers.snapshots import State, take_snapshot
from routers.types import (
    Action,
    Arrive,
    Cancel,
    Close,
    Closed,
    Dispatch,
    Event,
    Opened,
    Progress,
    Replicas,
    Snapshot,
    Tick,
    WakeAt,
)


class Dispatcher:
    """One model's scheduling core. Raises `BadSettings` and `BadRequestEvent`, nothing else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        validate(settings)
        self._cost = CostModel.of(settings)
        self._replicas = ReplicaSet()
        self._leases = LeaseBook()
        self._requests = Requests(settings, self._replicas, self._cost)
        self._state = State(self._requests, self._replicas, self._leases, self._cost)
        self._asked: float | None = None

    def step(self, event: Event, now: float) -> list[Action]:
        """Take in one event at `now`, which never goes back; returns what is to do, in order."""
        actions: list[Action] = []
        if self._asked is not None and (now >= self._asked or isinstance(event, Tick)):
            self._asked = None
        self._handle(event, now, actions)
        self._settle(now, actions)
        return actions

    def reconfigure(self, settings: DispatcherSettings, now: float) -> list[Action]:
        """Go on under new settings: what waits is bucketed anew and keeps its age; what is now too
        long leaves; new bounds hold for newcomers only. Reopens a closed model."""
        actions: list[Action] = []
        self._requests.reconfigure(settings, now, actions)
        self._settle(now, actions)
        return actions

    def snapshot(self, now: float) -> Snapshot:
        return take_snapshot(self._state, now)

    @property
    def waiting_rows(self) -> int:
        """Rows that wait, late ones included; O(1)."""
        return self._requests.waiting.rows

    def retry_after_s(self) -> float:
        """What a request that found the queue full would be told now."""
        return self._requests.retry_after_s()

    def cost_error(self) -> CostError:
        """How far predictions of service time have lately been off."""
        return self._cost.error()

    def check(self) -> None:
        """Raises AssertionError when an invariant is broken. Scans everything: for tests."""
        check(self._state)

    # -- events

    def _handle(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case Arrive():
                self._requests.arrive(event.request, now, actions)
            case Closed():
                close_lease(self._state, event, now, actions)
            case Opened():
                self._opened(event.lease_id, now)
            case Progress():
                self._progress(event, now)
            case Cancel():
                self._requests.cancel(event.request_id, actions)
            case Replicas():
                for replica_id in self._replicas.update(event.replicas, now):
                    self._cost.forget(replica_id)
            case Close():
                self._requests.close(actions)
            case Tick():
                pass

    def _opened(self, lease_id: int, now: float) -> None:
        lease = self._leases.open.get(lease_id)
        if lease is not None and not lease.opened:
            lease.opened, lease.starts_at = True, now
            lease.holder.reckon(now)
            self._replicas.refresh(lease.holder, now)

    def _progress(self, event: Progress, now: float) -> None:
        lease = self._leases.open.get(event.lease_id)
        if lease is not None and lease.holder.streams:
            self._leases.resize(lease, event.held)
            self._replicas.refresh(lease.holder, now)

    # -- what follows from every event

    def _settle(self, now: float, actions: list[Action]) -> None:
        self._requests.run_timers(now, actions)
        replicas, waiting = self._replicas, self._requests.waiting
        replicas.promote(now)
        while waiting.rows and replicas.has_ready:
            dispatch = self._dispatch_one(now, actions)
            if dispatch is None:
                break
            actions.append(dispatch)
        self._ask(actions)

    def _dispatch_one(self, now: float, actions: list[Action]) -> Dispatch | None:
        """One more lease, on the first replica in order that may take any of what waits."""
        replicas = self._replicas
        return replicas.ready.first(
            lambda holder: self._send(holder, now, actions),
            now,
            replicas.batch_s,
            spare=not replicas.healthy,
        )

    def _send(self, holder: Holder, now: float, actions: list[Action]) -> Dispatch | None:
        """A lease of what the batcher gives this replica, if anything."""
        goods = form_batch(self._requests, self._replicas.offer(holder), now, actions)
        if goods is None:
            return None
        replica_id = holder.replica.replica_id
        lease = self._leases.sign(holder, goods, goods.predicted_s, now)
        self._replicas.took(goods.predicted_s)
        self._replicas.refresh(holder, now)
        rows = tuple([(row.ticket.request.request_id, row.index) for row in goods.rows])
        return Dispatch(
            lease.lease_id, replica_id, rows, goods.edge, goods.predicted_s, goods.rank,
            goods.charges, self._requests.waiting_work(),
        )  # fmt: skip

    def _ask(self, actions: list[Action]) -> None:
        """Ask for a timer, unless one that is early enough is outstanding."""
        at = self._requests.timers.next_at()
        if self._requests.waiting.rows:
            due = self._replicas.next_at()
            if due is not None and (at is None or due < at):
                at = due
        if at is not None and (self._asked is None or at < self._asked):
            self._asked = at
            actions.append(WakeAt(at))
