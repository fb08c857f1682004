"""What this gateway knows of one replica: what it holds, when it will be free, what it can take.

Leases on a batch replica are predicted to run one after another, behind what other gateways have
started there; those of a stream replica run beside each other. `starts_at` of a lease is predicted
until the replica says `Opened`, or until the lease before it has closed. Drift is accounted less
actual: the open leases that the replica says it has accepted, less those it says it still holds.
Nothing here decides anything; seconds are on the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from routers.api.requests import Replica, ReplicaKind, Report
from routers.estimates.generations import RunningGeneration
from routers.estimates.groups import ReplicaGroup
from routers.state.formed_batch import FormedBatch
from routers.state.rows import Row

_TRANSPORT_GAIN = 0.2
_TRANSPORT_SPREAD = 1.5  # of the mean transport, what it may take where being late costs a turn
_SAVED = 0.5  # of what a stream replica frees, for a row that has no room
_EARLY = 0.2  # of a batch's prediction, how much sooner it may be over


Entry = tuple[float, float, int, int, "ReplicaState"]
"""Order within its kind (two keys, then the order of pushing), its kind, and whose it is."""

PreemptionEntry = tuple[int, int, int, "ReplicaState"]
"""How little urgent what it would give up is (late, priority; negative), the order, and who."""


@dataclass(slots=True, eq=False)
class ReplicaState:
    """A replica as the core sees it. `blocked_until`: no new lease before, after a busy answer or a
    loss (`suspect`). `foreign_until`: predicted end of what other gateways have started there.
    `shared`: other gateways have work for it too. `overdue`: it is far beyond the prediction of a
    lease. `ejected`: slower than its peers; gets probes only. `suspended`: it is silent, and gets
    nothing until it speaks; `heard_at`: when it last said anything. `foreign_leases`: of other
    gateways, as of its last answer. `unhealthy`: any of suspect, overdue, ejected and suspended.
    `slowdown`: its seconds over its group's predictions. `busy_until`: of its predicted end of
    work, what its group was told. `load`: how busy it is, 0..1. `wake_at`: when it may next take a
    lease, if that is a matter of time. `answered_at`, `idle_from`: when its last answer came, and
    when that batch had left the device. `entry`: its place among the ready; `preemption_entry`:
    among those that would give something up. `retries_held`: leases of retried rows that it holds.
    Of a stream replica: `reading`: tokens of prompts that it has yet to read, `reading_long`: of
    those, of long ones, `read_at`: when it had last read one; `saved`: room that is kept free for
    the row `saves_for`."""

    spec: Replica
    group: ReplicaGroup
    held: float = 0.0
    leases: dict[int, Lease] = field(default_factory=dict)
    draining: bool = False
    suspect: bool = False
    overdue: bool = False
    ejected: bool = False
    suspended: bool = False
    unhealthy: bool = False
    heard_at: float = -inf
    foreign_leases: int = 0
    blocked_until: float = 0.0
    foreign_until: float = 0.0
    shared: bool = False
    wake_at: float | None = None
    finish_at: float = 0.0
    last_used: int = 0
    last_edge: int = 0
    answers: int = 0
    slowdown: float = 1.0
    load: float = 0.0
    busy_until: float = 0.0
    transport_s: float | None = None
    drift: int = 0
    answered_at: float = -inf
    idle_from: float = 0.0
    entry: Entry | None = None
    preemption_entry: PreemptionEntry | None = None
    streams: bool = field(init=False)
    retries_held: int = 0
    reading: float = 0.0
    reading_long: float = 0.0
    read_at: float = -inf
    saved: float = 0.0
    saves_for: Row | None = None

    def __post_init__(self) -> None:
        self.list_as(self.spec)

    def list_as(self, spec: Replica) -> None:
        """It is among those that run, with this capacity."""
        self.spec, self.draining = spec, False
        self.streams = spec.kind is ReplicaKind.STREAM

    @property
    def is_unwell(self) -> bool:
        """Whether others are to be preferred; `unhealthy` says whether that has been counted."""
        return self.suspect or self.overdue or self.ejected or self.suspended

    def has_room(self) -> bool:
        """Whether any further lease could fit; an empty stream replica takes any one row."""
        capacity = self.spec.capacity
        if self.streams:
            most = self.spec.most_leases
            if most and len(self.leases) >= most:
                return False
            return self.held < capacity or (not self.leases and capacity > 0)
        return self.held + 1.0 <= capacity and not self.retries_held

    # -- its leases

    def took(self, lease: Lease) -> None:
        """It was sent the lease, which it works on behind those that it holds."""
        self.leases[lease.lease_id] = lease
        self.held += lease.share
        self.retries_held += lease.is_retry
        self.last_used = lease.lease_id
        self.last_edge = lease.batch.edge
        self.finish_at = 0.0 if self.streams else lease.starts_at + lease.predicted_s

    def gave_back(self, lease: Lease, now: float) -> None:
        """The lease has closed; if it ran, whatever was staged behind it starts now."""
        was_head = self.head() is lease
        del self.leases[lease.lease_id]
        self.held -= lease.share
        if self.saves_for is not None:
            self._frees(lease.share)
        self.retries_held -= lease.is_retry
        if was_head:
            head = self.head()
            if head is not None and not head.opened:
                head.starts_at = max(now, self.foreign_until)

    def resize(self, lease: Lease, share: float) -> None:
        """The lease occupies so much from now on."""
        more = share - lease.share
        self.held += more
        if more < 0.0 and self.saves_for is not None:
            self._frees(-more)
        lease.share = share

    def give_up(self, lease: Lease) -> None:
        """The staged lease is to come back: the next one starts when it would have."""
        self.finish_at = lease.starts_at

    def reads(self, running: RunningGeneration) -> None:
        """It was sent this prompt."""
        self.reading += running.reads
        self.reading_long += running.reads if running.is_long else 0.0

    def has_read(self, running: RunningGeneration, now: float) -> None:
        """The prompt has been read, or will not be."""
        self.read_at = now
        self.reading -= running.reads
        self.reading_long -= running.reads if running.is_long else 0.0
        running.reads = 0.0

    # -- how it does

    def heard(self, now: float) -> bool:
        """It has said something; whether it had been silent."""
        was_silent = self.suspended
        self.heard_at, self.suspended = now, False
        return was_silent

    def suspend(self) -> None:
        """It is silent."""
        self.suspended = True

    def resume(self) -> None:
        """Nothing is left that could be heard of it."""
        self.suspended = False

    def shows_work(self) -> None:
        """It goes on with what it streams: nothing there is overdue."""
        if self.overdue:
            self.overdue = False
            for lease in self.leases.values():
                lease.overdue = False

    def runs_at(self, slowdown: float) -> None:
        """What it takes, over its group's predictions."""
        self.slowdown = slowdown

    def answered(self, now: float, ended: float) -> None:
        """The answer to a batch has come, which had left the device at `ended`."""
        self.answered_at, self.idle_from = now, ended

    # -- room that is kept

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

    def _frees(self, room: float) -> None:
        """So much of what it held is free now."""
        row = self.saving()
        if row is not None and row.tracked.plan is not None:
            self.saved = min(row.tracked.plan.room, self.saved + _SAVED * room)

    def head(self) -> Lease | None:
        """The lease that is believed to run: the oldest."""
        return next(iter(self.leases.values()), None)

    def reckon(self, now: float) -> None:
        """Predict anew when all open leases will have finished, one after another."""
        if self.streams:
            return
        finish = self.foreign_until if self.foreign_until > now else 0.0
        for position, lease in enumerate(self.leases.values()):
            if lease.recalled and not lease.opened:
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
            self.foreign_leases = max(0, report.inflight - report.held)
            self.shared = self.foreign_leases > 0 or bool(report.waiting)

    def _accepted(self, seen: int) -> int:
        newer = 0
        for lease_id in reversed(self.leases):
            if lease_id <= seen:
                break
            newer += 1
        return len(self.leases) - newer


