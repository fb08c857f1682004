"""How do rows leave the leases they stand in?

A row stands in one lease, and perhaps in a copy that races it. The first answer takes it out of
both; a lease that fails leaves it to the other one, if there is one; of two tied leases the first
to start takes it over. A lease that nobody waits for any more is aborted, once. Who goes on with
the rows also settles what is owed for them. What becomes of rows that stand nowhere any more is the
caller's question.
"""

from __future__ import annotations

from routers.leases import Lease
from routers.tickets import Row
from routers.types import Abort, Action


def win(lease: Lease, actions: list[Action]) -> list[Row]:
    """It was answered: its members, which now stand in no lease."""
    members = lease.members()
    for row in members:
        other = row.copy if row.lease is lease else row.lease
        row.lease = row.copy = None
        if other is not None:
            _leave(other, actions)
    _part(lease, lease)
    return members


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


def _leave(lease: Lease, actions: list[Action]) -> None:
    lease.live -= 1
    if not lease.live and not lease.probe:
        abort(lease, actions)


def abort(lease: Lease, actions: list[Action]) -> None:
    """Ask its replica to drop it, once."""
    if not lease.aborted:
        lease.aborted = True
        actions.append(Abort(lease.lease_id, lease.replica_id))
