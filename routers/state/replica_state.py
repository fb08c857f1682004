"""What this gateway knows of one replica: its open leases, its predicted finish, its health.

Seconds are on the caller's monotonic clock. Predictions assume that the leases of a batch replica
run one after another, behind the batches that other gateways have started there, and that the
leases of a stream replica run side by side. `Lease.starts_at` is a prediction until the replica
reports `Opened`, or until the lease before it has closed. Drift is leases accounted for less leases
actually held: the open leases that the replica says it has accepted, less those it says it still
holds.

The records only keep and predict; they decide nothing. Only modules of `routers/state/` assign
their fields (tests/test_architecture.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from routers.api.requests import Replica, ReplicaKind, Report
from routers.estimates.generations import RunningGeneration
from routers.estimates.groups import ReplicaGroup
from routers.state.formed_batch import FormedBatch
from routers.state.rows import Row

_TRANSPORT_GAIN = 0.2  # of the moving average of transport
# Times the mean transport: how early a batch is sent where coming late would cost it its turn.
_TRANSPORT_SPREAD = 1.5
_SAVED_SHARE = 0.5  # of the room that a stream replica frees, kept for a row that does not fit yet
# Of the running batch's predicted seconds: how much sooner than predicted that batch may end.
_EARLY_SHARE = 0.2
_SHARED_S = 10.0  # how long a replica counts as shared after another gateway was seen there


Entry = tuple[float, float, int, int, "ReplicaState"]
"""(first key, second key, number of the push, kind, replica): an entry of `ready_replicas`. Within
a kind the lowest keys come first, the earlier push among equals."""

PreemptionEntry = tuple[int, int, int, "ReplicaState"]
"""(-late, -priority, number of the push, replica): an entry of `preemptible`, by the standing of
the lease that the replica would give up. The least urgent comes first."""


@dataclass(slots=True, eq=False)
class ReplicaState:
    """One replica as the core sees it.

    `unhealthy` is the value of `is_unwell` that `ReplicaSet` has counted; the fields that it is
    made of may already be newer.
    """

    spec: Replica
    group: ReplicaGroup
    held: float = 0.0  # capacity that its open leases take: slots, or tokens
    leases: dict[int, Lease] = field(default_factory=dict)  # open ones by id, the oldest first

    draining: bool = False  # takes no new lease
    suspect: bool = False  # lost a lease and has not answered since
    overdue: bool = False  # a lease is far beyond its prediction
    ejected: bool = False  # slower than its peers; gets probes only
    suspended: bool = False  # silent; gets nothing until it is heard from
    unhealthy: bool = False  # suspect, overdue, ejected or suspended
    heard_at: float = -inf  # when it last said anything

    foreign_leases: int = 0  # of other gateways, as of its last report
    blocked_until: float = 0.0  # no new lease before, after a busy answer or a loss
    foreign_until: float = 0.0  # predicted end of what other gateways have started there
    shared: bool = False  # other gateways hold leases there, or have work waiting for it
    shared_until: float = 0.0  # until then it counts as used by other gateways too
    wake_at: float | None = None  # when it may next take a lease, where only time is lacking
    finish_at: float = 0.0  # predicted end of its last lease; 0.0 for a stream replica
    last_used: int = 0  # id of the last lease that it was sent
    last_edge: int = 0  # bucket of that lease; 0: none yet
    answers: int = 0  # leases that it has answered

    slowdown: float = 1.0  # its measured seconds over its group's predictions
    load: float = 0.0  # how busy it is, 0..1, as counted in `ReplicaSet.busy`
    busy_until: float = 0.0  # the predicted finish that its group was last told
    transport_s: float | None = None  # moving average; None: nothing measured yet
    drift: int = 0  # leases accounted for less leases held
    answered_at: float = -inf  # when its last answer came
    idle_from: float = 0.0  # when the batch of that answer had left the device

    entry: Entry | None = None  # its place among the ready replicas
    # Its place among the idle replicas of its group, where several gateways each have an order of
    # their own; None: idle replicas take turns.
    preference: int | None = None
    preemption_entry: PreemptionEntry | None = None  # its place among those that would give up work
    streams: bool = field(init=False)
    isolated_leases: int = 0  # open leases of rows that travel alone

    # Of a stream replica:
    reading: float = 0.0  # prompt tokens that it has yet to read
    reading_long: float = 0.0  # of those, tokens of long prompts
    read_at: float = -inf  # when it last finished reading a prompt
    saved: float = 0.0  # room that is kept free for the row `saves_for`, tokens
    saves_for: Row | None = None

    def __post_init__(self) -> None:
        self.list_as(self.spec)

    def list_as(self, spec: Replica) -> None:
        """It is listed among the running replicas, with this capacity."""
        self.spec, self.draining = spec, False
        self.streams = spec.kind is ReplicaKind.STREAM

    @property
    def is_unwell(self) -> bool:
        """Whether other replicas are to be preferred to this one, as its fields say now."""
        return self.suspect or self.overdue or self.ejected or self.suspended

    def has_room(self) -> bool:
        """Whether one more lease could fit. An empty stream replica takes any one row; a batch
        replica that holds a row that travels alone takes nothing beside it."""
        capacity = self.spec.capacity
        if self.streams:
            most = self.spec.max_leases
            if most and len(self.leases) >= most:
                return False
            return self.held < capacity or (not self.leases and capacity > 0)
        return self.held + 1.0 <= capacity and not self.isolated_leases

    # -- its leases

    def took(self, lease: Lease) -> None:
        """Record that it was sent the lease; a batch replica runs it behind those that it holds."""
        self.leases[lease.lease_id] = lease
        self.held += lease.share
        self.isolated_leases += lease.isolated
        self.last_used = lease.lease_id
        self.last_edge = lease.batch.edge
        self.finish_at = 0.0 if self.streams else lease.starts_at + lease.predicted_s

    def gave_back(self, lease: Lease, now: float) -> None:
        """Record that the lease has closed. If that lease was running, the one staged behind it is
        taken to start now."""
        was_head = self.head() is lease
        del self.leases[lease.lease_id]
        self.held -= lease.share
        if self.saves_for is not None:
            self._save_from(lease.share)
        self.isolated_leases -= lease.isolated
        if was_head:
            head = self.head()
            if head is not None and not head.opened:
                head.starts_at = max(now, self.foreign_until)

    def resize(self, lease: Lease, share: float) -> None:
        """The lease takes `share` of the capacity from now on."""
        more = share - lease.share
        self.held += more
        if more < 0.0 and self.saves_for is not None:
            self._save_from(-more)
        lease.share = share

    def give_up(self, lease: Lease) -> None:
        """The replica is to return this staged lease, its last one: its predicted finish falls to
        where the lease would have started."""
        self.finish_at = lease.starts_at

    def reads(self, running: RunningGeneration) -> None:
        """Record that it was sent this prompt and has yet to read it."""
        self.reading += running.reads
        self.reading_long += running.reads if running.is_long else 0.0

    def has_read(self, running: RunningGeneration, now: float) -> None:
        """Record that the prompt has been read, or will not be read any more."""
        self.read_at = now
        self.reading -= running.reads
        self.reading_long -= running.reads if running.is_long else 0.0
        running.reads = 0.0

    # -- how it does

    def heard(self, now: float) -> bool:
        """Record that it has said something. Returns whether it had been suspended as silent."""
        was_silent = self.suspended
        self.heard_at, self.suspended = now, False
        return was_silent

    def suspend(self) -> None:
        """It is silent: give it nothing until it is heard from."""
        self.suspended = True

    def resume(self) -> None:
        """Suspend it no longer, because nothing is left that it could be heard of with."""
        self.suspended = False

    def clear_overdue(self) -> None:
        """A stream of it goes on, so the replica works: none of its leases is overdue."""
        if self.overdue:
            self.overdue = False
            for lease in self.leases.values():
                lease.overdue = False

    def runs_at(self, slowdown: float) -> None:
        """Set its measured seconds over its group's predictions."""
        self.slowdown = slowdown

    def answered(self, now: float, ended: float) -> None:
        """Record when the answer to a batch came, and when that batch had left the device
        (`ended`)."""
        self.answered_at, self.idle_from = now, ended

    # -- room that is kept for one row

    def save(self, row: Row) -> None:
        """Keep room for this row out of what will be freed, unless room is kept for another one
        already."""
        if self.saving() is None:
            self.saves_for, self.saved = row, 0.0

    def saving(self) -> Row | None:
        """The row that room is kept for; None once that row no longer waits, and the room is free
        again."""
        row = self.saves_for
        if row is not None and row.bucket is None:
            self.saves_for = row = None
            self.saved = 0.0
        return row

    def _save_from(self, room: float) -> None:
        """Keep a share of the room that a lease has just freed, up to what the row needs."""
        row = self.saving()
        if row is not None and row.tracked.plan is not None:
            self.saved = min(row.tracked.plan.room, self.saved + _SAVED_SHARE * room)

    def head(self) -> Lease | None:
        """The oldest lease: on a batch replica the one that is believed to run."""
        return next(iter(self.leases.values()), None)

    def predict_finish(self, now: float) -> None:
        """Predict anew when its open leases will have finished, one after another. A lease that was
        recalled before it opened is taken not to run."""
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
        """How many seconds before the predicted end of the running batch (`running_s` in all) the
        next batch is sent: the measured transport.

        Where other gateways stage batches too, a batch that comes late has lost its turn, while one
        that comes early costs little. There the lead also covers the errors of transport and
        prediction.
        """
        transport_s = self.transport_s or 0.0
        if not self.shared:
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
            self.foreign_until = now + report.free_in_s if report.free_in_s > 0.0 else 0.0
            self.foreign_leases = max(0, report.inflight - report.held)
            self.shared = self.foreign_leases > 0 or bool(report.waiting)
            if self.shared or report.served:
                self.shared_until = now + _SHARED_S

    def _count_accepted(self, seen: int) -> int:
        """How many open leases the replica has accepted, `seen` being the highest id it
        accepted."""
        newer = 0
        for lease_id in reversed(self.leases):
            if lease_id <= seen:
                break
            newer += 1
        return len(self.leases) - newer