@dataclass(slots=True, eq=False)
class Lease:
    """`live`: members that have not left meanwhile. `starts_at` is predicted until `opened`.
    `since`: when its rows were first sent, in this lease or in the one it copies. `owes`: the batch
    whose charge is to be settled when it ends. `copy_of`: the lease whose rows it repeats, while
    that is open; `copy`: the reverse. `repeats`: is a copy; `hedge`: one sent late. `probe`: a copy
    that asks how its replica does; it runs to its end. `tied`: the first of the two to start
    cancels the other. `paid_s`: what the budget paid for the race. `staged`: sent while another
    ran. `is_retry`: of a row that was lost once. `hedge_due`: should be, or is, raced. `overdue`:
    far beyond its prediction. `non_preemptible`: not given up for what is more urgent. `recalled`:
    the dispatcher has asked for its rows. `aborted`: its replica was told to drop it. `running`: of
    one that generates; `begun`: something of its answer has come."""

    lease_id: int
    replica: ReplicaState
    batch: FormedBatch
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
    is_retry: bool = False
    hedge_due: bool = False
    overdue: bool = False
    non_preemptible: bool = False
    recalled: bool = False
    aborted: bool = False
    running: RunningGeneration | None = None
    begun: bool = False

    def begin(self, now: float) -> None:
        """Its replica says that it has."""
        self.opened, self.starts_at = True, now

    def lead(self) -> None:
        """What ran before it has left the device: it has waited for that, and not been slow."""
        self.overdue = False
        if self.copy is None and self.copy_of is None:
            self.hedge_due = False

    def call_due(self) -> None:
        """It is to be raced."""
        self.hedge_due = True

    def call_overdue(self) -> None:
        """And its replica with it."""
        self.overdue = self.replica.overdue = True

    def race_again(self) -> None:
        """The other one never ran: it may be raced once more."""
        self.hedge_due = False

    def recall(self) -> None:
        """Its rows are wanted back."""
        self.recalled = True

    def step_in(self) -> None:
        """What it was to probe beside was lost: somebody waits for it now."""
        self.probe = False

    # -- of one that generates

    def generate(self, running: RunningGeneration) -> None:
        """Its prompt is to be read."""
        self.running = running
        self.replica.reads(running)

    def has_read(self, now: float) -> None:
        """Its prompt has been read, or will not be."""
        if self.running is not None and self.running.reads:
            self.replica.has_read(self.running, now)

    def show(self) -> bool:
        """Something of its answer has come; whether that is the first of it."""
        is_first = not self.begun
        self.begun = True
        self.replica.shows_work()
        return is_first

    # -- what is owed

    def take_owed(self) -> FormedBatch | None:
        """For who settles it; nothing is owed from now on."""
        batch, self.owes = self.owes, None
        return batch

    def owe(self, served_s: float) -> None:
        """A stream's flow has paid for so much in all; what it owes is settled against that."""
        if self.owes is not None:
            ((priority, tenant, _),) = self.owes.charges
            charges = ((priority, tenant, served_s),)
            self.owes = replace(self.owes, predicted_s=served_s, charges=charges, paid=charges)

    def members(self) -> list[Row]:
        """Rows that still wait for this lease, in the order they were sent."""
        return [row for row in self.batch.rows if row.lease is self or row.copy is self]

    @property
    def replica_id(self) -> str:
        return self.replica.spec.replica_id

    @property
    def is_suspended(self) -> bool:
        return self.replica.suspended
