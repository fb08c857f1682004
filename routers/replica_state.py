"""What does this gateway know of one replica: what it holds, when it will be free, how it has done?

Leases on a batch replica are predicted to run one after another, behind what other gateways have
started there; those of a stream replica run beside each other. `starts_at` of a lease is predicted
until the replica says `Opened`, or until the lease before it has closed. Drift is accounted less
actual: the open leases that the replica says it has accepted, less those it says it still holds.
Nothing here decides anything; seconds are on the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from routers.types import Replica, ReplicaKind, Report

if TYPE_CHECKING:
    from routers.leases import Lease
    from routers.placement.choice import Entry
    from routers.tickets import Row

_TRANSPORT_GAIN = 0.2
_TRANSPORT_SPREAD = 1.5  # of the mean transport, what it may take where being late costs a turn
_SAVED = 0.5  # of what a stream replica frees, for a row that has no room
_EARLY = 0.2  # of a batch's prediction, how much sooner it may be over

Yield = tuple[int, int, int, "ReplicaState"]
"""How little urgent what it would give up is (late, priority; negative), the order, and who."""


@dataclass(slots=True, eq=False)
class ReplicaState:
    """A replica as the core sees it. `blocked_until`: no new lease before, after a busy answer or
    a loss (`suspect`). `foreign_until`: predicted end of what other gateways have started there.
    `shared`: other gateways have work for it too. `overdue`: it is far beyond the prediction of a
    lease. `ejected`: slower than its peers; gets probes only, the next one at `probe_at`. `sick`:
    any of suspect, overdue and ejected. `ratio`: its pace to the pool's predictions. `load`: how
    busy it is, 0..1. `slow_streak`: slow answers in a row. `wake_at`: when it may next take a
    lease, if that is a matter of time. `answered_at`, `idle_from`: when its last answer came, and
    when that batch had left the device. `entry`: its place among the ready ones; `yields`: among
    those that would give something up. `trials`: leases of retried rows that it holds.
    Of a stream replica: `reading`: tokens of prompts that it has yet to read, `reading_long`: of
    those, of long ones; `saved`: room that is kept free for the row `saves_for`."""

    replica: Replica
    held: float = 0.0
    leases: dict[int, Lease] = field(default_factory=dict)
    draining: bool = False
    suspect: bool = False
    overdue: bool = False
    ejected: bool = False
    sick: bool = False
    blocked_until: float = 0.0
    foreign_until: float = 0.0
    shared: bool = False
    wake_at: float | None = None
    finish_at: float = 0.0
    last_used: int = 0
    last_edge: int = 0
    answers: int = 0
    ratio: float = 1.0
    load: float = 0.0
    transport_s: float | None = None
    drift: int = 0
    slow_streak: int = 0
    probe_every_s: float = 0.0
    probe_at: float | None = None
    answered_at: float = -inf
    idle_from: float = 0.0
    entry: Entry | None = None
    yields: Yield | None = None
    streams: bool = field(init=False)
    trials: int = 0
    reading: float = 0.0
    reading_long: float = 0.0
    saved: float = 0.0
    saves_for: Row | None = None

    def __post_init__(self) -> None:
        self.list_as(self.replica)

    def list_as(self, replica: Replica) -> None:
        """It is among those that run, with this capacity."""
        self.replica, self.draining = replica, False
        self.streams = replica.kind is ReplicaKind.STREAM

    def has_room(self) -> bool:
        """Whether any further lease could fit; an empty stream replica takes any one row."""
        capacity = self.replica.capacity
        if self.streams:
            most = self.replica.most_leases
            if most and len(self.leases) >= most:
                return False
            return self.held < capacity or (not self.leases and capacity > 0)
        return self.held + 1.0 <= capacity and not self.trials

    def save(self, row: Row) -> None:
        """Keep room for this row, from what will be freed, unless it is kept for another."""
        if self.saving() is None:
            self.saves_for, self.saved = row, 0.0

    def saving(self) -> Row | None:
        """The row that room is kept for, as long as it waits."""
        row = self.saves_for
        if row is not None and row.queue is None:
            self.saves_for = row = None
            self.saved = 0.0
        return row

    def frees(self, room: float) -> None:
        """So much of what it held is free now."""
        row = self.saving()
        if row is not None and row.ticket.plan is not None:
            self.saved = min(row.ticket.plan.room, self.saved + _SAVED * room)

    def head(self) -> Lease | None:
        """The lease that is believed to run: the oldest."""
        return next(iter(self.leases.values()), None)

    def reckon(self, now: float) -> None:
        """Predict anew when all open leases will have finished, one after another."""
        if self.streams:
            return
        finish = self.foreign_until if self.foreign_until > now else 0.0
        for position, lease in enumerate(self.leases.values()):
            if lease.wanted_back and not lease.opened:
                continue
            if position and not lease.opened:
                lease.starts_at = max(now, finish)
            finish = max(finish, lease.starts_at + lease.predicted_s)
        self.finish_at = finish

    def lead_s(self, running_s: float) -> float:
        """How long before the end of what runs, predicted to take `running_s`, the next batch is
        sent. Where other gateways have staged theirs, one that comes late has lost its turn, while
        coming early costs little: it is sent sooner by what transport and prediction may be off."""
        transport_s = self.transport_s or 0.0
        if not self.shared:
            return transport_s
        return _TRANSPORT_SPREAD * transport_s + _EARLY * running_s

    def freed(self, now: float) -> None:
        """The lease that ran has closed: whatever was staged behind it starts now."""
        head = self.head()
        if head is not None and not head.opened:
            head.starts_at = max(now, self.foreign_until)

    def learn(self, report: Report, now: float, *, answered: bool) -> None:
        """Take in what an answer says; `seen == 0` says nothing of what the replica holds."""
        if answered:
            self.answers += 1
            before = self.transport_s
            gain = 1.0 if before is None else _TRANSPORT_GAIN
            self.transport_s = (before or 0.0) + gain * (report.transport_s - (before or 0.0))
        if report.seen:
            self.drift = self._accepted(report.seen) - report.held
            self.foreign_until = now + report.free_in_s if report.free_in_s > 0.0 else 0.0
            self.shared = report.inflight > report.held or bool(report.waiting)

    def _accepted(self, seen: int) -> int:
        newer = 0
        for lease_id in reversed(self.leases):
            if lease_id <= seen:
                break
            newer += 1
        return len(self.leases) - newer
