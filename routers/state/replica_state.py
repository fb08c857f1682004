"""What both schedulers know of a replica, and of a lease: one batch or one stream that it holds.

Seconds are on the caller's monotonic clock. Drift is leases accounted for less leases actually
held: the open leases that the replica says it has accepted, less those it says it still holds. What
a replica takes, when it may take the next lease and how busy it is differ by kind
(`batch.lease`, `stream.lease`). The records only keep and predict; they decide nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from math import inf
from typing import Any, Final, Generic, TypeVar

from routers.api.requests import Replica, Report
from routers.estimates.groups import ReplicaGroup
from routers.policies.placement import ReplicaView
from routers.state.flows import Charge
from routers.state.rows import Row

_TRANSPORT_GAIN: Final = 0.2  # of the moving average of transport
# Times the mean transport: how early a batch is sent where coming late would cost it its turn.
_TRANSPORT_SPREAD: Final = 1.5
# Of the running batch's predicted seconds: how much sooner than predicted that batch may end.
_EARLY_SHARE: Final = 0.2
_SHARED_S: Final = 10.0  # how long a replica counts as shared after another gateway was seen there

SUSPECT: Final = 1
"""It lost a lease and has not answered since."""
OVERDUE: Final = 2
"""A lease of it is far beyond its prediction."""
EJECTED: Final = 4
"""It is slower than its peers; it gets probes only."""
SILENT: Final = 8
"""It has stopped answering; it gets nothing until it is heard from."""


class Place:
    """A replica's place among the ready ones: its kind, and its keys within that kind, the lowest
    first; the earlier `number` is first among equals. `holds`: it has no other place since, and may
    still take a lease."""

    replica: Any
    kind: int
    first: float
    second: float
    number: int
    holds: bool

    def __init__(self, replica: Any, kind: int, first: float, second: float, number: int) -> None:
        self.replica, self.kind, self.number = replica, kind, number
        self.first, self.second, self.holds = first, second, True

    def __lt__(self, other: Place) -> bool:
        if self.first != other.first:
            return self.first < other.first
        if self.second != other.second:
            return self.second < other.second
        return self.number < other.number


L = TypeVar("L", bound="Lease[Any]")


class ReplicaState(ReplicaView, Generic[L]):
    """One replica as a scheduler sees it."""

    def __init__(self, spec: Replica, group: ReplicaGroup) -> None:
        super().__init__()
        self.spec, self.group = spec, group
        self.leases: dict[int, L] = {}  # open ones by id, the oldest first
        self.held = 0.0  # capacity that they take: slots, or tokens

        self.draining = False  # takes no new lease
        self.reasons = 0  # for which others are to be preferred: bits, SUSPECT and so on
        self.unhealthy = False  # it had reasons when `ReplicaSet` last counted
        self.heard_at = -inf  # when it last said anything
        self.blocked_until = 0.0  # no new lease before, after a busy answer or a loss
        self.wake_at = inf  # when it may next take a lease, where only time is lacking

        self.answers = 0  # leases that it has answered
        self.load = 0.0  # how busy it is, 0..1, as counted in `ReplicaSet.busy`
        self.transport_s: float | None = None  # moving average; None: nothing measured yet
        self.drift = 0  # leases accounted for less leases held

        self.place: Place | None = None  # among the ready replicas; None: it is not ready

    # -- what differs by kind

    @abstractmethod
    def has_room(self) -> bool:
        """Whether one more lease could fit."""

    @abstractmethod
    def may_probe(self) -> bool:
        """Whether a probe may be sent now, as far as what it holds is concerned."""

    @abstractmethod
    def due_at(self) -> float:
        """When its next lease is due; inf while that is no matter of time."""

    def remains(self) -> bool:
        """Whether it goes on serving whatever becomes of the rows that are tried elsewhere."""
        return not (self.draining or self.unhealthy)

    @abstractmethod
    def gave_back(self, lease: L, now: float) -> None:
        """Record that the lease has closed."""

    # -- what both have

    def holds(self) -> int:
        return len(self.leases)

    def set_reason(self, reason: int, holds: bool) -> None:
        """The reason holds from now on, or no longer does. To be followed by `refresh`."""
        self.reasons = self.reasons | reason if holds else self.reasons & ~reason

    def head(self) -> L | None:
        """The oldest lease: on a batch replica the one that is believed to run."""
        for lease in self.leases.values():
            return lease
        return None

    def lead_s(self, running_s: float) -> float:
        """How many seconds before the predicted end of the running lease (`running_s` in all) the
        next one is sent: the measured transport.

        Where other gateways stage batches too, a batch that comes late has lost its turn, while one
        that comes early costs little. There the lead also covers the errors of transport and
        prediction.
        """
        transport_s = self.transport_s or 0.0
        if not self.foreign.shared:
            return transport_s
        return _TRANSPORT_SPREAD * transport_s + _EARLY_SHARE * running_s

    def learn(self, report: Report, now: float, *, answered: bool) -> None:
        """Take in what an answer says of the replica. A report with `seen == 0` says nothing about
        what the replica holds."""
        if answered:
            self.answers += 1
            before = self.transport_s
            gain = 1.0 if before is None else _TRANSPORT_GAIN
            self.transport_s = (before or 0.0) + gain * (report.transport_s - (before or 0.0))
        if report.seen:
            self.drift = self._count_accepted(report.seen) - report.held
            self.foreign.until = now + report.free_in_s if report.free_in_s > 0.0 else 0.0
            self.foreign.leases = max(0, report.inflight - report.held)
            self.foreign.shared = self.foreign.leases > 0 or bool(report.waiting)
            if self.foreign.shared or report.served:
                self.foreign.seen_until = now + _SHARED_S

    def _count_accepted(self, seen: int) -> int:
        """How many open leases the replica has accepted, `seen` being the highest id it
        accepted."""
        if self.last_used <= seen:
            return len(self.leases)
        newer = 0
        for lease_id in reversed(self.leases):
            if lease_id <= seen:
                break
            newer += 1
        return len(self.leases) - newer


class Origin(Enum):
    """Why a lease was sent."""

    FIRST = "first"  # for rows that waited
    HEDGE = "hedge"  # a copy, because the lease that it copies is slow
    TIE = "tie"  # a copy, because the lease that it copies waits behind another one
    PROBE = "probe"  # a copy that shows how its replica does; always runs to its end
    ADOPTED = "adopted"  # was a probe, until the lease that it copies was lost


FIRST: Final = Origin.FIRST
HEDGE: Final = Origin.HEDGE
PROBE: Final = Origin.PROBE

R = TypeVar("R", bound=ReplicaState[Any])


class Lease(Generic[R]):
    """What a replica holds for some rows. `leases.LeaseTable` opens and closes leases.

    Two leases *race* while they hold the same rows on two replicas; one of them is the *copy*.
    """

    def __init__(self, lease_id: int, replica: R, rows: list[Row], now: float) -> None:
        self.lease_id, self.replica, self.rows = lease_id, replica, rows
        self.live = len(rows)  # members that still wait for it
        self.sent_at = self.starts_at = now
        self.first_sent_at = now  # when its rows were sent, by this lease or the one it copies
        # What flows were charged for it, to be settled when it ends; None: it owes nothing.
        self.unsettled_charge: Charge | None = None
        self.opened = False  # the replica has said that it started
        self.begun = False  # a part of its answer has come, before it was whole

        self.origin = FIRST
        self.copy_of: Lease[R] | None = None  # the lease whose rows this one repeats, in a race
        self.copy: Lease[R] | None = None  # the reverse
        self.tied = False  # the first of the two to start cancels the other
        self.paid_s = 0.0  # what the retry budget paid for the race

        self.hedge_due = False  # should be raced, or is
        self.overdue = False  # far beyond its prediction
        self.recalled = False  # the scheduler has asked for its rows back
        self.aborted = False  # its replica was told to drop it

    @property
    def other(self) -> Lease[R] | None:
        """The lease that races it."""
        return self.copy or self.copy_of

    @property
    def is_copy(self) -> bool:
        """Whether it was sent as a copy; stays true after the race."""
        return self.origin is not FIRST

    @property
    def may_have_begun(self) -> bool:
        """Whether its replica may have started on it."""
        return self.opened

    @property
    def is_probe(self) -> bool:
        return self.origin is PROBE

    def call_overdue(self) -> None:
        """Mark it, and its replica, as overdue. To be followed by `refresh`."""
        self.overdue = True
        self.replica.set_reason(OVERDUE, True)

    def take_unsettled(self) -> Charge | None:
        """The charge to settle, handed to the caller, who settles it; the lease owes nothing from
        now on."""
        charge, self.unsettled_charge = self.unsettled_charge, None
        return charge

    def members(self) -> list[Row]:
        """Rows that still wait for this lease, in the order in which they were sent."""
        return [row for row in self.rows if row.lease is self or row.copy is self]

    @property
    def replica_id(self) -> str:
        return self.replica.spec.replica_id

    @property
    def is_suspended(self) -> bool:
        """Whether its replica is silent."""
        return self.replica.reasons & SILENT > 0


AnyReplica = ReplicaState[Any]
AnyLease = Lease[Any]
