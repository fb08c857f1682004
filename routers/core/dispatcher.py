"""Who is served next, where and when, for one model at one gateway: events in, actions out.

`step(event, now)` is the only way in; all else is a question that changes nothing. It owns the
queue and the leases and is their only writer; it does no I/O, knows no clock and no payload. A
batch is formed only at the moment a replica can take it. Order of a step: the event, then what time
has brought (late, refused, expired), then dispatch, so that nothing is dispatched at or past its
expiry; copies come last. Batch and stream replicas differ in the share a lease takes and in nothing
else. Work an event: O(log n), plus what the event itself names. It decides nothing itself:
`requests` says what waits, `assignment` what goes where, `lease_completion` what becomes of it,
`copies` what is copied.
"""

from __future__ import annotations

from math import inf

from routers.api.actions import Action
from routers.api.events import (
    Arrive,
    Cancel,
    CapacityExpected,
    Close,
    Closed,
    Event,
    Heard,
    Note,
    Opened,
    PeersServed,
    Progress,
    Reconfigure,
    RefusedUnread,
    Replicas,
    ServedElsewhere,
    Tick,
)
from routers.api.requests import LeaseEnd
from routers.api.settings import DispatcherSettings, validate
from routers.api.snapshot import Snapshot
from routers.core.assignment import Assignment
from routers.core.core_state import State
from routers.core.invariants import check
from routers.core.lease_completion import (
    believable,
    close_lease,
    forget_replica,
    learn_of_peers,
)
from routers.core.replica_watch import Ejection, SilenceWatch
from routers.core.request_table import RequestTable
from routers.core.snapshots import take_snapshot
from routers.core.speculative_copies import SpeculativeCopies
from routers.core.stream_copies import StreamCopies
from routers.core.stream_leases import moved
from routers.core.suspension import heard, suspend
from routers.core.wakeups import WakeupPlanner
from routers.estimates.averages import Utilisation
from routers.estimates.cost.model import Coefficients, CostError
from routers.estimates.groups import ReplicaGroups
from routers.policies.admission.queue_bound import is_full
from routers.policies.hedging import Hedging
from routers.policies.outliers import Outliers
from routers.policies.registry import PLACEMENTS, check_names
from routers.policies.silence import Silence
from routers.state.affinity import Affinity
from routers.state.budget import Budget
from routers.state.leases import DispatchCounts, LeaseTable, start_first
from routers.state.replicas import ReplicaSet

_NOTES = (CapacityExpected, RefusedUnread, ServedElsewhere, PeersServed)


