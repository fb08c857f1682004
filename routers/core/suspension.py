"""What becomes of the work of a replica that is silent, and of the replica.

It gets nothing new. Rows that may run twice, and have not been moved or retried before, go
elsewhere once. What ran may be what silenced it: those rows travel alone, like those of a lost
lease, and are paid for from the same budget. What was staged behind it has most likely not started:
it takes its old places. A request that generates moves as long as nothing of its answer has come.
Rows in a copy on a replica that speaks have been moved by that. The leases stay open: an answer
that comes after all is taken, if it is the first. Anything the replica says ends it; what it still
holds is its probe, and one whose last lease is given up for lost is probed as an outlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from routers.api.actions import Action
from routers.core.core_state import State
from routers.state.leases import late_rows, withdraw
from routers.state.replica_state import Lease, ReplicaState
from routers.state.rows import Row


def suspend(state: State, replica: ReplicaState, now: float, actions: list[Action]) -> None:
    replica.suspend()
    state.copies.counts.suspensions += 1
    head = replica.head()
    for lease in list(replica.leases.values()):
        move_rows(state, lease, now, actions, ran=lease is head or lease.opened)
    state.replicas.refresh(replica, now)


def move_rows(state: State, lease: Lease, now: float, actions: list[Action], *, ran: bool) -> None:
    """Of one lease at a suspended replica."""
    requests = state.requests
    rows = [] if requests.is_closed or lease.begun else [r for r in lease.members() if _moves(r)]
    if not rows:
        return
    state.copies.counts.moved_rows += len(rows)
    other = lease.copy or lease.copy_of
    withdraw(lease, rows, actions)
    for each in (lease, other):
        if each is not None and not each.live and (owed := each.take_owed()) is not None:
            requests.served.settle(owed, None, now)
    state.copies.schedule.remove(lease)
    state.stream_copies.schedule.remove(lease)
    if ran and not lease.replica.streams:
        requests.retry(rows, lease, now, actions)
        return
    for row in rows:
        row.move(lease.replica_id)
    requests.put_back(rows, now, actions)


def take_late_answer(
    state: State, lease: Lease, failed: Sequence[int], actions: list[Action]
) -> None:
    """A lease whose rows had been moved was answered, but for those at the positions `failed`."""
    rows = late_rows(lease, failed)
    state.copies.counts.late_rows_used += len(rows)
    state.requests.answered_late(rows, actions)


def heard(state: State, replica: ReplicaState, now: float) -> None:
    """It has said something."""
    if replica.heard(now):
        state.replicas.refresh(replica, now)
        if replica.leases:
            state.silence.watch(replica, now)


def probe_instead(state: State, replica: ReplicaState, now: float) -> None:
    """Its last lease was given up without a word of it: nothing is left that could be heard."""
    if replica.suspended and not replica.leases:
        replica.resume()
        state.copies.ejection.eject(replica, now)


def _moves(row: Row) -> bool:
    if row.retried or row.moved_from or not row.tracked.request.retryable:
        return False
    return all(each is None or each.is_suspended for each in (row.lease, row.copy))
