"""The table of open leases, and how rows leave a lease: by an answer, a loss, a move or a race.

A lease takes a share of its replica's capacity when it opens and gives back exactly that share when
it closes: one slot for a batch, tokens for a stream (its row's length until progress reports
otherwise). Shares are whole units, so their sums are exact.

A row may stand in a lease and in a copy of that lease on another replica; the two *race*. The first
answer takes the row out of both. A lease that fails leaves the row to the other one. Of two tied
leases, the first to start takes the row over. A lease that no caller waits for any more is aborted,
once, and keeps its share until it has really closed.

`DispatchCounts` counts copies, retries and preemptions, and measures the two losses of staging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from routers.api.actions import Abort, Action
from routers.api.requests import Report
from routers.state.preemptible import PreemptibleStreams
from routers.state.replica_state import Lease, ReplicaState
from routers.state.rows import FormedBatch, LeaseHandle, Row

_GAIN = 0.05  # of the moving averages


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """How a copy is sent. `paid_s` is what the retry budget pays for the race; `hedge`, `probe` and
    `tied` are those of `Lease`."""

    paid_s: float
    hedge: bool = False
    probe: bool = False
    tied: bool = False


class LeaseTable:
    """All open leases by id. Ids start at 1 and are never used twice. `unknown_closes` counts
    closings of leases that are not open."""

    def __init__(self) -> None:
        self.open: dict[int, Lease] = {}
        self.streams = PreemptibleStreams()
        self.unknown_closes = 0
        self._last_id = 0

    def sign(
        self, replica: ReplicaState, batch: FormedBatch, now: float, *, preemptible: bool = True
    ) -> Lease:
        """Open a lease for the batch on the replica, and put the batch's rows into it."""
        lease = self._open(replica, batch, now)
        lease.unsettled_charge, lease.non_preemptible = batch, not preemptible
        for row in batch.rows:
            row.lease = lease
        return lease

    def sign_copy(
        self,
        lease: Lease,
        replica: ReplicaState,
        batch: FormedBatch,
        terms: CopyTerms,
        now: float,
    ) -> Lease:
        """Open a copy of some of the lease's members on another replica. Their flows have paid
        already, so the copy owes nothing."""
        copy = self._open(replica, batch, now)
        copy.hedge, copy.probe, copy.hedge_due = terms.hedge, terms.probe, True
        copy.tied = lease.tied = terms.tied
        copy.paid_s = lease.paid_s = terms.paid_s
        copy.copy_of, lease.copy = lease, copy
        copy.since, copy.repeats = lease.since, True
        for row in batch.rows:
            row.copy, row.copied = copy, True
        return copy

    def _open(self, replica: ReplicaState, batch: FormedBatch, now: float) -> Lease:
        self._last_id = lease_id = self._last_id + 1
        share = stream_share(batch.rows[0]) if replica.streams else 1.0
        starts_at = now if replica.streams else max(now, replica.finish_at)
        size, predicted_s = len(batch.rows), batch.predicted_s
        lease = Lease(lease_id, replica, batch, share, predicted_s, now, starts_at, now, size)
        lease.staged = bool(replica.leases) and not replica.streams
        lease.isolated = batch.rows[0].isolated
        replica.took(lease)
        self.open[lease_id] = lease
        if replica.streams:
            self.streams.began(lease)
        return lease

    def close(self, lease_id: int, now: float) -> Lease | None:
        """Take out the lease and give its share back. Returns None, and counts it, when no such
        lease is open."""
        lease = self.open.pop(lease_id, None)
        if lease is None:
            self.unknown_closes += 1
            return None
        if lease.replica.streams:
            self.streams.ended(lease)
        lease.replica.gave_back(lease, now)
        return lease

    def allow_copy_again(self, lease: Lease) -> list[Lease]:
        """One lease of a race never ran, so its rows may be copied once more. Returns the leases in
        which those rows stand now."""
        alone: dict[Lease, None] = {}
        for row in lease.batch.rows:
            if row.lease is not None and row.copy is None:
                row.copied = False
                alone[self.open[row.lease.lease_id]] = None
        return list(alone)

    def rows(self) -> int:
        """Number of rows that stand in leases; a row that stands in a copy too counts once."""
        return sum(lease.live for lease in self.open.values() if lease.copy_of is None)

    def resize(self, lease: Lease, held: float) -> None:
        """A stream lease now takes `held` units of capacity (rounded up, never negative)."""
        lease.replica.resize(lease, float(max(0, ceil(held))))


def stream_share(row: Row) -> float:
    """Tokens of a stream replica's capacity that the row takes, as far as can be told before it
    runs."""
    plan = row.tracked.plan
    return float(max(1, row.length)) if plan is None else float(ceil(plan.room))


