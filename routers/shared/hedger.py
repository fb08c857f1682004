"""Which batch gets a speculative copy on another replica, and on which replica?

A *hedge* is sent once `hedging` finds the lease slow. A *tie* is sent at once, for a batch staged
behind a running one. A *probe* goes to an ejected replica and shows whether it is still slow.
- A hedge or tie goes to a healthy replica with a free slot and nothing more urgent, if replicas are
  not busy and the retry budget allows. A hedge must be able to meet a deadline of its rows.
- A probe is sent however busy the replicas are, and runs to its end. The budget pays for it too.
- Only rows that may run twice and were never copied are copied, so that slow inputs do not set off
  ever more copies.
- If neither the lease nor its copy has started, they are tied: the first start cancels the other.
`stream_hedger` does the same for streams. Work: O(log n) a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.actions import Action, Dispatch
from routers.api.settings import DispatcherSettings
from routers.estimates.averages import Utilisation
from routers.policies.hedging.batches import Finding, Hedging
from routers.policies.registry import HEDGINGS
from routers.shared.copy_schedule import CopySchedule
from routers.shared.replica_watch import Ejection
from routers.state.budget import Budget
from routers.state.formed_batch import FormedBatch
from routers.state.leases import CopyTerms, DispatchCounts, LeaseTable
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row


@dataclass(slots=True)
class Hedger:
    """Copies of batches. Also holds what `StreamHedger` and `Assignment` share: the replicas, the
    leases, the budget, the utilisation and the counters."""

    settings: DispatcherSettings
    replicas: ReplicaSet
    leases: LeaseTable
    hedging: Hedging
    ejection: Ejection
    budget: Budget
    utilisation: Utilisation
    counts: DispatchCounts
    schedule: CopySchedule = field(default_factory=CopySchedule)

    def adopt(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; what was learnt is kept."""
        self.settings = settings
        self.hedging.settings, self.hedging.frozen = settings.hedge, settings.frozen
        self.hedging.policy = HEDGINGS[settings.policies.hedging](settings.hedge)
        outliers = self.ejection.policy
        outliers.settings, outliers.frozen = settings.outliers, settings.frozen
        self.budget.share = settings.hedge.budget

    # -- when

    def watch(self, lease: Lease) -> None:
        """Plan the check of a batch's lease. To be called again when its predicted start has moved;
        a check that turns out too early is planned anew."""
        if lease.predicted_s > 0.0 and not lease.replica.streams and not lease.overdue:
            self.schedule.check_by(lease, self.hedging.check_at(lease))

    def predecessor_ended(self, lease: Lease) -> None:
        """The batch before this one has left the device, so that this one starts. It was not slow
        while it waited: a race that is due and has no copy is called off."""
        lease.lead()
        if not lease.hedge_due:
            self.schedule.remove(lease)
        self.watch(lease)

    def again(self, lease: Lease) -> None:
        """The other lease of its race never started: the lease may be raced once more."""
        if lease.repeats:
            lease.clear_hedge_due()
            self.watch(lease)
        elif lease.hedge_due:
            self.schedule.add(lease)

    def overdue(self, now: float) -> Lease | None:
        """Check all leases whose check is due: the next one that is now overdue; None: no further
        one is. Leases found slow on the way become candidates for a copy."""
        hedging, schedule = self.hedging, self.schedule
        while (lease := schedule.due(now)) is not None:
            finding = hedging.judge(lease, now)
            if finding is Finding.EARLY:
                schedule.check_at(lease, hedging.check_at(lease))
            elif finding is Finding.RACE:
                lease.mark_hedge_due()
                schedule.add(lease)
                schedule.check_at(lease, max(now, hedging.check_at(lease)))
            elif finding is Finding.OVERDUE:
                lease.call_overdue()
                return lease
        return None

    # -- where

    @property
    def is_too_busy(self) -> bool:
        """Whether replicas are busier than `hedge.max_utilisation`, so that no copy is sent."""
        return self.utilisation.share > self.settings.hedge.max_utilisation

    def hedge(self, now: float, actions: list[Action]) -> None:
        """Send copies of the oldest candidates, as far as replicas and budget allow."""
        schedule = self.schedule
        if not schedule.candidates or self.is_too_busy:
            return
        for lease in schedule.first():
            rows = copiable(lease)
            if not rows or not self._can_meet_a_deadline(lease, rows, now):
                schedule.remove(lease)
                continue
            dispatch = self._send_copy(lease, rows, now)
            if dispatch is not None:
                schedule.remove(lease)
                self.counts.hedges += 1
                self._stage_nothing_behind(lease, now)
                actions.append(dispatch)

    def tie(self, lease: Lease, now: float) -> Dispatch | None:
        """A copy of a lease that was just staged behind a running batch; None: no replica is ready,
        or the replicas are too busy, or the budget is too low."""
        if self.is_too_busy:
            return None
        rows = copiable(lease)
        dispatch = self._send_copy(lease, rows, now, spare=True) if rows else None
        if dispatch is not None:
            self.counts.ties += 1
        return dispatch

    def probe(self, lease: Lease, now: float) -> Dispatch | None:
        """A copy of a lease that was just opened, to an ejected replica of its group that is due
        for a probe; None: there is none, or no row of the lease may be copied."""
        replica = self.ejection.to_probe(lease.replica.group, now)
        rows = copiable(lease) if replica is not None and replica is not lease.replica else []
        if replica is None or not rows or _longest(rows) > replica.group.longest:
            return None
        self.ejection.probed(replica)
        self.counts.probes += 1
        return self._copy(lease, replica, rows, now, probe=True)

    def _stage_nothing_behind(self, lease: Lease, now: float) -> None:
        """Call the raced lease overdue if it is the one that runs: then nothing is staged behind it
        until it has closed."""
        if lease.replica.head() is lease:
            lease.call_overdue()
            self.replicas.refresh(lease.replica, now)

    def _can_meet_a_deadline(self, lease: Lease, rows: list[Row], now: float) -> bool:
        """Whether a copy in the fastest healthy group could meet the deadline of one of the rows at
        least."""
        groups = {lease.replica.group}
        if len(self.replicas.groups.by_name) > 1:
            longest = _longest(rows)
            groups |= {
                each
                for each in self.replicas.groups.all()
                if each.healthy and longest <= each.longest
            }
        seconds = min([group.cost.predict(len(rows), lease.batch.width) for group in groups])
        return max(row.tracked.request.deadline for row in rows) - now > seconds

    def _send_copy(
        self, lease: Lease, rows: list[Row], now: float, *, spare: bool = False
    ) -> Dispatch | None:
        replicas = self.replicas

        def accept(replica: ReplicaState) -> Dispatch | None:
            width = self._width(lease, rows)
            if not self._may_take(replica, lease) or not _fit(rows, width, replica, lease):
                return None
            seconds = replica.group.cost.predict(len(rows), width, replica.spec.replica_id)
            if replica.group is not lease.replica.group and seconds > _useful_s(lease, rows, now):
                return None
            if not self.budget.affords(seconds, spare=spare):
                return None
            return self._copy(lease, replica, rows, now, hedge=not spare)

        return replicas.ready.first(accept, now)

    def _may_take(self, replica: ReplicaState, lease: Lease) -> bool:
        if replica is lease.replica or replica.streams or not replica.answers:
            return False
        urgency = lease.batch.rank[:2]
        return all(other.batch.rank[:2] >= urgency for other in replica.leases.values())

    def _width(self, lease: Lease, rows: list[Row]) -> int:
        """The width of a batch of these rows, which may be fewer than the lease's."""
        settings, batch = self.settings, lease.batch
        if settings.buckets.fixed_shapes or len(rows) == len(batch.rows):
            return batch.width
        lengths = [row.length for row in rows]
        return max(lengths) if settings.pads else -(-sum(lengths) // len(lengths))

    def _copy(
        self,
        lease: Lease,
        replica: ReplicaState,
        rows: list[Row],
        now: float,
        *,
        hedge: bool = False,
        probe: bool = False,
    ) -> Dispatch:
        replica_id, batch = replica.spec.replica_id, lease.batch
        width = self._width(lease, rows)
        seconds = replica.group.cost.predict(len(rows), width, replica_id)
        unstarted = not lease.opened and lease.replica.head() is not lease
        copied = FormedBatch(rows, width, batch.edge, batch.rank, seconds)
        terms = CopyTerms(seconds, hedge, probe, tied=unstarted and not probe)
        copy = self.leases.sign_copy(lease, replica, copied, terms, now)
        self.budget.pay(seconds)
        self.watch(copy)
        self.replicas.refresh(replica, now)
        return Dispatch(
            copy.lease_id, replica_id, row_ids(rows), batch.edge, seconds, batch.rank,
            copy_of=lease.lease_id, tied=copy.tied,
        )  # fmt: skip


def _longest(rows: list[Row]) -> int:
    return max([row.length for row in rows])


def _fit(rows: list[Row], width: int, replica: ReplicaState, lease: Lease) -> bool:
    """Whether the replica's group takes rows of these lengths, and as many as they are."""
    group = replica.group
    if _longest(rows) > group.longest:
        return False
    return group is lease.replica.group or group.holds(len(rows), width)


def _useful_s(lease: Lease, rows: list[Row], now: float) -> float:
    """Seconds that a copy in another group may take to be of use: until the latest deadline of the
    rows and, where the lease has yet to start, until its own predicted answer."""
    due_s = max(row.tracked.request.deadline for row in rows) - now
    if lease.opened or lease.starts_at <= now:
        return due_s
    return min(due_s, lease.starts_at + lease.predicted_s - now)


def copiable(lease: Lease) -> list[Row]:
    """The lease's members that may run a second time; none where it is in a race already."""
    if lease.copy is not None or lease.copy_of is not None:
        return []
    return [
        row
        for row in lease.members()
        if row.tracked.request.retryable and not row.copied and not row.isolated
    ]


def row_ids(rows: list[Row]) -> tuple[tuple[int, int], ...]:
    """The rows as `api.actions.Dispatch` names them: (request_id, row index)."""
    return tuple([(row.tracked.request.request_id, row.index) for row in rows])
