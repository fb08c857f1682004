"""Who holds what: every batch or stream that a replica works on, and how much of it is taken.

A lease takes a share of its replica's capacity when it opens and gives back exactly that when it
closes: one slot for a batch, tokens for a stream (its row's length until progress says otherwise).
Shares are whole units, so sums are exact. A row may stand in a lease and in a copy of it on another
replica: the first answer takes it out of both, a lease that nobody waits for any more is aborted,
and it keeps its share until it has really closed. Timing decisions are `replicas`' and `hedging`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from routers.preemption import Streams
from routers.replica_capacity import FormedBatch
from routers.replica_state import ReplicaState
from routers.streams.leases import Running
from routers.tickets import Row


@dataclass(slots=True, eq=False)
class Lease:
    """`live`: members that have not left meanwhile. `starts_at` is predicted until `opened`.
    `since`: when its rows were first sent, in this lease or in the one it copies. `owes`: the goods
    whose charge is to be settled when it ends. `copy_of`: the lease whose rows it repeats, while
    that is open; `copy`: the reverse. `repeats`: is a copy; `hedge`: one sent late. `probe`: a copy
    that asks how its replica does; it runs to its end. `tied`: the first of the two to start
    cancels the other. `paid_s`: what the budget paid for the race. `staged`: sent while another
    ran. `trial`: of a row that was lost once. `ripe`: should be, or is, raced. `overdue`: far
    beyond its prediction.
    `firm`: not given up for what is more urgent. `wanted_back`: the dispatcher has asked for its
    rows. `aborted`: its replica was told to drop it. `moment`: when `hedging` looks at it next.
    `running`: of one that generates."""

    lease_id: int
    holder: ReplicaState
    goods: FormedBatch
    share: float
    predicted_s: float
    sent_at: float
    starts_at: float
    since: float
    live: int
    owes: FormedBatch | None = None
    opened: bool = False
    copy_of: Lease | None = None
    copy: Lease | None = None
    repeats: bool = False
    hedge: bool = False
    tied: bool = False
    probe: bool = False
    paid_s: float = 0.0
    staged: bool = False
    trial: bool = False
    ripe: bool = False
    overdue: bool = False
    firm: bool = False
    wanted_back: bool = False
    aborted: bool = False
    moment: float = inf
    running: Running | None = None

    def members(self) -> list[Row]:
        """Rows that still wait for this lease, in the order they were sent."""
        return [row for row in self.goods.rows if row.lease is self or row.copy is self]

    @property
    def replica_id(self) -> str:
        return self.holder.replica.replica_id


class LeaseBook:
    """All open leases by id. Ids start at 1 and are never used twice."""

    def __init__(self) -> None:
        self.open: dict[int, Lease] = {}
        self.streams = Streams()
        self.unknown_closes = 0
        self._last_id = 0

    def sign(
        self, holder: ReplicaState, goods: FormedBatch, predicted_s: float, now: float
    ) -> Lease:
        lease = self._open(holder, goods, predicted_s, now)
        lease.owes = goods
        for row in goods.rows:
            row.lease = lease
        return lease

    def sign_copy(
        self, lease: Lease, holder: ReplicaState, goods: FormedBatch, predicted_s: float, now: float
    ) -> Lease:
        """A copy of some of the lease's members, whose flows have paid already."""
        copy = self._open(holder, goods, predicted_s, now)
        copy.copy_of, lease.copy = lease, copy
        copy.since, copy.repeats = lease.since, True
        for row in goods.rows:
            row.copy, row.copied = copy, True
        return copy

    def _open(
        self, holder: ReplicaState, goods: FormedBatch, predicted_s: float, now: float
    ) -> Lease:
        self._last_id = lease_id = self._last_id + 1
        share = stream_share(goods.rows[0]) if holder.streams else 1.0
        starts_at = now if holder.streams else max(now, holder.finish_at)
        size = len(goods.rows)
        lease = Lease(lease_id, holder, goods, share, predicted_s, now, starts_at, now, size)
        lease.staged = bool(holder.leases) and not holder.streams
        holder.held += share
        holder.leases[lease_id] = lease
        lease.trial = goods.rows[0].retried
        holder.trials += lease.trial
        holder.last_used = lease_id
        holder.last_edge = goods.edge
        holder.finish_at = 0.0 if holder.streams else starts_at + predicted_s
        self.open[lease_id] = lease
        if holder.streams:
            self.streams.began(lease)
        return lease

    def close(self, lease_id: int, now: float) -> Lease | None:
        """The lease, its share given back; None, and counted, when there is no such lease."""
        lease = self.open.pop(lease_id, None)
        if lease is None:
            self.unknown_closes += 1
            return None
        holder = lease.holder
        if holder.streams:
            self.streams.ended(lease)
        was_head = holder.head() is lease
        del holder.leases[lease_id]
        holder.held -= lease.share
        if holder.saves_for is not None:
            holder.frees(lease.share)
        holder.trials -= lease.trial
        if was_head:
            holder.freed(now)
        return lease

    def rows(self) -> int:
        """Rows that stand in leases, those in a copy as well counted once."""
        return sum(lease.live for lease in self.open.values() if lease.copy_of is None)

    def resize(self, lease: Lease, held: float) -> None:
        """A stream lease now occupies `held` units of capacity (rounded up, never negative)."""
        share = float(max(0, ceil(held)))
        more, holder = share - lease.share, lease.holder
        holder.held += more
        if more < 0.0 and holder.saves_for is not None:
            holder.frees(-more)
        lease.share = share


def stream_share(row: Row) -> float:
    """What the row takes of a stream replica's capacity, as far as can be told before it runs."""
    plan = row.ticket.plan
    return float(max(1, row.length)) if plan is None else float(ceil(plan.room))