class Dispatcher:
    """One model's scheduling core. Raises `BadSettings` and `BadRequestEvent`, nothing else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        validate(settings)
        check_names(settings)
        self._groups = ReplicaGroups(settings)
        self._replicas = ReplicaSet(self._groups, PLACEMENTS[settings.policies.placement]())
        self._leases = LeaseTable()
        self._requests = RequestTable(settings, self._replicas)
        self._copies = SpeculativeCopies(
            settings,
            self._replicas,
            self._leases,
            Hedging(settings.hedge),
            Ejection(Outliers(settings.outliers), self._replicas),
            Budget(settings.hedge.budget),
            Utilisation(),
            DispatchCounts(),
        )
        silence = Silence(settings.silence, self._copies.hedging, self._replicas)
        self._silence = SilenceWatch(silence)
        self._stream_copies = StreamCopies(self._requests, self._copies, self._silence)
        self._assignment = Assignment(
            self._requests, self._copies, self._stream_copies, Affinity(), self._silence
        )
        self._state = State(
            self._requests,
            self._replicas,
            self._leases,
            self._copies,
            self._silence,
            self._stream_copies,
        )
        self._adopt(settings)
        self._wakeups = WakeupPlanner()

    def step(self, event: Event, now: float) -> list[Action]:
        """Take in one event at `now`, which never goes back; returns what is to do, in order."""
        actions: list[Action] = []
        if self.take(event, now, actions):
            self._settle(now, actions)
        return actions

    def take(self, event: Event, now: float, actions: list[Action]) -> bool:
        """The first half of `step`: takes in the event and decides nothing that follows from it.
        True: `decide` is to be called, soon. So of many events that come together all are known
        before the first batch is formed."""
        if isinstance(event, _NOTES):
            self._note(event, now)
            return False
        wakeups = self._wakeups
        if now >= wakeups.wakes_at or isinstance(event, Tick):
            wakeups.wakes_at = inf
        if now < wakeups.quiet_until and isinstance(event, Arrive):
            return self._join(event, now, actions)
        self._advance(now)
        if isinstance(event, Progress | Heard):
            return self._has_moved(event, now, actions) or not now < wakeups.wakes_at < inf
        self._handle(event, now, actions)
        return True

    def decide(self, now: float) -> list[Action]:
        """What follows from all that was taken in. Unlike a `Tick`, it uses up no timer that was
        asked for and is not due."""
        actions: list[Action] = []
        if now >= self._wakeups.wakes_at:
            self._wakeups.wakes_at = inf
        self._advance(now)
        self._settle(now, actions)
        return actions

    def _adopt(self, settings: DispatcherSettings) -> None:
        self._copies.adopt(settings)
        self._silence.policy.settings = settings.silence

    def snapshot(self, now: float) -> Snapshot:
        return take_snapshot(self._state, now)

    @property
    def waiting_rows(self) -> int:
        """Rows that wait, late ones included; O(1)."""
        return self._requests.waiting.rows

    def waiting_rows_of(self, tenant: str) -> int:
        """Of those, a tenant's; O(1)."""
        return self._requests.waiting.rows_of(tenant)

    def is_full(self, tenant: str, weight: float) -> bool:
        """Whether not even one row of the tenant would find a place; O(1)."""
        requests = self._requests
        return is_full(tenant, weight, 1, requests.waiting, requests.settings, self._groups)

    @property
    def backlog_s(self) -> float:
        """Predicted work that waits, late or not, seconds of the reference group; O(1)."""
        return self._requests.waiting.seconds

    def retry_after_s(self) -> float:
        """What a request that found the queue full would be told now."""
        return self._requests.retry_after_s()

    def fast_reject(
        self, tenant: str, priority: int, left_s: float, expires_s: float, now: float
    ) -> float | None:
        """For whom a row of any length would be too late, as the like of it was a moment ago: after
        how many seconds asking again may help. Seconds are from now. Whoever refuses it for that
        says so (`RefusedUnread`)."""
        if self._requests.is_closed:
            return None
        refused = self._requests.reject_unread(tenant, priority, left_s, expires_s, now)
        return None if refused is None else refused.retry_after_s

    def cost_error(self) -> CostError:
        """How far predictions of service time have lately been off, in the reference group."""
        return self._groups.reference.cost.error()

    def coefficients(self) -> Coefficients:
        """What predictions of service time are made from, in the reference group."""
        return self._groups.reference.cost.coefficients

    def check(self) -> None:
        """Raises AssertionError when an invariant is broken. Scans everything: for tests."""
        check(self._state)

    # -- events

    def _note(self, event: Note, now: float) -> None:
        requests = self._requests
        match event:
            case CapacityExpected(in_s):
                requests.expect_capacity(in_s)
            case RefusedUnread():
                requests.refused_unread(event, now)
            case ServedElsewhere(tenant, priority, lengths):
                requests.arrivals.served_elsewhere(tenant, priority, lengths)
            case PeersServed(replica_id, report):
                replica = self._replicas.by_id.get(replica_id)
                if replica is not None:
                    learn_of_peers(self._state, replica, believable(report, 0.0), now)

    def _handle(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case Arrive():
                self._requests.arrive(event.request, now, actions)
            case Closed():
                self._closed(event, now, actions)
            case Opened():
                self._opened(event.lease_id, now, actions)
            case Cancel():
                self._requests.cancel(event.request_id, actions)
            case Replicas():
                self._listed(event, now)
            case Close():
                self._requests.close(actions)
            case Reconfigure():
                self._requests.reconfigure(event.settings, now, actions)
                self._adopt(event.settings)
            case Tick():
                pass

    def _listed(self, event: Replicas, now: float) -> None:
        for replica in self._replicas.update(event.replicas, now):
            forget_replica(self._state, replica)
        if self._replicas.running > 1:
            for lease in self._leases.open.values():
                self._copies.watch(lease)
                self._stream_copies.watch(lease)

    def _opened(self, lease_id: int, now: float, actions: list[Action]) -> None:
        lease = self._leases.open.get(lease_id)
        if lease is not None and not lease.opened:
            heard(self._state, lease.replica, now)
            lease.begin(now)
            if lease.tied:
                start_first(lease, actions)
            lease.replica.reckon(now)
            self._copies.watch(lease)
            self._stream_copies.watch(lease)
            self._replicas.refresh(lease.replica, now)

    def _closed(self, event: Closed, now: float, actions: list[Action]) -> None:
        """What its replica says of itself tells that the replica has ended it, not the caller."""
        lease = self._leases.open.get(event.lease_id)
        if lease is not None and (event.report.seen or event.end is LeaseEnd.DONE):
            heard(self._state, lease.replica, now)
        close_lease(self._state, event, now, actions)

    def _has_moved(self, event: Progress | Heard, now: float, actions: list[Action]) -> bool:
        """Whether it changes what is decided."""
        if isinstance(event, Progress):
            return self._progress(event, now, actions)
        replica = self._replicas.by_id.get(event.replica_id)
        was_silent = replica is not None and replica.suspended
        if replica is not None:
            heard(self._state, replica, now)
        return was_silent

    def _progress(self, event: Progress, now: float, actions: list[Action]) -> bool:
        """Whether more may fit now, or something else has to be asked anew."""
        lease = self._leases.open.get(event.lease_id)
        if lease is None or not lease.replica.streams:
            return True
        was_silent = lease.replica.suspended
        heard(self._state, lease.replica, now)
        self._stream_copies.begun(lease, actions)
        has_changed = moved(self._state, lease, event, now)
        self._replicas.refresh(lease.replica, now)
        return has_changed or was_silent

    # -- what follows from an event

    def _join(self, event: Arrive, now: float, actions: list[Action]) -> bool:
        """A new request while nothing else happens: all that may follow is that less urgent work
        that has been sent gives way to it."""
        requests, wakeups = self._requests, self._wakeups
        if requests.arrive(event.request, now, actions):
            if requests.most_urgent() != wakeups.most_urgent:
                self._advance(now)
                return True
            wakeups.joined(requests)
        wakeups.ask(requests.waiting.rows > 0, actions)
        return False

    def _advance(self, now: float) -> None:
        """Before anything changes about how busy the replicas are."""
        self._copies.utilisation.advance(self._replicas.busy_share, now)

    def _settle(self, now: float, actions: list[Action]) -> None:
        self._requests.run_timers(now, actions)
        copies, replicas = self._copies, self._replicas
        while (lease := copies.overdue(now)) is not None:
            replicas.refresh(lease.replica, now)
            self._silence.watch(lease.replica, now)
        while (replica := self._silence.silent(now)) is not None:
            suspend(self._state, replica, now, actions)
        replicas.promote(now)
        self._requests.held_until = None
        self._requests.tries_at = inf
        self._assignment.fill(now, actions)
        healthy = replicas.healthy
        copies.hedge(now, actions)
        self._stream_copies.hedge(now, actions)
        if replicas.healthy < healthy and len(self._groups.by_name) > 1:
            self._assignment.fill(now, actions)  # what was left to the one that is raced now
        self._wakeups.look(self._state)
        races = copies.schedule.candidates or self._stream_copies.schedule.candidates
        self._wakeups.ask(self._requests.waiting.rows > 0 or bool(races), actions)
