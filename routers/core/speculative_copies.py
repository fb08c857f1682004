"""Which lease is raced by a copy on another replica, and which replica is asked for that?

When that is due `hedging` says, for leases that are watched here. A copy goes to a healthy replica
with a free slot that holds nothing more urgent, and takes only rows that may run twice and never
have been copied before, so slow inputs start no avalanche. It is paid from the budget, not sent
while the replicas are busy, nor when it could not be back by any of its rows' deadlines. Two
unstarted copies are tied: the first to start cancels the other. A probe is a copy to an ejected
replica, never refused, and is let run to its end. Work: O(log n) a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.actions import Action, Dispatch
from routers.api.settings import DispatcherSettings
from routers.core.copy_schedule import CopySchedule
from routers.core.replica_watch import Ejection
from routers.estimates.averages import Utilisation
from routers.policies.hedging import Finding, Hedging
from routers.state.budget import Budget
from routers.state.formed_batch import FormedBatch
from routers.state.leases import CopyTerms, DispatchCounts, LeaseTable
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row


@dataclass(slots=True)
class SpeculativeCopies:
    """What races are made of, and the one writer of copies."""

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
        """Go on under these settings; what has been learnt is kept."""
        self.settings = settings
        self.hedging.settings, self.hedging.frozen = settings.hedge, settings.frozen
        outliers = self.ejection.policy
        outliers.settings, outliers.frozen = settings.outliers, settings.frozen
        self.budget.share = settings.hedge.budget

    # -- when

    def watch(self, lease: Lease) -> None:
        """Look at it when that is due; to be called again when its start has moved."""
        if lease.predicted_s > 0.0 and not lease.replica.streams and not lease.overdue:
            self.schedule.check_by(lease, self.hedging.check_at(lease))

    def starts_now(self, lease: Lease) -> None:
        """The batch before it has left the device: its waiting is over."""
        lease.lead()
        if not lease.hedge_due:
            self.schedule.remove(lease)
        self.watch(lease)

    def again(self, lease: Lease) -> None:
        """What it raced was never started: it may be raced as if it had been alone."""
        if lease.repeats:
            lease.race_again()
            self.watch(lease)
        elif lease.hedge_due:
            self.schedule.add(lease)

    def overdue(self, now: float) -> Lease | None:
        """The next lease that has become so; None: there is no more, and those to race are
        candidates of the schedule."""
        hedging, schedule = self.hedging, self.schedule
        while (lease := schedule.due(now)) is not None:
            finding = hedging.judge(lease, now)
            if finding is Finding.EARLY:
                schedule.check_at(lease, hedging.check_at(lease))
            elif finding is Finding.RACE:
                lease.call_due()
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
        """Race what waits for it, as far as replicas and budget go."""
        schedule = self.schedule
        if not schedule.candidates or self.is_too_busy:
            return
        for lease in schedule.first():
            rows = copiable(lease)
            if not rows or not self._pays_off(lease, rows, now):
                schedule.remove(lease)
                continue
            dispatch = self._to_another(lease, rows, now)
            if dispatch is not None:
                schedule.remove(lease)
                self.counts.hedges += 1
                self._distrust(lease, now)
                actions.append(dispatch)

    def tie(self, lease: Lease, now: float) -> Dispatch | None:
        """A copy of a lease that was just staged behind a running one, if a slot is free."""
        if self.is_too_busy:
            return None
        rows = copiable(lease)
        dispatch = self._to_another(lease, rows, now, spare=True) if rows else None
        if dispatch is not None:
            self.counts.ties += 1
        return dispatch

    def probe(self, lease: Lease, now: float) -> Dispatch | None:
        """A copy of a lease that was just signed, to an ejected replica that is due."""
        replica = self.ejection.to_probe(lease.replica.group, now)
        rows = copiable(lease) if replica is not None and replica is not lease.replica else []
        if replica is None or not rows:
            return None
        self.ejection.probed(replica)
        self.counts.probes += 1
        return self._copy(lease, replica, rows, now, probe=True)

    def _distrust(self, lease: Lease, now: float) -> None:
        """Nothing is staged behind what is being raced, until it has closed."""
        if lease.replica.head() is lease:
            lease.call_overdue()
            self.replicas.refresh(lease.replica, now)

    def _pays_off(self, lease: Lease, rows: list[Row], now: float) -> bool:
        groups = {lease.replica.group}
        if len(self.replicas.groups.by_name) > 1:
            groups |= {each for each in self.replicas.groups.all() if each.healthy}
        seconds = min([group.cost.predict(len(rows), lease.batch.width) for group in groups])
        return max(row.tracked.request.deadline for row in rows) - now > seconds

    def _to_another(
        self, lease: Lease, rows: list[Row], now: float, *, spare: bool = False
    ) -> Dispatch | None:
        replicas = self.replicas

        def accept(replica: ReplicaState) -> Dispatch | None:
            if not self._may_take(replica, lease):
                return None
            width = self._width(lease, rows)
            seconds = replica.group.cost.predict(len(rows), width, replica.spec.replica_id)
            if replica.group is not lease.replica.group and seconds > _left_s(lease, rows, now):
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
        """What the device will see these rows as, which may be fewer than the lease was sent."""
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


def _left_s(lease: Lease, rows: list[Row], now: float) -> float:
    """Seconds that a copy in another group may take: until the last of the rows is due, and where
    the lease has yet to start, until it is predicted to be answered."""
    due_s = max(row.tracked.request.deadline for row in rows) - now
    if lease.opened or lease.starts_at <= now:
        return due_s
    return min(due_s, lease.starts_at + lease.predicted_s - now)


def copiable(lease: Lease) -> list[Row]:
    """Its members that may run a second time, if it is not in a race already."""
    if lease.copy is not None or lease.copy_of is not None:
        return []
    return [
        row
        for row in lease.members()
        if row.tracked.request.retryable and not row.copied and not row.retried
    ]


def row_ids(rows: list[Row]) -> tuple[tuple[int, int], ...]:
    return tuple([(row.tracked.request.request_id, row.index) for row in rows])