def set_race_cost(lease: Lease, other: Lease | None, seconds: float) -> None:
    """Correct what the retry budget has paid for the race to `seconds`, on both leases that are in
    it."""
    lease.paid_s = seconds
    if other is not None:
        other.paid_s = seconds


def win(lease: Lease, failed: Sequence[int], actions: list[Action]) -> tuple[list[Row], list[Row]]:
    """The lease was answered, except for the rows at the positions `failed`.

    Returns the members that were answered, which now stand in no lease, and the failed members that
    stand in no other lease. A failed member that another replica runs too is left to that lease.
    """
    failed_rows = {lease.batch.rows[at] for at in failed}
    answered, stranded = [], []
    for row in lease.members():
        other = row.copy if row.lease is lease else row.lease
        if row in failed_rows:
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


def fail(lease: Lease) -> list[Row]:
    """The lease brought no answer. Returns its members that stand in no other lease; a lease that
    raced it goes on alone with the other members."""
    stranded = []
    for row in lease.members():
        if row.lease is lease:
            row.lease = row.copy
        if row.lease is None:
            stranded.append(row)
        row.copy = None
    _end_race(lease, lease.copy or lease.copy_of)
    return stranded


def withdraw(lease: Lease, rows: list[Row], actions: list[Action]) -> None:
    """These members leave the lease, and the lease that races it, to run elsewhere. Should an
    answer come after all, `late_rows` finds them again. Leases that no caller waits for now are
    aborted."""
    for row in rows:
        leases = tuple([each for each in (row.lease, row.copy) if each is not None])
        row.moved_from, row.lease, row.copy = leases, None, None
        for each in leases:
            _drop_member(each, actions)
    other = lease.copy or lease.copy_of
    if other is not None and not (lease.live and other.live):
        _end_race(lease, None)


def late_rows(lease: Lease, failed: Sequence[int]) -> list[Row]:
    """Rows that were moved away from this lease, did not fail in it, and have not been answered
    since."""
    rows = [row for at, row in enumerate(lease.batch.rows) if at not in failed]
    moved = [row for row in rows if lease in row.moved_from]
    return [row for row in moved if row.lease is not None or row.bucket is not None]


def start_first(lease: Lease, actions: list[Action]) -> None:
    """Of two tied leases this one has started first: its rows leave the other lease."""
    other = lease.copy or lease.copy_of
    if other is None:
        return
    for row in lease.members():
        if row.copy is not None:
            row.lease, row.copy = lease, None
            _drop_member(other, actions)
    _end_race(lease, lease)


def end_copy(copy: Lease, actions: list[Action]) -> None:
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


def _end_race(lease: Lease, survivor: Lease | None) -> None:
    """End the race. The lease that goes on with the rows (`survivor`) also settles what is owed for
    them."""
    other = lease.copy or lease.copy_of
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
    if not lease.live and not lease.probe:
        abort(lease, actions)


def abort(lease: LeaseHandle, actions: list[Action]) -> None:
    """Ask the lease's replica to drop it. Asked at most once a lease."""
    if not lease.aborted:
        lease.aborted = True
        actions.append(Abort(lease.lease_id, lease.replica_id))


@dataclass(slots=True)
class DispatchCounts:
    """Counts since the start, and two losses, EWMAs in seconds, from what answers report.

    Just-in-time staging is right when neither loss is worth naming.
    """

    hedges: int = 0
    hedges_won: int = 0
    ties: int = 0
    probes: int = 0
    retries: int = 0
    suspensions: int = 0
    moved_rows: int = 0
    late_rows_used: int = 0  # moved rows whose first replica answered them after all
    evictions: int = 0
    preempted: int = 0

    # Device seconds from the end of a batch to the start of the next, where the next was sent no
    # later than the answer to the first came, and no other gateway was served between.
    idle_gap_s: float = 0.0
    # Seconds that a staged batch waited at its replica: its rows could not be bound otherwise.
    early_binding_s: float = 0.0

    def answered(self, lease: Lease, report: Report, now: float) -> None:
        """Measure by the answer to this lease. Must be called before the replica learns that the
        lease has closed."""
        if report.service_s <= 0.0 or lease.replica.streams:
            return
        replica = lease.replica
        ended = now - report.transport_s / 2.0
        started = ended - report.service_s
        if lease.staged:
            waited = max(0.0, now - lease.sent_at - report.transport_s - report.service_s)
            self.early_binding_s += _GAIN * (waited - self.early_binding_s)
        if lease.sent_at <= replica.answered_at and not report.served:
            gap = max(0.0, started - replica.idle_from)
            self.idle_gap_s += _GAIN * (gap - self.idle_gap_s)
        replica.answered(now, ended)
