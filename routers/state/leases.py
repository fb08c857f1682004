"""The table of open leases, and how rows leave a lease: by an answer, a loss, a move or a race.

A row may stand in a lease and in a copy of that lease on another replica; the two *race*. The first
answer takes the row out of both. A lease that fails leaves the row to the other one. Of two tied
leases, the first to start takes the row over. A lease that no caller waits for any more is aborted,
once, and keeps its share of its replica until it has really closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from routers.api.actions import Abort, Action
from routers.state.replica_state import AnyLease, Origin
from routers.state.rows import LeaseHandle, Row

L = TypeVar("L", bound=AnyLease)


class LeaseTable(Generic[L]):
    """All open leases by id. Ids start at 1 and are never used twice. `unknown_closes` counts
    closings of leases that are not open."""

    def __init__(self) -> None:
        self.open: dict[int, L] = {}
        self.unknown_closes = 0
        self._last_id = 0

    def next_id(self) -> int:
        """The id of a lease that is opened now."""
        self._last_id += 1
        return self._last_id

    def sign(self, lease: L) -> None:
        """Open the lease for rows that waited, and put them into it."""
        self.open[lease.lease_id] = lease
        for row in lease.rows:
            row.lease = lease

    def sign_copy(self, copy: L, lease: L, origin: Origin, paid_s: float, *, tied: bool) -> None:
        """Open a copy of some of the lease's members on another replica. Their flows have paid
        already, so the copy owes nothing. `paid_s`: what the retry budget pays for the race."""
        self.open[copy.lease_id] = copy
        copy.origin, copy.hedge_due = origin, True
        copy.tied = lease.tied = tied
        copy.paid_s = lease.paid_s = paid_s
        copy.copy_of, lease.copy = lease, copy
        copy.first_sent_at = lease.first_sent_at
        for row in copy.rows:
            row.copy, row.copied = copy, True

    def close(self, lease_id: int, now: float) -> L | None:
        """Take out the lease and give its share back. Returns None, and counts it, when no such
        lease is open."""
        lease = self.open.pop(lease_id, None)
        if lease is None:
            self.unknown_closes += 1
            return None
        lease.replica.gave_back(lease, now)
        return lease

    def allow_copy_again(self, lease: L) -> list[L]:
        """One lease of a race never ran, so its rows may be copied once more. Returns the leases in
        which those rows stand now."""
        alone: dict[L, None] = {}
        for row in lease.rows:
            if row.lease is not None and row.copy is None:
                row.copied = False
                alone[self.open[row.lease.lease_id]] = None
        return list(alone)

    def rows(self) -> int:
        """Number of rows that stand in leases; a row that stands in a copy too counts once."""
        return sum(lease.live for lease in self.open.values() if lease.copy_of is None)


def copiable(lease: AnyLease) -> list[Row]:
    """The lease's members that may run a second time; none where it is in a race already."""
    if lease.other is not None:
        return []
    return [
        row
        for row in lease.members()
        if row.tracked.request.retryable and not row.copied and not row.isolated
    ]


def row_ids(rows: list[Row]) -> tuple[tuple[int, int], ...]:
    """The rows as `api.actions.Dispatch` names them: (request_id, row index)."""
    return tuple([(row.tracked.request.request_id, row.index) for row in rows])


def set_race_cost(lease: AnyLease, other: AnyLease | None, seconds: float) -> None:
    """Correct what the retry budget has paid for the race to `seconds`, on both leases that are in
    it."""
    lease.paid_s = seconds
    if other is not None:
        other.paid_s = seconds