@dataclass(slots=True, eq=False)
class Lease:
    """One batch or one streamed request that a replica holds. `LeaseTable` opens and closes leases.

    Two leases *race* while they hold the same rows on two replicas; one of them is the *copy*.
    """

    lease_id: int
    replica: ReplicaState
    batch: FormedBatch
    share: float  # of its replica's capacity: 1.0 slot, or tokens
    predicted_s: float
    sent_at: float
    starts_at: float  # predicted until `opened`
    since: float  # when its rows were first sent, by this lease or by the one it copies
    live: int  # members that still wait for it

    unsettled_charge: FormedBatch | None = (
        None  # the batch whose charges are settled when this lease ends
    )
    opened: bool = False  # the replica has said that it started

    copy_of: Lease | None = None  # the lease whose rows this one repeats, while they race
    copy: Lease | None = None  # the reverse
    repeats: bool = False  # was sent as a copy; stays true after the race
    hedge: bool = False  # a copy that was sent after a delay
    tied: bool = False  # the first of the two to start cancels the other
    probe: bool = False  # a copy that shows how its replica does; always runs to its end
    paid_s: float = 0.0  # what the retry budget paid for the race
    staged: bool = False  # sent while the replica held another lease
    isolated: bool = False  # of a row that travels alone (`Row.isolated`)

    hedge_due: bool = False  # should be raced, or is
    overdue: bool = False  # far beyond its prediction
    non_preemptible: bool = False  # not given up for more urgent work
    recalled: bool = False  # the dispatcher has asked for its rows back
    aborted: bool = False  # its replica was told to drop it

    running: RunningGeneration | None = None  # of a lease that generates
    begun: bool = False  # a part of its answer has come

    def begin(self, now: float) -> None:
        """Record that its replica has started on it."""
        self.opened, self.starts_at = True, now

    def lead(self) -> None:
        """The batch before it has left the device. This lease was late because it waited, not
        because it was slow: it is neither overdue nor, unless it races already, due to be
        hedged."""
        self.overdue = False
        if self.copy is None and self.copy_of is None:
            self.hedge_due = False

    def mark_hedge_due(self) -> None:
        """Mark it as due to be raced."""
        self.hedge_due = True

    def call_overdue(self) -> None:
        """Mark it, and its replica, as overdue."""
        self.overdue = self.replica.overdue = True

    def clear_hedge_due(self) -> None:
        """Allow another copy: the lease that it raced never ran."""
        self.hedge_due = False

    def recall(self) -> None:
        """Record that the dispatcher has asked for its rows back."""
        self.recalled = True

    def stop_probing(self) -> None:
        """The lease that this probe raced was lost, so that callers wait for the probe now."""
        self.probe = False

    # -- of one that generates

    def generate(self, running: RunningGeneration) -> None:
        """It generates: its replica has its prompt to read."""
        self.running = running
        self.replica.reads(running)

    def has_read(self, now: float) -> None:
        """Record that its prompt has been read, or will not be read any more."""
        if self.running is not None and self.running.reads:
            self.replica.has_read(self.running, now)

    def show(self) -> bool:
        """Record that a part of its answer has come. Returns whether it was the first part."""
        is_first = not self.begun
        self.begun = True
        self.replica.clear_overdue()
        return is_first

    # -- what is owed

    def take_unsettled(self) -> FormedBatch | None:
        """The batch to settle, handed to the caller, who settles it; the lease owes nothing from
        now on."""
        batch, self.unsettled_charge = self.unsettled_charge, None
        return batch

    def owe(self, served_s: float) -> None:
        """The flow of this stream has paid for `served_s` in all so far; what is owed at the end is
        settled against that."""
        if self.unsettled_charge is not None:
            ((priority, tenant, _),) = self.unsettled_charge.charges
            charges = ((priority, tenant, served_s),)
            self.unsettled_charge = replace(
                self.unsettled_charge, predicted_s=served_s, charges=charges, paid=charges
            )

    def members(self) -> list[Row]:
        """Rows that still wait for this lease, in the order in which they were sent."""
        return [row for row in self.batch.rows if row.lease is self or row.copy is self]

    @property
    def replica_id(self) -> str:
        return self.replica.spec.replica_id

    @property
    def is_suspended(self) -> bool:
        """Whether its replica is."""
        return self.replica.suspended
