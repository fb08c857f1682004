"""Which leases should get a copy now, and when is each other lease checked for being slow?

`Hedger` (batches) and `StreamHedger` (streams) own one schedule each. A lease is checked
at the time that its hedging policy names. A lease that the policy finds slow becomes a candidate,
until it has a copy, may have none any more, or has closed. `lease_completion` and `suspension` take
out leases that have closed or whose rows were moved. The schedule decides nothing: neither which
lease is slow, nor which replica takes the copy. Times are seconds on the dispatcher's clock. Work:
O(log n) a check, n being the leases with a planned check.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.state.check_times import CheckTimes
from routers.state.replica_state import Lease

_TRIES = 4  # candidates looked at in one step, so that a step stays short however many there are


@dataclass(slots=True)
class CopySchedule:
    """Leases of one kind: the planned checks, and the candidates for a copy."""

    check_times: CheckTimes[Lease] = field(default_factory=CheckTimes)
    candidates: dict[Lease, None] = field(default_factory=dict)  # ordered set, oldest first

    # -- checks

    def check_at(self, lease: Lease, at: float) -> None:
        """Check the lease at `at`, whatever was planned before; inf: never."""
        self.check_times.look_at(lease, at, lease.lease_id)

    def check_by(self, lease: Lease, at: float) -> None:
        """Check the lease at `at`, unless an earlier check is planned."""
        if at < self.check_times.at(lease):
            self.check_at(lease, at)

    def next_check_at(self) -> float:
        """When the next lease is checked; inf: no check is planned."""
        return self.check_times.next_at()

    def due(self, now: float) -> Lease | None:
        """A lease whose check is due, once for each planned check; None: no further one is."""
        due = self.check_times.due(now)
        return None if due is None else due[0]

    # -- candidates

    def add(self, lease: Lease) -> None:
        """The lease should get a copy as soon as a replica and the budget allow."""
        self.candidates[lease] = None

    def remove(self, lease: Lease) -> None:
        """The lease is no candidate any more; its planned check stays."""
        self.candidates.pop(lease, None)

    def first(self) -> list[Lease]:
        """The oldest candidates: as many as one step tries."""
        return list(self.candidates)[:_TRIES]

    def forget(self, lease: Lease) -> None:
        """Neither check nor copy the lease any more: it has closed, or its race is decided."""
        self.check_times.drop(lease)
        self.candidates.pop(lease, None)
