"""The leases: every batch or stream that a replica works on, and how rows leave it again.

A lease takes a share of its replica's capacity when it opens and gives back exactly that when it
closes: one slot for a batch, tokens for a stream (its row's length until progress says otherwise).
Shares are whole units, so sums are exact. A row may stand in a lease and in a copy of it on another
replica: the first answer takes it out of both; a lease that fails leaves it to the other one; of
two tied leases the first to start takes it over. A lease that nobody waits for any more is aborted,
once, and keeps its share until it has really closed. `DispatchCounts` counts copies, retries and
preemptions, and measures the two losses of staging against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from routers.api.actions import Abort, Action
from routers.api.requests import Report
from routers.state.formed_batch import FormedBatch
from routers.state.preemptible import PreemptibleStreams
from routers.state.replica_state import Lease, ReplicaState
from routers.state.rows import LeaseHandle, Row

_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """Of a copy. `paid_s`: what the budget pays for the race; the others are a lease's."""

    paid_s: float
    hedge: bool = False
    probe: bool = False
    tied: bool = False


class LeaseTable:
    """All open leases by id. Ids start at 1 and are never used twice."""

    def __init__(self) -> None:
        self.open: dict[int, Lease] = {}
        self.streams = PreemptibleStreams()
        self.unknown_closes = 0
        self._last_id = 0

    def sign(
        self, replica: ReplicaState, batch: FormedBatch, now: float, *, preemptible: bool = True
    ) -> Lease:
        lease = self._open(replica, batch, now)
        lease.owes, lease.non_preemptible = batch, not preemptible
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
        """A copy of some of the lease's members, whose flows have paid already."""
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
        lease.is_retry = batch.rows[0].retried
        replica.took(lease)
        self.open[lease_id] = lease
        if replica.streams:
            self.streams.began(lease)
        return lease

    def close(self, lease_id: int, now: float) -> Lease | None:
        """The lease, its share given back; None, and counted, when there is no such lease."""
        lease = self.open.pop(lease_id, None)
        if lease is None:
            self.unknown_closes += 1
            return None
        if lease.replica.streams:
            self.streams.ended(lease)
        lease.replica.gave_back(lease, now)
        return lease

    def uncopy(self, lease: Lease) -> list[Lease]:
        """The lease never ran, so that its rows may be copied once more: the leases in which they
        stand now."""
        alone: dict[Lease, None] = {}
        for row in lease.batch.rows:
            if row.lease is not None and row.copy is None:
                row.copied = False
                alone[self.open[row.lease.lease_id]] = None
        return list(alone)

    def rows(self) -> int:
        """Rows that stand in leases, those in a copy as well counted once."""
        return sum(lease.live for lease in self.open.values() if lease.copy_of is None)

    def resize(self, lease: Lease, held: float) -> None:
        """A stream lease now occupies `held` units of capacity (rounded up, never negative)."""
        lease.replica.resize(lease, float(max(0, ceil(held))))


def stream_share(row: Row) -> float:
    """What the row takes of a stream replica's capacity, as far as can be told before it runs."""
    plan = row.tracked.plan
    return float(max(1, row.length)) if plan is None else float(ceil(plan.room))


def race_costs(lease: Lease, other: Lease | None, seconds: float) -> None:
    """What the budget has paid for the race is put right, where both of its leases know it."""
    lease.paid_s = seconds
    if other is not None:
        other.paid_s = seconds


def win(lease: Lease, failed: Sequence[int], actions: list[Action]) -> tuple[list[Row], list[Row]]:
    """It was answered but for the rows at the positions `failed`: its members that were, which now
    stand in no lease, and those that failed and stand in no other. What failed and runs elsewhere
    too is left to the other lease."""
    without = {lease.batch.rows[at] for at in failed}
    answered, stranded = [], []
    for row in lease.members():
        other = row.copy if row.lease is lease else row.lease
        if row in without:
            row.lease, row.copy = other, None
            if other is None:
                stranded.append(row)
            continue
        row.lease = row.copy = None
        if other is not None:
            _leave(other, actions)
        answered.append(row)
    _part(lease, lease)
    return answered, stranded


