"""Which rows are served next, on which replica and when: one model's dispatcher at one gateway.

Events go in and actions come out: `step(event, now)`, or `take` and then `decide`. All other
methods are queries that change nothing. The dispatcher owns the queue and the leases and is their
only writer. It does no I/O and knows neither clock nor payloads. A batch is formed only when a
replica can take it. A step handles its event, then the due timers (late, refused, expired), then
dispatches, then sends copies: no request is dispatched at or past its expiry. Batch and stream
replicas differ only in the share of capacity that a lease takes. Work: O(log n) an event, plus what
the event names. The parts decide: `requests` what waits, `assignment` what goes where,
`lease_completion` what follows from a lease's end, `copies` what is copied.
"""

from __future__ import annotations

from math import inf

from routers.api.actions import Action
from routers.api.events import (
    AdaptersHeld,
    Arrive,
    BlocksHeld,
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
from routers.estimates.averages import Utilisation
from routers.estimates.cost.model import Coefficients, CostError
from routers.estimates.groups import ReplicaGroups
from routers.policies.admission.queue_bound import is_full
from routers.policies.hedging.batches import Hedging
from routers.policies.outliers import Outliers
from routers.policies.preemption.types import PreemptionView
from routers.policies.registry import HEDGINGS, PLACEMENTS, PREEMPTIONS, check_names
from routers.policies.silence import Silence
from routers.shared.assignment import Assignment
from routers.shared.core_state import State
from routers.shared.hedger import Hedger
from routers.shared.lease_completion import (
    believable,
    close_lease,
    forget_replica,
    learn_of_peers,
)
from routers.shared.replica_watch import Ejection, SilenceWatch
from routers.shared.requests import RequestTable
from routers.shared.snapshots import take_snapshot
from routers.shared.stream_hedger import StreamHedger
from routers.shared.stream_leases import moved
from routers.shared.suspension import heard, suspend
from routers.shared.wakeups import WakeupPlanner
from routers.state.affinity import Affinity
from routers.state.budget import Budget
from routers.state.leases import DispatchCounts, LeaseTable, start_first
from routers.state.replicas import ReplicaSet

_NOTES = (
    CapacityExpected, RefusedUnread, ServedElsewhere, PeersServed, AdaptersHeld, BlocksHeld,
)  # fmt: skip


class Dispatcher:
    """One model's scheduling core. Raises `BadSettings` and `BadRequestEvent`, nothing else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        validate(settings)
        check_names(settings)
        self._groups = ReplicaGroups(settings)
        self._replicas = ReplicaSet(self._groups, PLACEMENTS[settings.policies.placement]())
        self._leases = LeaseTable()
        self._requests = RequestTable(settings, self._replicas)
        self._copies = Hedger(
            settings,
            self._replicas,
            self._leases,
            Hedging(settings.hedge, HEDGINGS[settings.policies.hedging](settings.hedge)),
            Ejection(Outliers(settings.outliers), self._replicas),
            Budget(settings.hedge.budget),
            Utilisation(),
            DispatchCounts(),
        )
        silence = Silence(settings.silence, self._copies.hedging, self._replicas)
        self._silence = SilenceWatch(silence)
        self._stream_copies = StreamHedger(self._requests, self._copies, self._silence)
        self._assignment = Assignment(
            self._requests,
            self._copies,
            self._stream_copies,
            Affinity(),
            self._silence,
            PREEMPTIONS[settings.policies.preemption](),
            PreemptionView(
                self._replicas.preemptible, self._leases.streams, self._requests.waiting
            ),
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
        """Handle one event; returns the actions to perform, in order. `now` never decreases."""
        actions: list[Action] = []
        if self.take(event, now, actions):
            self._make_decisions(now, actions)
        return actions

    def take(self, event: Event, now: float, actions: list[Action]) -> bool:
        """The first half of `step`: record the event, append the actions that follow from it alone,
        and dispatch nothing. True: the caller must call `decide` soon. A caller that holds several
        events takes all of them before the first batch is formed."""
        if isinstance(event, _NOTES):
            self._note(event, now)
            return False
        wakeups = self._wakeups
        if now >= wakeups.wakes_at or isinstance(event, Tick):
            wakeups.wakes_at = inf
        if now < wakeups.quiet_until and isinstance(event, Arrive):
            return self._arrive_while_quiet(event, now, actions)
        self._advance_utilisation(now)
        if isinstance(event, Progress | Heard):
            return self._replica_spoke(event, now, actions) or not now < wakeups.wakes_at < inf
        self._handle(event, now, actions)
        return True

    def decide(self, now: float) -> list[Action]:
        """The second half of `step`: dispatch, after one or more `take`. Returns the actions to
        perform, in order. Unlike a `Tick`, this leaves a timer that is not yet due outstanding."""
        actions: list[Action] = []
        if now >= self._wakeups.wakes_at:
            self._wakeups.wakes_at = inf
        self._advance_utilisation(now)
        self._make_decisions(now, actions)
        return actions

    def _adopt(self, settings: DispatcherSettings) -> None:
        self._copies.adopt(settings)
        self._silence.policy.settings = settings.silence
        self._assignment.preemption = PREEMPTIONS[settings.policies.preemption]()

    def snapshot(self, now: float) -> Snapshot:
        """The state in numbers; work as in `core.snapshots`."""
        return take_snapshot(self._state, now)

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
                    learn_of_peers(self._state, replica, believable(report, 0.0), now)
            case AdaptersHeld(replica_id, adapters, load_s, failing):
                if replica_id in self._replicas.by_id and requests.generations is not None:
                    requests.generations.adapters.told(replica_id, adapters, load_s, failing)
            case BlocksHeld(replica_id):
                if replica_id in self._replicas.by_id and requests.generations is not None:
                    requests.generations.tree.told(event)

    def _handle(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case Arrive():
                self._requests.arrive(event.request, now, actions)
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
                self._requests.reconfigure(event.settings, now, actions)
                self._adopt(event.settings)
            case Tick():
                pass

    def _update_replicas(self, event: Replicas, now: float) -> None:
        for replica in self._replicas.update(event.replicas, now):
            forget_replica(self._state, replica)
        if self._replicas.running > 1:
            # Leases sent while one replica ran were not watched: no replica could take a copy.
            for lease in self._leases.open.values():
                self._copies.watch(lease)
                self._stream_copies.watch(lease)

    def _lease_opened(self, lease_id: int, now: float, actions: list[Action]) -> None:
        lease = self._leases.open.get(lease_id)
        if lease is not None and not lease.opened:
            heard(self._state, lease.replica, now)
            lease.begin(now)
            if lease.tied:
                start_first(lease, actions)
            lease.replica.predict_finish(now)
            self._copies.watch(lease)
            self._stream_copies.watch(lease)
            self._replicas.refresh(lease.replica, now)

    def _lease_closed(self, event: Closed, now: float, actions: list[Action]) -> None:
        lease = self._leases.open.get(event.lease_id)
        # The caller also closes leases itself (a timeout, a broken connection): only a report that
        # the replica filled in, or an answer, shows that the replica is alive.
        if lease is not None and (event.report.seen or event.end is LeaseEnd.DONE):
            heard(self._state, lease.replica, now)
        close_lease(self._state, event, now, actions)

    def _replica_spoke(self, event: Progress | Heard, now: float, actions: list[Action]) -> bool:
        """Record that a replica has spoken; whether decisions may change because of it."""
        if isinstance(event, Progress):
            return self._stream_progressed(event, now, actions)
        replica = self._replicas.by_id.get(event.replica_id)
        was_silent = replica is not None and replica.suspended
        if replica is not None:
            heard(self._state, replica, now)
        return was_silent

    def _stream_progressed(self, event: Progress, now: float, actions: list[Action]) -> bool:
        """Record how far a stream has got; whether decisions may change because of it."""
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
        self._copies.utilisation.advance(self._replicas.busy_share, now)
        offered = self._requests.arrivals.offered
        self._requests.arrivals.refused.advance(offered.came, offered.refused_for_load, now)

    def _make_decisions(self, now: float, actions: list[Action]) -> None:
        """Run the timers, suspend silent replicas, dispatch, send copies, and ask for a timer."""
        self._requests.run_timers(now, actions)
        copies, replicas = self._copies, self._replicas
        while (lease := copies.overdue(now)) is not None:
            replicas.refresh(lease.replica, now)
            self._silence.watch(lease.replica, now)
        while (replica := self._silence.silent(now)) is not None:
            suspend(self._state, replica, now, actions)
        replicas.promote(now)
        self._requests.held_until = None
        self._requests.next_retry_at = inf
        self._assignment.fill(now, actions)
        healthy = replicas.healthy
        copies.hedge(now, actions)
        self._stream_copies.hedge(now, actions)
        if replicas.healthy < healthy and len(self._groups.by_name) > 1:
            # Rows may have been left to the group of a replica that has just become unhealthy.
            self._assignment.fill(now, actions)
        self._wakeups.look(self._state, self._assignment, now)
        races = copies.schedule.candidates or self._stream_copies.schedule.candidates
        self._wakeups.ask(self._requests.waiting.rows > 0 or bool(races), actions)
