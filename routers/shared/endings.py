"""What becomes of rows whose lease has ended without an answer, and what do reports say of others?

- After `BUSY` rows go back to the queue free of charge, because nothing was started. After `LOST`,
  or when the model failed on a row, a row uses up its one retry.
- The charge for rows is settled once, when their last lease has ended, with the measured device
  seconds. It is refunded where nothing was served.
- A number in a report that cannot be true is replaced by one that says nothing, because one such
  number would spoil an account or an average for good.
`batch.closing` and `stream.progress` end the leases of their kind.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from routers.api.actions import Action
from routers.api.events import Closed
from routers.api.requests import ABORTED, BUSY, LOST, FlowWork, Report
from routers.shared.health import Suspension
from routers.shared.races import Races
from routers.shared.requests import RequestTable
from routers.state.leases import LeaseTable, set_race_cost
from routers.state.replica_state import AnyLease, AnyReplica
from routers.state.replicas import MIN_BLOCK_S, SUSPECT_S, ReplicaSet
from routers.state.rows import Row

MAX_S: Final = 1e6  # longer than any batch; a reported time above it is not believed
_MAX_VIRTUAL_S: Final = 1e15  # the same for start tags, which grow as long as a gateway runs


def believable(report: Report, predicted_s: float) -> Report:
    """The report, with every impossible number replaced: NaN, negative, or longer than a batch can
    take. (A flow whose start tag is NaN would never be found in the order again.) `predicted_s`
    replaces an impossible service time. Possible numbers are kept, however odd: the cost model and
    the outlier policy judge those."""
    if _is_believable(report):
        return report
    return replace(
        report,
        service_s=report.service_s if _is_time(report.service_s) else predicted_s,
        retry_in_s=_or_zero(report.retry_in_s),
        transport_s=_or_zero(report.transport_s),
        free_in_s=_or_zero(report.free_in_s),
        virtual_time=tuple(each if _is_virtual(each) else 0.0 for each in report.virtual_time),
        served=tuple(filter(_is_work, report.served)),
        waiting=tuple(filter(_is_work, report.waiting)),
    )


def _is_believable(report: Report) -> bool:
    """Whether all its numbers are possible. In loops, because all reports go through them."""
    for virtual in report.virtual_time:
        if not _is_virtual(virtual):
            return False
    for served in report.served:
        if not _is_work(served):
            return False
    for waiting in report.waiting:
        if not _is_work(waiting):
            return False
    return (
        _is_time(report.service_s)
        and _is_time(report.retry_in_s)
        and _is_time(report.transport_s)
        and _is_time(report.free_in_s)
    )


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= MAX_S  # false for a NaN


def _is_virtual(seconds: float) -> bool:
    return 0.0 <= seconds <= _MAX_VIRTUAL_S


def _is_work(work: FlowWork) -> bool:
    return work[0] >= 0 and _is_time(work[2])


def _or_zero(seconds: float) -> float:
    return seconds if _is_time(seconds) else 0.0


L = TypeVar("L", bound=AnyLease)


class Endings(Generic[L]):
    """What follows from the ends of leases, whatever their kind."""

    def __init__(
        self,
        requests: RequestTable,
        replicas: ReplicaSet[Any],
        leases: LeaseTable[L],
        races: Races[L],
        suspension: Suspension,
    ) -> None:
        self._requests, self._replicas, self._leases = requests, replicas, leases
        self._races, self._suspension = races, suspension
        self._ejection = suspension.ejection

    @abstractmethod
    def close(self, event: Closed, now: float, actions: list[Action]) -> None:
        """Give back what the lease takes of its replica, answer or queue its rows, learn from the
        report, and settle what is owed. An unknown lease id is counted and has no further
        effect."""

    @abstractmethod
    def race_again(self, lease: L) -> None:
        """The other lease of its race never started: the lease may be raced once more."""

    def learn_of_peers(self, replica: AnyReplica, report: Report, now: float) -> None:
        """Take in what the replica reports of other gateways: their virtual times, what it served
        for their flows, and what waits at them."""
        group, groups = replica.group, self._replicas.groups
        self._requests.served.learn(report, group.speed, now)
        served_s = sum([seconds for _, _, seconds in report.served]) if report.served else 0.0
        if report.seen or report.served:
            groups.peers.report(
                replica.spec.replica_id, served_s * group.speed, now, most=group.speed
            )
        if report.served:
            self._races.utilisation.served_elsewhere(served_s, self._replicas.running)

    def forget(self, replica: AnyReplica) -> None:
        """Drop what was learnt of a replica that has gone for good."""
        replica_id = replica.spec.replica_id
        replica.group.cost.forget(replica_id)
        self._replicas.groups.peers.forget(replica_id)
        self._ejection.gone(replica)

    def undo_race(self, lease: L, other: AnyLease | None) -> None:
        """The lease never ran. If it was in a race, with `other` if that is still open, refund the
        budget, because nothing was done twice, and let the rows be copied once more."""
        if lease.paid_s <= 0.0:
            return
        self._races.budget.refund(lease.paid_s)
        set_race_cost(lease, other, 0.0)
        for left in self._leases.allow_copy_again(lease):
            self.race_again(left)

    def settle(self, lease: L, event: Closed, now: float) -> None:
        """Settle what the lease without an answer owes. Only one that was aborted after it had
        started is charged: what was measured, or else predicted."""
        charge = lease.unsettled_charge
        if charge is None:
            return
        service_s = event.report.service_s
        if event.end is not ABORTED:
            self._requests.served.settle(charge, None, now)
        elif service_s > 0.0:
            self._requests.served.settle(charge, service_s, now)
        else:
            predicted_s = charge.predicted_s if lease.opened else None
            self._requests.served.settle(charge, predicted_s, now)

    def send_back(
        self, stranded: list[Row], lease: L, event: Closed, now: float, actions: list[Action]
    ) -> None:
        """Queue the rows of a lease without an answer again that stand in no other lease, or evict
        their requests; block its replica where the end says so."""
        requests, replica, end = self._requests, lease.replica, event.end
        if end is BUSY and not any(row.shown for row in stranded):
            if not lease.recalled:
                left_s = event.report.retry_in_s
                wait_s = left_s - replica.lead_s(left_s)
                self._replicas.block(replica, now + max(MIN_BLOCK_S, wait_s))
            requests.put_back(stranded, now, actions)
            return
        if end is ABORTED and lease.recalled:
            for row in stranded:
                row.stopped = True
            requests.put_back(stranded, now, actions)
            return
        if event.failed:
            requests.retry_failed(stranded, lease, now, actions)
            return
        if end is LOST:
            self._replicas.block(replica, now + SUSPECT_S, suspect=True)
            self._suspension.probe_instead(replica, now)
        requests.retry(stranded, lease, now, actions)
