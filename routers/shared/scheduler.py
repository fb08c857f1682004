"""What both schedulers do: take events in, and answer what their callers ask.

Events go in and actions come out: `step(event, now)`, or `take` and then `decide`. All other
methods are queries that change nothing. A scheduler owns the queue and the leases of one model at
one gateway and is their only writer. It does no I/O and knows neither clock nor payloads. Work:
O(log n) an event, plus what the event names. What a kind decides once something has changed stands
in `batch.scheduler` and `stream.scheduler`.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import Any, Final, Generic, TypeVar

from routers.api.actions import Action, WakeAt
from routers.api.events import (
    AdaptersHeld,
    Arrive,
    BlocksHeld,
    Cancel,
    CapacityExpected,
    Close,
    Closed,
    Event,
    GatewayPlace,
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
from routers.api.requests import DONE
from routers.api.settings import DispatcherSettings, validate
from routers.api.snapshot import Snapshot
from routers.estimates.cost.model import Coefficients, CostError
from routers.policies.preemption import Preemption
from routers.policies.registry import PREEMPTIONS, check_names
from routers.shared.bounds import is_full
from routers.shared.endings import Endings, believable
from routers.shared.health import Ejection, Outliers, Silence, SilenceWatch, Suspension
from routers.shared.races import Races
from routers.shared.requests import RequestTable
from routers.shared.snapshots import take_snapshot
from routers.state.leases import LeaseTable, start_first
from routers.state.replica_state import SILENT, AnyLease, AnyReplica
from routers.state.replicas import Affinity, ReplicaSet
from routers.state.rows import Row

_NOTES: Final = (
    CapacityExpected, RefusedUnread, ServedElsewhere, PeersServed, GatewayPlace, AdaptersHeld,
    BlocksHeld,
)  # fmt: skip

Q = TypeVar("Q", bound=RequestTable)
S = TypeVar("S", bound=ReplicaSet[Any])
L = TypeVar("L", bound=AnyLease)


def checked(settings: DispatcherSettings) -> DispatcherSettings:
    """The settings. Raises `BadSettings`."""
    validate(settings)
    check_names(settings)
    return settings


class WakeupPlanner:
    """The wakeups as of the end of the last step. A scheduler has one timer
    (`api.actions.WakeAt`). It is asked for at the earliest time at which a decision may change by
    the clock alone."""

    def __init__(self) -> None:
        self.wakes_at = inf  # when the timer is set to fire; inf: it is not set
        # Until then a new request has no effect but its own admission and queueing, unless its
        # priority is more urgent than `most_urgent`, the most urgent that had rows waiting.
        self.quiet_until = -inf
        self.most_urgent: int | None = None
        self._next_check_at = inf  # when a request's timer or a check of a lease or replica is due
        self._next_capacity_at = inf  # when a replica may take a lease

    def plan(
        self, most_urgent: int | None, check_at: float, capacity_at: float, *, quiet: bool
    ) -> None:
        """Plan anew at the end of a step in which anything may have changed. `quiet`: until those
        times a new request that is not more urgent changes nothing but the queue."""
        self._next_check_at, self._next_capacity_at = check_at, capacity_at
        self.most_urgent = most_urgent
        self.quiet_until = min(check_at, capacity_at) if quiet else -inf

    def joined(self, requests: RequestTable) -> None:
        """A new request was queued and nothing else has changed: plan its timer."""
        at = requests.timers.next_at()
        if at < self._next_check_at:
            self._next_check_at = at
            self.quiet_until = min(at, self.quiet_until)

    def ask(self, waits: bool, actions: list[Action]) -> None:
        """Append a `WakeAt`, unless the timer is set to the same time or an earlier one. `waits`:
        rows wait, or leases wait to be copied, so that a replica's becoming free matters."""
        at = self._next_check_at
        if waits and self._next_capacity_at < at:
            at = self._next_capacity_at
        if at < self.wakes_at:
            self.wakes_at = at
            actions.append(WakeAt(at))


