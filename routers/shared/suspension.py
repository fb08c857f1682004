"""What becomes of a silent replica, and of the rows that it holds?

`Silence` decides that a replica is silent. A suspended replica gets no new lease until it speaks.
- `suspend` queues its rows again, once: those that may run twice and were not moved or retried.
- Rows of the batch that ran may have silenced it. They travel alone, like rows of a lost lease, and
  the retry budget pays for them. Rows staged behind it most likely did not start: they take their
  old places. A request that generates moves as long as nothing of its answer has come.
- Rows with a copy on a replica that is not suspended stay: the copy serves them.
The leases of moved rows stay open, so that a late answer is used if it is the first. Anything that
the replica says ends the suspension (`heard`). Its open leases serve as its probe. A replica whose
last lease is lost without a word is ejected and probed like an outlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from routers.api.actions import Action
from routers.shared.core_state import State
from routers.state.leases import late_rows, withdraw
from routers.state.replica_state import Lease, ReplicaState
from routers.state.rows import Row


def suspend(state: State, replica: ReplicaState, now: float, actions: list[Action]) -> None:
    """Give the replica no new lease, and move its rows."""
    replica.suspend()
    state.copies.counts.suspensions += 1
    head = replica.head()
    for lease in list(replica.leases.values()):
        move_rows(state, lease, now, actions, ran=lease is head or lease.opened)
    state.replicas.refresh(replica, now)


def move_rows(state: State, lease: Lease, now: float, actions: list[Action], *, ran: bool) -> None:
    """Queue those rows of a suspended replica's lease once more that may be moved. `ran`: the lease
    had started, or is believed to have."""
    requests = state.requests
    rows = [] if requests.is_closed or lease.begun else [r for r in lease.members() if _may_move(r)]
    if not rows:
        return
    state.copies.counts.moved_rows += len(rows)
    other = lease.copy or lease.copy_of
    withdraw(lease, rows, actions)
    for each in (lease, other):
        if each is not None and not each.live and (owed := each.take_unsettled()) is not None:
            requests.served.settle(owed, None, now)
    state.copies.schedule.remove(lease)
    state.stream_hedger.schedule.remove(lease)
    if ran and not lease.replica.streams:
        requests.retry(rows, lease, now, actions)
        return
    for row in rows:
        row.move(lease.replica_id)
    requests.put_back(rows, now, actions)


def take_late_answer(
    state: State, lease: Lease, failed: Sequence[int], actions: list[Action]
) -> None:
    """A lease whose rows had been moved was answered after all: its answers count for rows that
    have no other yet. `failed`: positions of rows without an answer."""
    rows = late_rows(lease, failed)
    state.copies.counts.late_rows_used += len(rows)
    state.requests.answered_late(rows, actions)


def heard(state: State, replica: ReplicaState, now: float) -> None:
    """The replica has said something: end its suspension, if it was suspended."""
    if replica.heard(now):
        state.replicas.refresh(replica, now)
        if replica.leases:
            state.silence.watch(replica, now)


def probe_instead(state: State, replica: ReplicaState, now: float) -> None:
    """If the suspended replica's last lease was lost, no answer can end the suspension any more:
    eject the replica instead, so that it is probed."""
    if replica.suspended and not replica.leases:
        replica.resume()
        state.copies.ejection.eject(replica, now)


def _may_move(row: Row) -> bool:
    """Whether the row may run again elsewhere, and stands only at suspended replicas."""
    if row.isolated or row.moved_from or not row.tracked.request.retryable:
        return False
    return all(each is None or each.is_suspended for each in (row.lease, row.copy))