def fail(lease: Lease) -> list[Row]:
    """It brought nothing: its members that stand in no other lease. The others race on alone."""
    stranded = []
    for row in lease.members():
        if row.lease is lease:
            row.lease = row.copy
        if row.lease is None:
            stranded.append(row)
        row.copy = None
    _part(lease, lease.copy or lease.copy_of)
    return stranded


def withdraw(lease: Lease, rows: list[Row], actions: list[Action]) -> None:
    """These members go elsewhere; what races the lease loses them too. Where an answer comes after
    all, `late_rows` finds them again. Leases that nobody waits for now are aborted."""
    for row in rows:
        leases = tuple([each for each in (row.lease, row.copy) if each is not None])
        row.moved_from, row.lease, row.copy = leases, None, None
        for each in leases:
            _leave(each, actions)
    other = lease.copy or lease.copy_of
    if other is not None and not (lease.live and other.live):
        _part(lease, None)


def late_rows(lease: Lease, failed: Sequence[int]) -> list[Row]:
    """Rows that had been moved from it, did not fail there, and are not answered yet."""
    rows = [row for at, row in enumerate(lease.batch.rows) if at not in failed]
    moved = [row for row in rows if lease in row.moved_from]
    return [row for row in moved if row.lease is not None or row.queue is not None]


def start_first(lease: Lease, actions: list[Action]) -> None:
    """Of two tied leases it has started first: its rows leave the other one."""
    other = lease.copy or lease.copy_of
    if other is None:
        return
    for row in lease.members():
        if row.copy is not None:
            row.lease, row.copy = lease, None
            _leave(other, actions)
    _part(lease, lease)


def forsake(copy: Lease, actions: list[Action]) -> None:
    """A copy leaves its rows to the lease that it repeats."""
    other = copy.copy_of
    for row in copy.members():
        row.copy = None
        _leave(copy, actions)
    _part(copy, other)


def abandon(row: Row, actions: list[Action]) -> None:
    """Nobody waits for this leased row any more; a lease that nobody waits for is aborted."""
    lease, copy = row.lease, row.copy
    row.lease = row.copy = None
    if lease is not None:
        _leave(lease, actions)
    if copy is not None:
        _leave(copy, actions)


def _part(lease: Lease, heir: Lease | None) -> None:
    """The race is over; who goes on with the rows also settles what is owed for them."""
    other = lease.copy or lease.copy_of
    if other is None:
        return
    loser = other if heir is lease else lease
    if heir is not None and heir.owes is None and (heir is lease or heir.live):
        heir.owes, loser.owes = loser.owes, None
    lease.copy = lease.copy_of = other.copy = other.copy_of = None


def _leave(lease: LeaseHandle, actions: list[Action]) -> None:
    lease.live -= 1
    if not lease.live and not lease.probe:
        abort(lease, actions)


def abort(lease: LeaseHandle, actions: list[Action]) -> None:
    """Ask its replica to drop it, once."""
    if not lease.aborted:
        lease.aborted = True
        actions.append(Abort(lease.lease_id, lease.replica_id))


@dataclass(slots=True)
class DispatchCounts:
    """Counts since the start, and two losses, EWMAs in seconds, from what answers report.

    `idle_gap_s`: device seconds from the end of a batch to the start of the next, where that had
    been sent before or was sent at once. `early_binding_s`: that a staged batch waited at its
    replica, in which its rows could not be bound otherwise. Just-in-time staging is right when
    neither is worth naming."""

    hedges: int = 0
    hedges_won: int = 0
    ties: int = 0
    probes: int = 0
    retries: int = 0
    suspensions: int = 0
    moved_rows: int = 0
    late_rows_used: int = 0
    evictions: int = 0
    preempted: int = 0
    idle_gap_s: float = 0.0
    early_binding_s: float = 0.0

    def answered(self, lease: Lease, report: Report, now: float) -> None:
        """To be called before the replica learns that the lease has closed."""
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
