"""Which leases carry the same rows, and when is a row's failure in one of them final?

A copy races the lease it repeats; the first answer to a row counts. A row that the runtime failed
on alone in one of the two is no answer while the other one runs: it is hoped for there, until that
one has ended. Rows are known by (request id, row index). Leases themselves are the dispatcher's.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.contract import errors
from deployments.gateway.queues.tickets import Ticket
from routers.types import Dispatch


@dataclass(frozen=True, slots=True)
class PendingRowFailure:
    """A row that failed with `error` on `replica_id`, and may be answered by the other lease."""

    ticket: Ticket
    of: tuple[int, int]
    error: errors.HeadraceError
    replica_id: str


class Copies:
    def __init__(self) -> None:
        self._open: dict[int, Dispatch] = {}
        self._other: dict[int, int] = {}
        self._hopes: dict[int, list[PendingRowFailure]] = {}

    def began(self, lease: Dispatch) -> None:
        self._open[lease.lease_id] = lease
        if lease.copy_of in self._open:
            self._other[lease.lease_id] = lease.copy_of
            self._other[lease.copy_of] = lease.lease_id

    def ended(self, lease_id: int) -> list[PendingRowFailure]:
        """What was hoped of this lease; its rows have been delivered."""
        self._open.pop(lease_id, None)
        other = self._other.pop(lease_id, None)
        if other is not None:
            del self._other[other]
        return self._hopes.pop(lease_id, [])

    def hope(self, lease_id: int, hope: PendingRowFailure) -> bool:
        """A row failed in this lease; whether another one that carries it still runs."""
        other = self._other.get(lease_id)
        if other is None or hope.of not in self._open[other].rows:
            return False
        self._hopes.setdefault(other, []).append(hope)
        return True

    def is_hoped_for(self, lease_id: int) -> bool:
        return lease_id in self._hopes
