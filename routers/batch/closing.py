"""What becomes of a batch's rows and replica when its lease ends, and what is learnt from it?

Rows are answered, stay in the other lease of a race (a copy or the lease that it copies), or go
back to the queue. Only an answer is a sample of cost, and only a race's first answer is a sample of
turnaround. A copy's race pays what the copy took.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from routers.api.actions import Action
from routers.api.events import Closed
from routers.api.requests import ABORTED, DONE, LOST, Report
from routers.batch.hedging import Hedger
from routers.batch.lease import BatchLease, BatchReplicas
from routers.shared.endings import Endings, believable
from routers.shared.health import Suspension
from routers.shared.races import Budget, DispatchCounts, Races
from routers.shared.requests import RequestTable
from routers.state.leases import LeaseTable, fail, set_race_cost, win
from routers.state.replica_state import HEDGE

_MAX_PAID: Final = 3.0  # times a copy's prediction: the most that its race is charged
_GAIN: Final = 0.05  # of the moving averages of what staging loses


class BatchEndings(Endings[BatchLease]):
    """Ends the leases of batches."""

    def __init__(
        self,
        requests: RequestTable,
        replicas: BatchReplicas,
        leases: LeaseTable[BatchLease],
        hedger: Hedger,
        races: Races[BatchLease],
        suspension: Suspension,
    ) -> None:
        super().__init__(requests, replicas, leases, races, suspension)
        self._hedger = hedger

    def race_again(self, lease: BatchLease) -> None:
        self._hedger.again(lease)

    def close(self, event: Closed, now: float, actions: list[Action]) -> None:
        lease = self._leases.close(event.lease_id, now)
        if lease is None:
            return
        self._races.schedule.forget(lease)
        report = believable(event.report, lease.predicted_s)
        if report is not event.report:
            event = replace(event, report=report)
        replica, end, other = lease.replica, event.end, lease.other
        self.learn_of_peers(replica, report, now)
        if end is DONE:
            self._answered(lease, event, now, actions)
        else:
            self._failed(lease, event, now, actions)
        if other is not None and other.is_suspended:
            # Rows that this lease did not answer.
            self._suspension.move(other, now, actions, ran=True)
        replica.learn(report, now, answered=end is DONE)
        head = replica.head()
        if head is not None and not head.opened:
            self._hedger.predecessor_ended(head)
        replica.predict_finish(now)
        if self._replicas.closed(replica, now, alive=end in (DONE, ABORTED)):
            self.forget(replica)

    def _answered(
        self, lease: BatchLease, event: Closed, now: float, actions: list[Action]
    ) -> None:
        requests, races, replica = self._requests, self._races, lease.replica
        report = event.report
        has_lost = lease.unsettled_charge is None and lease.copy_of is None
        races.counts.hedges_won += lease.origin is HEDGE and lease.live > 0
        if lease.is_copy and report.service_s > 0.0:
            _reconcile(races.budget, lease, report.service_s)
        _measure(races.counts, lease, report, now)
        self._hedger.slowness.observe(lease, now)
        members, failed = win(lease, event.failed, actions)
        self._learn_cost(lease, report, now)
        if lease.unsettled_charge is not None:
            requests.served.settle(lease.unsettled_charge, report.service_s, now)
        if not has_lost:
            replica.group.turnaround.observe(lease.batch.edge, now - lease.first_sent_at)
        requests.answered(members)
        requests.retry_failed(failed, lease, now, actions)
        self._suspension.take_late_answer(lease, event.failed, actions)

    def _failed(self, lease: BatchLease, event: Closed, now: float, actions: list[Action]) -> None:
        end = event.end
        if end is ABORTED and lease.overdue:
            self._hedger.slowness.observe(lease, now)
        if lease.is_probe:
            self._ejection.failed(lease.replica, now)
        other = lease.other
        stranded = fail(lease)
        has_run = lease.opened or event.report.service_s > 0.0 or event.failed
        if end is not LOST and not has_run:
            self.undo_race(lease, other)
        self.settle(lease, event, now)
        self.send_back(stranded, lease, event, now, actions)

    def _learn_cost(self, lease: BatchLease, report: Report, now: float) -> None:
        """Teach the cost model and the outlier policy what the batch took."""
        batch, replica = lease.batch, lease.replica
        rows, replica_id, cost = len(batch.rows), lease.replica_id, replica.group.cost
        expected_s = cost.predict(rows, batch.width)
        cost.observe(
            rows,
            batch.width,
            report.service_s,
            predicted_s=lease.predicted_s,
            replica_id=replica_id,
            edge=batch.edge,
        )
        if report.service_s > 0.0 and expected_s > 0.0:
            replica.slowdown = cost.slowdown(replica_id)
            self._ejection.judge(replica, report.service_s / expected_s, now)


def _reconcile(budget: Budget, copy: BatchLease, service_s: float) -> None:
    """Charge the budget what the copy took, instead of what was predicted. Where inputs are slow, a
    few copies then empty the budget, and copying stops. One copy that stalls by chance, which may
    take as long as the whole budget, is charged no more than `_MAX_PAID`."""
    paid_s = min(service_s, _MAX_PAID * copy.predicted_s)
    budget.pay(paid_s - copy.paid_s)
    set_race_cost(copy, copy.copy_of, paid_s)


def _measure(counts: DispatchCounts, lease: BatchLease, report: Report, now: float) -> None:
    """Measure the losses of staging by the answer to this lease. To be called before the replica
    learns that the lease has closed."""
    if report.service_s <= 0.0:
        return
    replica = lease.replica
    ended = now - report.transport_s / 2.0
    started = ended - report.service_s
    if lease.staged:
        waited = max(0.0, now - lease.sent_at - report.transport_s - report.service_s)
        counts.early_binding_s += _GAIN * (waited - counts.early_binding_s)
    if lease.sent_at <= replica.answered_at and not report.served:
        gap = max(0.0, started - replica.idle_from)
        counts.idle_gap_s += _GAIN * (gap - counts.idle_gap_s)
    replica.answered_at, replica.idle_from = now, ended
