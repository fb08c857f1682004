"""What becomes of a lease's rows and replica when it ends, and what is learnt from it?

- Rows are answered, stay in the other lease of a race (a copy or the lease that it copies), or go
  back to the queue. After `BUSY` they go back free of charge, because nothing was started. After
  `LOST`, or when the model failed on a row, a row uses up its one retry.
- Only an answer is a sample of cost, and only a race's first answer is a sample of turnaround.
- The charge for rows is settled once, when their last lease has ended, with the measured device
  seconds. It is refunded where nothing was served.
- A number in a report that cannot be true is replaced by one that says nothing, because one such
  number would spoil an account or an average for good.

The dispatcher calls `close_lease`, once for each `Closed` event.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from routers.api.actions import Action
from routers.api.events import Closed
from routers.api.requests import FlowWork, LeaseEnd, Report
from routers.shared.core_state import State
from routers.shared.stream_leases import ended as end_stream
from routers.shared.suspension import move_rows, probe_instead, take_late_answer
from routers.state.budget import Budget
from routers.state.leases import fail, set_race_cost, win
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import MIN_BLOCK_S, SUSPECT_S

MAX_S = 1e6  # longer than any batch; a reported time above it is not believed
_MAX_VIRTUAL_S = 1e15  # the same for start tags, which grow as long as a gateway runs


def believable(report: Report, predicted_s: float) -> Report:
    """The report, with every impossible number replaced: NaN, negative, or longer than a batch can
    take. (A flow whose start tag is NaN would never be found in the order again.) `predicted_s`
    replaces an impossible service time. Possible numbers are kept, however odd: the cost model and
    the outlier policy judge those."""
    scalars = (report.retry_in_s, report.transport_s, report.free_in_s)
    if (
        _is_time(report.service_s)
        and all(map(_is_time, scalars))
        and all(map(_is_virtual, report.virtual_time))
        and all(map(_is_work, report.served))
        and all(map(_is_work, report.waiting))
    ):
        return report
    virtual = report.virtual_time
    return replace(
        report,
        service_s=report.service_s if _is_time(report.service_s) else predicted_s,
        retry_in_s=_or_zero(report.retry_in_s),
        transport_s=_or_zero(report.transport_s),
        free_in_s=_or_zero(report.free_in_s),
        virtual_time=tuple(each if _is_virtual(each) else 0.0 for each in virtual),
        served=tuple(filter(_is_work, report.served)),
        waiting=tuple(filter(_is_work, report.waiting)),
    )


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= MAX_S  # false for a NaN


def _is_virtual(seconds: float) -> bool:
    return 0.0 <= seconds <= _MAX_VIRTUAL_S


def _is_work(work: FlowWork) -> bool:
    return work[0] >= 0 and _is_time(work[2])


def _or_zero(seconds: float) -> float:
    return seconds if _is_time(seconds) else 0.0


def close_lease(state: State, event: Closed, now: float, actions: list[Action]) -> None:
    """Give back the lease's share, answer or queue its rows, learn from the report, and settle what
    is owed. An unknown lease id is counted and has no further effect."""
    lease = state.leases.close(event.lease_id, now)
    if lease is None:
        return
    state.copies.schedule.forget(lease)
    state.stream_hedger.schedule.forget(lease)
    report = believable(event.report, lease.predicted_s)
    if report is not event.report:
        event = replace(event, report=report)
    replica, end = lease.replica, event.end
    learn_of_peers(state, replica, report, now)
    answered = end is LeaseEnd.DONE
    if lease.running is not None:
        answered = answered and not event.failed  # a stream has one row: if that failed, no answer
        if answered:
            state.stream_hedger.wins(lease, actions)
        ended = LeaseEnd.ABORTED if event.failed else end
        end_stream(state, lease, ended, report.tokens, now)
        engine = replica.group.engine
        replica.group.max_streams = inf if engine is None else engine.max_leases
    other = lease.copy or lease.copy_of
    if answered:
        _answered(state, lease, event, now, actions)
    else:
        _failed(state, lease, event, now, actions)
    if other is not None and other.is_suspended:
        move_rows(state, other, now, actions, ran=True)  # rows that this lease did not answer
    replica.learn(report, now, answered=answered)
    for staged in replica.leases.values():
        if not staged.opened:
            state.copies.predecessor_ended(staged)
        break
    alive = end in (LeaseEnd.DONE, LeaseEnd.ABORTED)
    if state.replicas.closed(replica, now, alive=alive):
        forget_replica(state, replica)
    elif lease.running is not None:
        state.stream_hedger.closed(lease, end, now)


def learn_of_peers(state: State, replica: ReplicaState, report: Report, now: float) -> None:
    """Take in what the replica reports of other gateways: their virtual times, what it served for
    their flows, and what waits at them."""
    state.requests.served.learn(report, replica.group.speed, now)
    served_s = sum([seconds for _, _, seconds in report.served])
    if report.seen or report.served:
        replica_id, group = replica.spec.replica_id, replica.group
        state.replicas.groups.peers.report(
            replica_id, served_s * group.speed, now, most=group.speed
        )
    if report.served:
        state.copies.utilisation.served_elsewhere(served_s, state.replicas.running)


def forget_replica(state: State, replica: ReplicaState) -> None:
    """Drop what was learnt of a replica that has gone for good."""
    replica.group.cost.forget(replica.spec.replica_id)
    state.replicas.groups.peers.forget(replica.spec.replica_id)
    if replica.group.engine is not None:
        replica.group.engine.forget(replica.spec.replica_id)
    if state.requests.generations is not None:
        state.requests.generations.forget(replica.spec.replica_id)
    state.copies.ejection.gone(replica)


def _answered(state: State, lease: Lease, event: Closed, now: float, actions: list[Action]) -> None:
    copies, replica, report = state.copies, lease.replica, event.report
    has_lost = lease.unsettled_charge is None and lease.copy_of is None
    copies.counts.hedges_won += lease.hedge and lease.live > 0
    if lease.repeats and report.service_s > 0.0 and not replica.streams:
        _reconcile(copies.budget, lease, report.service_s)
    copies.counts.answered(lease, report, now)
    copies.hedging.observe(lease, now)
    members, failed = win(lease, event.failed, actions)
    if lease.running is None:
        _learn_cost(state, lease, report, now)
    if lease.unsettled_charge is not None:
        state.requests.served.settle(lease.unsettled_charge, report.service_s, now)
    if not has_lost:
        replica.group.turnaround.observe(lease.batch.edge, now - lease.since)
    state.requests.answered(members)
    state.requests.retry_failed(failed, lease, now, actions)
    take_late_answer(state, lease, event.failed, actions)


def _failed(state: State, lease: Lease, event: Closed, now: float, actions: list[Action]) -> None:
    replica, end, copies = lease.replica, event.end, state.copies
    if end is LeaseEnd.ABORTED and lease.overdue:
        copies.hedging.observe(lease, now)
    if lease.probe:
        copies.ejection.failed(replica, now)
    other = lease.copy or lease.copy_of
    stranded = fail(lease)
    if other is not None and lease.running is not None:
        state.stream_hedger.other_lease_lost(other, now)
    has_run = lease.opened or event.report.service_s > 0.0 or event.failed
    if end is not LeaseEnd.LOST and not has_run:
        _undo_race(state, lease, other)
    if lease.unsettled_charge is not None:
        state.requests.served.settle(lease.unsettled_charge, _service_s(lease, event), now)
    if end is LeaseEnd.BUSY and not any(row.shown for row in stranded):
        if not lease.recalled:
            left_s = event.report.retry_in_s
            wait_s = left_s - replica.lead_s(left_s)
            state.replicas.block(replica, now + max(MIN_BLOCK_S, wait_s))
        state.requests.put_back(stranded, now, actions)
        return
    if end is LeaseEnd.ABORTED and lease.recalled:
        for row in stranded:
            row.stop()
        state.requests.put_back(stranded, now, actions)
        return
    if event.failed:
        state.requests.retry_failed(stranded, lease, now, actions)
        return
    if end is LeaseEnd.LOST:
        state.replicas.block(replica, now + SUSPECT_S, suspect=True)
        probe_instead(state, replica, now)
    state.requests.retry(stranded, lease, now, actions)


def _service_s(lease: Lease, event: Closed) -> float | None:
    """Device seconds that a lease without an answer is charged; None: none, refund it. Only a lease
    that was aborted after it had started is charged: what was measured, or else predicted."""
    if event.end is not LeaseEnd.ABORTED:
        return None
    if event.report.service_s > 0.0:
        return event.report.service_s
    return lease.predicted_s if lease.opened else None


def _reconcile(budget: Budget, copy: Lease, service_s: float) -> None:
    """Charge the budget what the copy took, instead of what was predicted. Where inputs are slow, a
    few copies then empty the budget, and copying stops."""
    budget.pay(service_s - copy.paid_s)
    set_race_cost(copy, copy.copy_of, service_s)


def _undo_race(state: State, lease: Lease, other: Lease | None) -> None:
    """The lease never ran. If it was in a race, refund the budget, because nothing was done twice,
    and let the rows be copied once more."""
    if lease.paid_s <= 0.0:
        return
    copies = state.copies
    copies.budget.refund(lease.paid_s)
    set_race_cost(lease, other, 0.0)
    for left in copies.leases.allow_copy_again(lease):
        if left.running is None:
            copies.again(left)
        else:
            state.stream_hedger.again(left)


def _learn_cost(state: State, lease: Lease, report: Report, now: float) -> None:
    """Teach the cost model and the outlier policy what the batch took."""
    batch, replica = lease.batch, lease.replica
    rows, replica_id = len(batch.rows), lease.replica_id
    cost = replica.group.cost
    expected_s = cost.predict(rows, batch.width)
    cost.observe(
        rows,
        batch.width,
        report.service_s,
        predicted_s=lease.predicted_s,
        replica_id=replica_id,
        edge=batch.edge,
    )
    if report.service_s > 0.0 and expected_s > 0.0 and not replica.streams:
        replica.runs_at(cost.slowdown(replica_id))
        state.copies.ejection.judge(replica, report.service_s / expected_s, now)