class Scheduler(Generic[Q, S, L]):
    """One model's scheduling core. Raises `BadSettings` and `BadRequestEvent`, nothing else."""

    _endings: Endings[L]  # what follows from the ends of leases; made by the kind

    def __init__(
        self,
        settings: DispatcherSettings,
        requests: Q,
        replicas: S,
        races: Races[L],
        silence: Silence[Any],
    ) -> None:
        self._requests, self._replicas, self._races = requests, replicas, races
        self._groups = replicas.groups
        self._leases: LeaseTable[L] = LeaseTable()
        self._ejection: Ejection[Any] = Ejection(Outliers(settings.outliers), replicas)
        self._silence: SilenceWatch[Any] = SilenceWatch(silence)
        self._suspension = Suspension(requests, replicas, races, self._silence, self._ejection)
        self._preemption: Preemption = PREEMPTIONS[settings.policies.preemption]()
        self._affinity = Affinity()
        self._wakeups = WakeupPlanner()
        self._adopt_health(settings)

    # -- what differs by kind

    @abstractmethod
    def _check_kind(self, settings: DispatcherSettings) -> None:
        """Raises `BadSettings` for the settings of a model of the other kind."""

    @abstractmethod
    def _adopt(self, settings: DispatcherSettings) -> None:
        """Go on under these settings, which the request table has adopted."""

    @abstractmethod
    def _watch(self, lease: L) -> None:
        """Plan the check of a lease, unless it is planned."""

    @abstractmethod
    def _opened(self, lease: L, now: float) -> None:
        """The lease has started."""

    def _progressed(self, event: Progress, now: float, actions: list[Action]) -> bool:
        """Record how far a stream has got; whether decisions may change because of it."""
        return True

    @abstractmethod
    def _decide(self, now: float, actions: list[Action]) -> None:
        """Decide all that may be decided anew, now that something has changed."""

    # -- events in, actions out

    def step(self, event: Event, now: float) -> list[Action]:
        """Handle one event; returns the actions to perform, in order. `now` never decreases."""
        actions: list[Action] = []
        if self.take(event, now, actions):
            self._decide(now, actions)
        return actions

    def take(self, event: Event, now: float, actions: list[Action]) -> bool:
        """The first half of `step`: record the event, append the actions that follow from it alone,
        and dispatch nothing. True: the caller must call `decide` soon. A caller that holds several
        events takes all of them before the first lease is sent."""
        wakeups = self._wakeups
        if isinstance(event, Arrive):  # first, as most events are
            if now >= wakeups.wakes_at:
                wakeups.wakes_at = inf
            if now < wakeups.quiet_until:
                return self._arrive_while_quiet(event, now, actions)
            self._advance_utilisation(now)
            self._requests.arrive(event.request, now, actions)
            return True
        if not isinstance(event, (Closed, Tick, Opened, Progress)) and isinstance(event, _NOTES):
            self._note(event, now)
            return False
        if now >= wakeups.wakes_at or isinstance(event, Tick):
            wakeups.wakes_at = inf
        self._advance_utilisation(now)
        if isinstance(event, Progress):
            return self._progressed(event, now, actions) or not now < wakeups.wakes_at < inf
        if isinstance(event, Heard):
            return self._heard(event, now) or not now < wakeups.wakes_at < inf
        self._handle(event, now, actions)
        return True

    def decide(self, now: float) -> list[Action]:
        """The second half of `step`: dispatch, after one or more `take`. Returns the actions to
        perform, in order. Unlike a `Tick`, this leaves a timer that is not yet due outstanding."""
        actions: list[Action] = []
        if now >= self._wakeups.wakes_at:
            self._wakeups.wakes_at = inf
        self._advance_utilisation(now)
        self._decide(now, actions)
        return actions

    # -- queries

    def snapshot(self, now: float) -> Snapshot:
        """The state in numbers; work as in `shared.snapshots`."""
        return take_snapshot(self._requests, self._replicas, self._leases, self._races, now)

    @property
    def waiting_rows(self) -> int:
        """Rows in the queue, late ones included; O(1)."""
        return self._requests.waiting.rows

    def waiting_rows_of(self, tenant: str) -> int:
        """Rows of this tenant in the queue, late ones included and retries left out; O(1)."""
        return self._requests.waiting.rows_of(tenant)

    def is_full(self, tenant: str, weight: float) -> bool:
        """Whether the queue would reject even one row of the tenant; O(1)."""
        requests = self._requests
        return is_full(requests.bounds, tenant, weight, 1)

    @property
    def backlog_s(self) -> float:
        """Predicted work in the queue, late rows included: seconds on one replica of the reference
        group; O(1)."""
        return self._requests.waiting.seconds

    def strands(self, lengths: tuple[int, ...]) -> bool:
        """Whether replicas run, but none that takes rows as long as the longest of these; O(1)."""
        if not self._groups.bounds or not lengths:
            return False
        longest = min(max(lengths), self._requests.waiting.edges[-1])
        return self._replicas.running > 0 and not self._groups.takes(longest)

    def bound_above(self, length: int) -> int:
        """The least length at which a group ends that takes rows of this one; 0: none does."""
        return next((bound for bound in self._groups.bounds if length <= bound), 0)

    def retry_after_s(self) -> float:
        """Seconds after which a request that found the queue full may be sent again."""
        return self._requests.retry_after_s()

    def fast_reject(
        self, tenant: str, priority: int, left_s: float, expires_s: float, now: float
    ) -> float | None:
        """Reject a one-row request before its body is read: seconds after which it may be sent
        again, if the rejection cache says that it would be late whatever its length. None: the
        caller reads the request. `left_s`, `expires_s`: seconds from now to its deadline and to its
        expiry. The caller tells the dispatcher of such a rejection (`RefusedUnread`)."""
        if self._requests.is_closed:
            return None
        refused = self._requests.reject_unread(tenant, priority, left_s, expires_s, now)
        return None if refused is None else refused.retry_after_s

    def cost_error(self) -> CostError:
        """Recent errors of predicted service times, in the reference group."""
        return self._groups.reference.cost.error()

    def coefficients(self) -> Coefficients:
        """Coefficients of the cost model that predicts service times, in the reference group."""
        return self._groups.reference.cost.coefficients

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
                    self._endings.learn_of_peers(replica, believable(report, 0.0), now)
            case GatewayPlace(index, count):
                self._replicas.share(index, count, now)

    def _handle(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:  # the frequent ones first
            case Tick():
                pass
            case Closed():
                self._lease_closed(event, now, actions)
            case Opened():
                self._lease_opened(event.lease_id, now, actions)
            case Cancel():
                self._requests.cancel(event.request_id, actions)
            case Replicas():
                self._update_replicas(event, now)
            case Close():
                self._requests.close(actions)
            case Reconfigure():
                self._check_kind(event.settings)
                self._requests.reconfigure(event.settings, now, actions)
                self._races.adopt(event.settings)
                self._adopt_health(event.settings)
                self._adopt(event.settings)

    def _adopt_health(self, settings: DispatcherSettings) -> None:
        outliers = self._ejection.policy
        outliers.settings, outliers.frozen = settings.outliers, settings.frozen
        self._silence.policy.settings = settings.silence
        self._preemption = PREEMPTIONS[settings.policies.preemption]()

    def _update_replicas(self, event: Replicas, now: float) -> None:
        self._replicas.check_kind(event.replicas)
        for replica in self._replicas.update(event.replicas, now):
            self._endings.forget(replica)
        if self._replicas.running > 1:
            # Leases sent while one replica ran were not watched: no replica could take a copy.
            for lease in self._leases.open.values():
                self._watch(lease)

    def _lease_opened(self, lease_id: int, now: float, actions: list[Action]) -> None:
        lease = self._leases.open.get(lease_id)
        if lease is not None and not lease.opened:
            self._suspension.heard(lease.replica, now)
            lease.opened, lease.starts_at = True, now
            if lease.tied:
                start_first(lease, actions)
            self._opened(lease, now)
            self._replicas.refresh(lease.replica, now)

    def _lease_closed(self, event: Closed, now: float, actions: list[Action]) -> None:
        lease = self._leases.open.get(event.lease_id)
        # The caller also closes leases itself (a timeout, a broken connection): only a report that
        # the replica filled in, or an answer, shows that the replica is alive.
        if lease is not None and (event.report.seen or event.end is DONE):
            self._suspension.heard(lease.replica, now)
        self._endings.close(event, now, actions)

    def _heard(self, event: Heard, now: float) -> bool:
        """Record that a replica has spoken; whether decisions may change because of it."""
        replica = self._replicas.by_id.get(event.replica_id)
        if replica is None:
            return False
        was_silent: bool = replica.reasons & SILENT > 0
        self._suspension.heard(replica, now)
        return was_silent

    def _arrive_while_quiet(self, event: Arrive, now: float, actions: list[Action]) -> bool:
        """Handle a new request while no replica can take a lease and no timer is due. Whether
        decisions may change: only where its priority is more urgent than all that waited before,
        because then it may preempt work that was sent."""
        requests, wakeups = self._requests, self._wakeups
        if requests.arrive(event.request, now, actions):
            if requests.most_urgent() != wakeups.most_urgent:
                self._advance_utilisation(now)
                return True
            wakeups.joined(requests)
        wakeups.ask(requests.waiting.rows > 0, actions)
        return False

    def _advance_utilisation(self, now: float) -> None:
        """Average the utilisation and the refused share up to now; called before the replicas'
        load changes."""
        self._races.utilisation.advance(self._replicas.busy_share, now)
        arrivals = self._requests.arrivals
        arrivals.refused.advance(arrivals.offered.came, arrivals.offered.refused_for_load, now)

    # -- parts of both passes

    def _look_ahead(self, now: float) -> None:
        """With several groups of replicas: compute which of them may take the next lease."""
        requests, groups = self._requests, self._groups
        lanes = [each for each in requests.waiting.lanes() if each.rows > each.isolated.rows]
        queue = lanes[0].order.first() if lanes else None
        edge = requests.waiting.edges[0] if queue is None else queue.in_turn().edge
        rows = 1 if queue is None else lanes[0].length_classes[edge].rows
        groups.look_ahead(rows, edge, requests.waiting.seconds_above, now)

    def _passed_over(self, rank: tuple[int, int, float], replica: AnyReplica) -> bool:
        """Whether what goes to the replica leads although more urgent rows wait that it takes,
        because its priority had been passed over too long: then it is not given up for them."""
        late, priority, _ = rank
        if not late and not priority:
            return False
        urgent = self._requests.most_urgent(replica.group.lengths)
        return urgent is not None and (late > 0 or priority > urgent)

    def _sent(self, lease: L, edge: int, predicted_s: float) -> None:
        """Account for a lease that was sent for rows that waited, led by the bucket `edge`."""
        lease.replica.group.took(predicted_s, edge)
        if len(self._groups.by_name) > 1:
            self._groups.weigh(edge)
        self._races.pay_or_earn(predicted_s, is_retry=lease.rows[0].isolated)

    def _remember_sessions(self, rows: list[Row], replica: AnyReplica) -> None:
        for row in rows:
            if session := row.tracked.request.session:
                self._affinity.served((session,), replica.spec.replica_id)

    def _begin_silence(self, replica: AnyReplica) -> None:
        """Give the replica, which has fallen silent, no new lease until it is heard from."""
        replica.set_reason(SILENT, True)
        self._races.counts.suspensions += 1