def win(
    lease: AnyLease, failed: Sequence[int], actions: list[Action]
) -> tuple[list[Row], list[Row]]:
    """The lease was answered, except for the rows at the positions `failed`.

    Returns the members that were answered, which now stand in no lease, and the failed members that
    stand in no other lease. A failed member that another replica runs too is left to that lease.
    """
    failed_rows = {lease.rows[at] for at in failed} if failed else None
    answered: list[Row] = []
    stranded: list[Row] = []
    for row in lease.members():
        other = row.copy if row.lease is lease else row.lease
        if failed_rows is not None and row in failed_rows:
            row.lease, row.copy = other, None
            if other is None:
                stranded.append(row)
            continue
        row.lease = row.copy = None
        if other is not None:
            _drop_member(other, actions)
        answered.append(row)
    _end_race(lease, lease)
    return answered, stranded


def fail(lease: AnyLease) -> list[Row]:
    """The lease brought no answer. Returns its members that stand in no other lease; a lease that
    raced it goes on alone with the other members."""
    stranded = []
    for row in lease.members():
        if row.lease is lease:
            row.lease = row.copy
        if row.lease is None:
            stranded.append(row)
        row.copy = None
    _end_race(lease, lease.other)
    return stranded


def withdraw(lease: AnyLease, rows: list[Row], actions: list[Action]) -> None:
    """These members leave the lease, and the lease that races it, to run elsewhere. Should an
    answer come after all, `late_rows` finds them again. Leases that no caller waits for now are
    aborted."""
    for row in rows:
        leases = tuple([each for each in (row.lease, row.copy) if each is not None])
        row.moved_from, row.lease, row.copy = leases, None, None
        for each in leases:
            _drop_member(each, actions)
    other = lease.other
    if other is not None and not (lease.live and other.live):
        _end_race(lease, None)


def late_rows(lease: AnyLease, failed: Sequence[int]) -> list[Row]:
    """Rows that were moved away from this lease, did not fail in it, and have not been answered
    since."""
    found: list[Row] = []
    for at, row in enumerate(lease.rows):
        if not row.moved_from or at in failed or lease not in row.moved_from:
            continue
        if row.lease is not None or row.bucket is not None:
            found.append(row)
    return found


def start_first(lease: AnyLease, actions: list[Action]) -> None:
    """Of two tied leases this one has started first: its rows leave the other lease."""
    other = lease.other
    if other is None:
        return
    for row in lease.members():
        if row.copy is not None:
            row.lease, row.copy = lease, None
            _drop_member(other, actions)
    _end_race(lease, lease)


def end_copy(copy: AnyLease, actions: list[Action]) -> None:
    """The copy gives up the race and leaves its rows to the lease that it copies."""
    other = copy.copy_of
    for row in copy.members():
        row.copy = None
        _drop_member(copy, actions)
    _end_race(copy, other)


def abandon(row: Row, actions: list[Action]) -> None:
    """The caller of this leased row has left. A lease that no caller waits for is aborted."""
    lease, copy = row.lease, row.copy
    row.lease = row.copy = None
    if lease is not None:
        _drop_member(lease, actions)
    if copy is not None:
        _drop_member(copy, actions)


def _end_race(lease: AnyLease, survivor: AnyLease | None) -> None:
    """End the race. The lease that goes on with the rows (`survivor`) also settles what is owed for
    them."""
    other = lease.other
    if other is None:
        return
    loser = other if survivor is lease else lease
    if (
        survivor is not None
        and survivor.unsettled_charge is None
        and (survivor is lease or survivor.live)
    ):
        survivor.unsettled_charge, loser.unsettled_charge = loser.unsettled_charge, None
    lease.copy = lease.copy_of = other.copy = other.copy_of = None


def _drop_member(lease: LeaseHandle, actions: list[Action]) -> None:
    """One member fewer waits for the lease; without any, it is aborted, unless it is a probe."""
    lease.live -= 1
    if not lease.live and not lease.is_probe:
        abort(lease, actions)


def abort(lease: LeaseHandle, actions: list[Action]) -> None:
    """Ask the lease's replica to drop it. Asked at most once a lease."""
    if not lease.aborted:
        lease.aborted = True
        actions.append(Abort(lease.lease_id, lease.replica_id))
