"""Who holds what: every batch or stream that a replica works on, and how much of it is taken.

A lease takes a share of its replica's capacity when it opens and gives back exactly that when it
closes: one slot for a batch, tokens for a stream (its row's length until progress says otherwise).
Shares are whole units, so sums are exact. Drift is accounted less actual: the open leases that the
replica says it has accepted, less those it says it still holds, as of its last answer. Leases on
one replica are predicted to run one after another; timing decisions are `replicas`'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from routers.offers import Goods
from routers.tickets import Row
from routers.types import Abort, Action, Replica, ReplicaKind, Report

_TRANSPORT_GAIN = 0.2


@dataclass(slots=True, eq=False)
class Lease:
    """`live`: members that have not left meanwhile. `starts_at` is predicted until `opened`."""

    lease_id: int
    holder: Holder
    goods: Goods
    share: float
    predicted_s: float
    sent_at: float
    starts_at: float
    live: int
    opened: bool = False

    def members(self) -> list[Row]:
        """Rows that still wait for this lease, in the order they were sent."""
        return [row for row in self.goods.rows if row.lease is self]


@dataclass(slots=True, eq=False)
class Holder:
    """A replica as the core sees it. `blocked_until`: no new lease before, after a busy answer or
    a loss (`suspect`). `wake_at`: when it may next take a lease, if that is a matter of time."""

    replica: Replica
    held: float = 0.0
    leases: dict[int, Lease] = field(default_factory=dict)
    draining: bool = False
    suspect: bool = False
    blocked_until: float = 0.0
    wake_at: float | None = None
    finish_at: float = 0.0
    last_used: int = 0
    transport_s: float | None = None
    drift: int = 0

    @property
    def streams(self) -> bool:
        return self.replica.kind is ReplicaKind.STREAM

    def has_room(self) -> bool:
        """Whether any further lease could fit; an empty stream replica takes any one row."""
        capacity = self.replica.capacity
        if self.streams:
            return self.held < capacity or (not self.leases and capacity > 0)
        return self.held + 1.0 <= capacity and not self._is_on_trial()

    def _is_on_trial(self) -> bool:
        return any(lease.goods.rows[0].retried for lease in self.leases.values())

    def reckon(self, now: float) -> None:
        """Predict anew when all open leases will have finished, one after another."""
        if not self.leases or self.streams:
            self.finish_at = 0.0
            return
        finish = now
        for lease in self.leases.values():
            if not lease.opened:
                lease.starts_at = finish
            finish = max(finish, lease.starts_at + lease.predicted_s)
        self.finish_at = finish

    def learn(self, report: Report, *, answered: bool) -> None:
        """Take in what an answer says; `seen == 0` says nothing of what the replica holds."""
        if answered:
            before = self.transport_s
            gain = 1.0 if before is None else _TRANSPORT_GAIN
            self.transport_s = (before or 0.0) + gain * (report.transport_s - (before or 0.0))
        if report.seen:
            self.drift = self._accepted(report.seen) - report.held

    def _accepted(self, seen: int) -> int:
        newer = 0
        for lease_id in reversed(self.leases):
            if lease_id <= seen:
                break
            newer += 1
        return len(self.leases) - newer


class LeaseBook:
    """All open leases by id. Ids start at 1 and are never used twice."""

    def __init__(self) -> None:
        self.open: dict[int, Lease] = {}
        self.unknown_closes = 0
        self._last_id = 0

    def sign(self, holder: Holder, goods: Goods, predicted_s: float, now: float) -> Lease:
        self._last_id = lease_id = self._last_id + 1
        rows = goods.rows
        share = stream_share(rows[0].length) if holder.streams else 1.0
        starts_at = max(now, holder.finish_at)
        lease = Lease(lease_id, holder, goods, share, predicted_s, now, starts_at, len(rows))
        for row in rows:
            row.lease = lease
        holder.held += share
        holder.leases[lease_id] = lease
        holder.last_used = lease_id
        holder.finish_at = 0.0 if holder.streams else starts_at + predicted_s
        self.open[lease_id] = lease
        return lease

    def close(self, lease_id: int) -> Lease | None:
        """The lease, its share given back; None, and counted, when there is no such lease."""
        lease = self.open.pop(lease_id, None)
        if lease is None:
            self.unknown_closes += 1
            return None
        del lease.holder.leases[lease_id]
        lease.holder.held -= lease.share
        return lease

    def resize(self, lease: Lease, held: float) -> None:
        """A stream lease now occupies `held` units of capacity (rounded up, never negative)."""
        share = float(max(0, ceil(held)))
        lease.holder.held += share - lease.share
        lease.share = share


def abandon(row: Row, actions: list[Action]) -> None:
    """Nobody waits for this leased row any more; a lease that nobody waits for is aborted."""
    lease = row.lease
    if lease is not None:
        row.lease = None
        lease.live -= 1
        if not lease.live:
            actions.append(Abort(lease.lease_id, lease.holder.replica.replica_id))


def stream_share(length: int) -> float:
    return float(max(1, length))
