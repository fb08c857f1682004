"""A lease has ended: what becomes of its rows, its replica, and what is known of both?

Rows are answered, go on in the lease that races this one, or go back to the queue: `busy` costs
them nothing (nothing was started), `lost` their one retry. Only an answer is a sample of time and
cost. What was charged is settled once a row's last lease has ended: with the seconds the device
worked, or refunded where nothing was served.
"""

from __future__ import annotations

from routers.leases import Lease, fail, win
from routers.replicas import MIN_BLOCK_S, SUSPECT_S
from routers.snapshots import State
from routers.types import Action, Closed, LeaseEnd, Report


def close_lease(state: State, event: Closed, now: float, actions: list[Action]) -> None:
    lease = state.leases.close(event.lease_id, now)
    if lease is None:
        return
    holder, end, report = lease.holder, event.end, event.report
    state.requests.learn(report, now)
    if end is LeaseEnd.DONE:
        _answered(state, lease, report, now, actions)
    else:
        _failed(state, lease, event, now, actions)
    holder.learn(report, now, answered=end is LeaseEnd.DONE)
    alive = end in (LeaseEnd.DONE, LeaseEnd.ABORTED)
    if state.replicas.closed(holder, now, alive=alive):
        state.cost.forget(holder.replica.replica_id)


def _answered(
    state: State, lease: Lease, report: Report, now: float, actions: list[Action]
) -> None:
    has_lost = lease.owes is None and lease.copy_of is None
    members = win(lease, actions)
    _sample(state, lease, report)
    if lease.copy_of is None:
        state.requests.settle(lease.goods, report.service_s, now)
    if not has_lost:
        state.requests.turnaround.observe(lease.goods.edge, now - lease.since)
    state.requests.answered(members)


def _failed(state: State, lease: Lease, event: Closed, now: float, actions: list[Action]) -> None:
    holder, end = lease.holder, event.end
    stranded = fail(lease)
    if stranded and end is not LeaseEnd.ABORTED:
        state.requests.settle(lease.goods, None, now)
    if end is LeaseEnd.BUSY:
        if not lease.wanted_back:
            state.replicas.block(holder, now + max(MIN_BLOCK_S, event.report.retry_in_s))
        state.requests.put_back(stranded, now, actions)
        return
    if end is LeaseEnd.LOST:
        state.replicas.block(holder, now + SUSPECT_S, suspect=True)
    state.requests.retry(stranded, lease.replica_id, now, actions)


def _sample(state: State, lease: Lease, report: Report) -> None:
    goods = lease.goods
    state.cost.observe(
        len(goods.rows),
        goods.width,
        report.service_s,
        predicted_s=lease.predicted_s,
        replica_id=lease.replica_id,
        edge=goods.edge,
    )
