"""Which rows are sent to which replica, and when, where replicas run batches?

`BatchScheduler` owns one model's queue and leases at one gateway and is their only writer. Each
time that something has changed it goes through `_decide` from top to bottom: what time alone has
changed, rows that wait for replicas that are ready, preemption for those that still wait, copies of
what was sent, and when to be called again. Rows that wait always come before copies of rows that
were sent. A batch is formed only when a replica can take it: the placement policy's first choice is
offered to `Forming`. No request is dispatched at or past its expiry.
"""

from __future__ import annotations

from routers.api.actions import Action, Dispatch, IsolatedDispatch
from routers.api.errors import BadSettings
from routers.api.settings import DispatcherSettings
from routers.batch.closing import BatchEndings
from routers.batch.forming import Forming
from routers.batch.hedging import BatchSilence, Hedger, Slowness
from routers.batch.lease import (
    BatchLease,
    BatchReplica,
    BatchReplicas,
    FormedBatch,
    preemptible_lease,
)
from routers.estimates.groups import ReplicaGroups
from routers.policies.registry import HEDGINGS, PLACEMENTS
from routers.shared.races import Races
from routers.shared.requests import RequestTable
from routers.shared.scheduler import Scheduler, checked
from routers.state.leases import row_ids


class BatchScheduler(Scheduler[RequestTable, BatchReplicas, BatchLease]):
    """Schedules the batches of one model. Raises `BadSettings` and `BadRequestEvent`, nothing
    else."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._check_kind(checked(settings))
        groups = ReplicaGroups(settings)
        replicas = BatchReplicas(groups, PLACEMENTS[settings.policies.placement]())
        requests = RequestTable(settings, replicas)
        races: Races[BatchLease] = Races(settings)
        slowness = Slowness(settings.hedge, HEDGINGS[settings.policies.hedging](settings.hedge))
        silence = BatchSilence(settings.silence, replicas, slowness)
        super().__init__(settings, requests, replicas, races, silence)
        self._forming = Forming(settings, requests, replicas)
        self._hedger = Hedger(settings, replicas, self._leases, races, slowness, self._ejection)
        self._endings = BatchEndings(
            requests, replicas, self._leases, self._hedger, races, self._suspension
        )
        self._adopt(settings)

    def _check_kind(self, settings: DispatcherSettings) -> None:
        if settings.generation is not None:
            raise BadSettings("generation must not be set for a model that is served in batches")

    def _adopt(self, settings: DispatcherSettings) -> None:
        self._hedger.adopt(settings)
        self._forming.adopt(settings)

    # -- events

    def _watch(self, lease: BatchLease) -> None:
        self._hedger.watch(lease)

    def _opened(self, lease: BatchLease, now: float) -> None:
        lease.replica.predict_finish(now)
        self._hedger.watch(lease)

    # -- what follows from them

    def _decide(self, now: float, actions: list[Action]) -> None:
        requests, replicas, races = self._requests, self._replicas, self._races
        forming, hedger, silence = self._forming, self._hedger, self._silence
        # What time alone has changed: requests that are late or refused, leases that are slow,
        # replicas that are silent, replicas whose next batch is due.
        requests.run_timers(now, actions)
        while (lease := hedger.overdue(now)) is not None:
            replicas.refresh(lease.replica, now)
            silence.watch(lease.replica, now)
        while (silent := silence.silent(now)) is not None:
            self._suspend(silent, now, actions)
        replicas.promote(now)
        forming.begin_pass()

        self._fill(now, actions)
        healthy = replicas.healthy
        hedger.hedge(now, actions)
        if replicas.healthy < healthy and len(replicas.groups.by_name) > 1:
            # Rows may have been left to the group of a replica that has just become unhealthy.
            self._fill(now, actions)

        # When to be called again, and until when an arrival changes nothing but the queue.
        check_at = min(races.schedule.next_check_at(), silence.next_at())
        check_at = min(requests.timers.next_at(), check_at)
        capacity_at = min(replicas.next_at(), min(forming.next_retry_at, forming.held_until))
        candidates = bool(races.schedule.candidates)
        quiet = not (replicas.has_ready or candidates or self._gives_back() is not None)
        if requests.groups.bounds and replicas.preemptible.least_urgent() is not None:
            quiet = False  # the most urgent rows may be too long for it, so that others preempt
        self._wakeups.plan(requests.most_urgent(), check_at, capacity_at, quiet=quiet)
        self._wakeups.ask(requests.waiting.rows > 0 or candidates, actions)

    def _fill(self, now: float, actions: list[Action]) -> None:
        """Send rows to every replica that is ready, then tie staged batches to copies, and preempt
        less urgent batches for rows that still wait."""
        waiting, replicas, hedger = self._requests.waiting, self._replicas, self._hedger
        staged: list[tuple[int, BatchLease]] = []  # with the index of its `Dispatch` in `actions`
        while waiting.rows and replicas.has_ready:
            if len(replicas.groups.by_name) > 1:
                self._look_ahead(now)
            lease = self._send_next(now, actions)
            if lease is None:
                break
            if lease.staged:
                staged.append((len(actions) - 1, lease))
            if replicas.ejected and (probe := hedger.probe(lease, now)) is not None:
                actions.append(probe)
        if staged and self._races.hedge.mode == "tied":
            for index, lease in staged:
                copy = hedger.tie(lease, now)
                if copy is not None:
                    sent = actions[index]
                    assert isinstance(sent, Dispatch)
                    sent.tied = True
                    actions.append(copy)
        while waiting.rows and (replica := self._gives_back()) is not None:
            # Not while a batch is due that leads because its priority was passed over too long.
            if waiting.passed_over(self._requests.ageing_s, now) is not None:
                break
            if not self._preempt(replica, now, actions):
                break

    def _send_next(self, now: float, actions: list[Action]) -> BatchLease | None:
        """A lease at the best of the ready replicas that takes one; None: none does."""
        replicas, lease = self._replicas, None
        ready, spare = replicas.ready, replicas.spares_above is not None
        ready.begin()
        while lease is None and (replica := ready.ask(now, spare=spare)) is not None:
            lease = self._form_and_send(replica, now, actions)
        ready.end()
        return lease

    def _form_and_send(
        self, replica: BatchReplica, now: float, actions: list[Action]
    ) -> BatchLease | None:
        """A lease of the batch that is formed for this replica; None: there is none."""
        trusted = replica.answers > 0 or replica.group.sizes.is_profiled
        free_in_s = max(0.0, replica.finish_at - now)
        batch = self._forming.form(replica, now, actions, trusted=trusted, starts_in_s=free_in_s)
        if batch is None:
            return None
        return self._send(self._preferred(replica, batch, now), batch, now, actions)

    def _preferred(self, best: BatchReplica, batch: FormedBatch, now: float) -> BatchReplica:
        """The replica for the batch: the one that served its leading row's session last, if it may
        take the batch and finishes little later than `best`, else `best`."""
        row, replicas = batch.rows[0], self._replicas
        session = row.tracked.request.session
        preferred = self._affinity.preferred(session) if session else None
        if preferred is None or row.isolated:
            return best
        replica = replicas.by_id.get(preferred)
        if replica is None or replica.unhealthy or replica not in replicas.ready:
            return best
        if replica.group is not best.group or not (replica.answers > 0 or len(batch.rows) == 1):
            return best
        seconds = best.group.cost.predict(len(batch.rows), batch.width)
        later_s = replica.finish_in_s(now, seconds) - best.finish_in_s(now, seconds)
        return best if self._affinity.gives_way(later_s, seconds) else replica

    def _send(
        self, replica: BatchReplica, batch: FormedBatch, now: float, actions: list[Action]
    ) -> BatchLease:
        """Open the lease, append its `Dispatch`, pay for it and watch it."""
        requests, replicas, charge = self._requests, self._replicas, batch.charge
        lease = BatchLease(self._leases.next_id(), replica, batch, now)
        lease.unsettled_charge = charge
        lease.non_preemptible = self._passed_over(charge.rank, replica)
        replica.took(lease)
        self._leases.sign(lease)
        self._sent(lease, batch.edge, charge.predicted_s)
        if replicas.running > 1:
            self._hedger.watch(lease)
        replicas.refresh(replica, now)
        self._remember_sessions(batch.rows, replica)
        rows, edge = row_ids(batch.rows), batch.edge
        lease_id, replica_id, seconds = lease.lease_id, lease.replica_id, charge.predicted_s
        dispatch: Dispatch
        if lease.isolated:
            dispatch = IsolatedDispatch(lease_id, replica_id, rows, edge, seconds, charge.rank)
        else:
            dispatch = Dispatch(lease_id, replica_id, rows, edge, seconds, charge.rank)
        dispatch.charges, dispatch.waiting = charge.charges, requests.waiting.work()
        dispatch.tells_start = self._hedger.needs_start(replica, now)
        actions.append(dispatch)
        return lease

    # -- preemption and silence

    def _gives_back(self) -> BatchReplica | None:
        """The replica that is preempted for the most urgent rows, or for less urgent ones where no
        replica that takes the most urgent is preempted; None: none is."""
        preemptible, requests = self._replicas.preemptible, self._requests
        if not preemptible.count:
            return None
        for lane in requests.waiting.on_time:
            if not lane.rows:
                continue
            replica = preemptible.least_urgent(lane if requests.groups.bounds else None)
            least = None if replica is None else replica.preemptible
            if least is not None and self._preemption.gives_back(
                least.late, least.priority, lane.priority
            ):
                return replica
            if not requests.groups.bounds:
                return None
        return None

    def _preempt(self, replica: BatchReplica, now: float, actions: list[Action]) -> bool:
        """Send the replica one batch more than it has slots for: it returns its least urgent staged
        batch. Whether a batch could be formed."""
        victim = preemptible_lease(replica)
        assert victim is not None
        free_in_s = max(0.0, victim.starts_at - now)
        batch = self._forming.form(
            replica, now, actions, trusted=replica.answers > 0, starts_in_s=free_in_s
        )
        if batch is None:
            return False
        replica.finish_at = victim.starts_at
        lease = self._send(replica, batch, now, actions)
        comes_back = victim if lease.rank < victim.rank else lease
        comes_back.recalled = True
        self._races.counts.evictions += 1
        return True

    def _suspend(self, replica: BatchReplica, now: float, actions: list[Action]) -> None:
        """Give the silent replica no new lease, and move its rows. Rows of the batch that ran may
        have silenced it; rows staged behind it most likely did not start."""
        self._begin_silence(replica)
        head = replica.head()
        for lease in list(replica.leases.values()):
            ran = lease is head or lease.opened
            self._suspension.move(lease, now, actions, ran=ran)
        self._replicas.refresh(replica, now)
