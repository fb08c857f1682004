"""A stream replica, a request that it generates for, and what it may be given or asked back.

A replica's leases run side by side. A lease takes tokens of its capacity: the prompt and the output
that room is reserved for, until progress reports otherwise. Shares are whole units, so their sums
are exact. The prompt of a new lease waits behind those that its replica has yet to read (prefill),
so its first token is predicted from their sum. Long prompts are also counted apart. A lease's
prompt counts at its replica from when it is sent until its first token, or until it has closed.
"""

from __future__ import annotations

from math import ceil, inf
from typing import ClassVar, Final

from routers.api.requests import Replica, ReplicaKind, Request
from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.generations import GenerationPlan, Generations, RunningGeneration
from routers.estimates.groups import LengthRange, ReplicaGroup
from routers.policies.preemption import BegunStreams
from routers.state.flows import Charge, Flow
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row, TrackedRequest

_SAVED_SHARE: Final = 0.5  # of the room that a replica frees, kept for a row that does not fit yet
_MIN_S: Final = 0.001  # a first token is never predicted sooner
_TRIES: Final = 4  # leases of a priority that are looked at, to find one that may be stopped


class TrackedStream(TrackedRequest):
    """A request that generates, with its plan."""

    def __init__(
        self,
        request: Request,
        flow: Flow,
        queued_at: float,
        latest_start: float,
        plan: GenerationPlan,
        costs: tuple[int, float],
    ) -> None:
        """`costs`: the edge of its bucket, and its predicted service seconds."""
        edge, cost_s = costs
        super().__init__(request, flow, queued_at, latest_start, edge, cost_s)
        self.forecast_edge = 0  # what it takes depends on its output, not on its prompt's length
        self.plan = plan


def plan_of(row: Row) -> GenerationPlan:
    """The plan of the row's request, which is one that generates."""
    tracked = row.tracked
    assert isinstance(tracked, TrackedStream)
    return tracked.plan


class StreamReplica(ReplicaState["StreamLease"]):
    """A replica whose engine batches by itself; `held` counts tokens."""

    def __init__(self, spec: Replica, group: ReplicaGroup, engine: EngineSpeed) -> None:
        super().__init__(spec, group)
        self.side_by_side = True
        self.engine = engine  # the speed of its group's
        self.reading_long = 0.0  # of the tokens in `reading`, those of long prompts
        self.read_at = -inf  # when it last finished reading a prompt
        self.saved = 0.0  # room that is kept free for the row `saves_for`, tokens
        self.saves_for: Row | None = None

    def has_room(self) -> bool:
        """Whether one more lease could fit. An empty one takes any one row."""
        capacity, most = self.spec.capacity, self.spec.max_leases
        if most and len(self.leases) >= most:
            return False
        return self.held < capacity or (not self.leases and capacity > 0)

    def may_probe(self) -> bool:
        """It goes on with what it holds."""
        return True

    def due_at(self) -> float:
        if not self.has_room() or (self.leases and len(self.leases) + 1 > self.group.max_streams):
            return inf
        return self.blocked_until

    def busy_share(self) -> float:
        """How full it is."""
        capacity, most = self.spec.capacity, self.spec.max_leases
        full = self.held / capacity if capacity > 0 else 0.0
        if most:
            full = max(full, len(self.leases) / most)
        return min(1.0, full)

    # -- its leases

    def took(self, lease: StreamLease) -> None:
        """Record that it was sent the lease, whose prompt it has yet to read."""
        self.leases[lease.lease_id] = lease
        self.held += lease.share
        self.last_used = lease.lease_id
        running = lease.running
        self.reading += running.reads
        self.reading_long += running.reads if running.is_long else 0.0

    def gave_back(self, lease: StreamLease, now: float) -> None:
        """Record that the lease has closed."""
        del self.leases[lease.lease_id]
        self.held -= lease.share
        if self.saves_for is not None:
            self._save_from(lease.share)

    def resize(self, lease: StreamLease, held: float) -> None:
        """The lease takes `held` tokens of the capacity from now on (rounded up, never
        negative)."""
        share = float(max(0, ceil(held)))
        more = share - lease.share
        self.held += more
        if more < 0.0 and self.saves_for is not None:
            self._save_from(-more)
        lease.share = share

    def has_read(self, running: RunningGeneration, now: float) -> None:
        """Record that the prompt has been read, or will not be read any more."""
        self.read_at = now
        self.reading -= running.reads
        self.reading_long -= running.reads if running.is_long else 0.0
        running.reads = 0.0

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
        if row is not None:
            self.saved = min(plan_of(row).room, self.saved + _SAVED_SHARE * room)


class StreamLease(Lease[StreamReplica]):
    """One request that a replica generates for. `starts_at` is when it was sent, until `opened`."""

    def __init__(
        self,
        lease_id: int,
        replica: StreamReplica,
        row: Row,
        charge: Charge,
        running: RunningGeneration,
    ) -> None:
        super().__init__(lease_id, replica, [row], running.at)
        self.row, self.running = row, running
        self.edge, self.rank, self.predicted_s = row.edge, charge.rank, charge.predicted_s
        self.share = float(ceil(running.plan.room))  # tokens of its replica's capacity
        self.non_preemptible = False  # not given up for more urgent work

    @property
    def may_have_begun(self) -> bool:
        return True

    def may_stop(self) -> bool:
        """Whether it may be stopped for more urgent work: not while another lease of its replica is
        being recalled, not one that may not run again or whose first token has come, and not a row
        that was stopped before or of whose answer its caller has had a part."""
        if (
            self.non_preemptible
            or not self.live
            or self.running.first_at is not None
            or any(other.recalled for other in self.replica.leases.values())
        ):
            return False
        row = self.row
        return row.tracked.request.retryable and not (row.stopped or row.shown)


class StreamRoom:
    """What one replica can take now."""

    def __init__(
        self, replica: StreamReplica, lengths: LengthRange | None, longest_beside: int
    ) -> None:
        """`lengths`: of rows that it may take, None: all; `longest_beside`: the longest row that
        another running replica takes, 0: none runs."""
        self.replica_id, self.group = replica.spec.replica_id, replica.group
        self.lengths, self._longest_beside = lengths, longest_beside
        self._saves_for = replica.saving()
        self.whole, self._saved = replica.spec.capacity, replica.saved
        self._room = replica.spec.capacity - replica.held - replica.saved
        self._idle, self._reading_long = not replica.leases, replica.reading_long

    def allows(self, row: Row) -> bool:
        """Whether the row may go to this replica. To the one that it avoids it goes only where no
        other replica runs that takes rows of its length."""
        if self.lengths is not None and row.edge not in self.lengths:
            return False
        return row.avoid != self.replica_id or row.edge > self._longest_beside

    def has_room(self, row: Row) -> bool:
        """Whether there is room for the row. An empty replica has room for any one row that fits
        its cache."""
        own = self._idle or self._saves_for is row
        return plan_of(row).room <= self._room + (self._saved if own else 0.0)

    def reads(self, row: Row, long_tokens: float, most: float) -> bool:
        """Whether it may begin to read this prompt beside the long ones that it is reading: a
        prompt of over `long_tokens` not yet cached waits while more than `most` tokens would be
        read at once."""
        if not self._reading_long:
            return True
        plan = plan_of(row)
        reads = plan.prompt - plan.cached
        return reads <= long_tokens or self._reading_long + reads <= most


class StreamReplicas(ReplicaSet[StreamReplica]):
    """All stream replicas of a model."""

    kind: ClassVar[ReplicaKind] = ReplicaKind.STREAM

    def make(self, spec: Replica, group: ReplicaGroup) -> StreamReplica:
        engine = group.engine
        assert engine is not None
        return StreamReplica(spec, group, engine)

    def room_of(self, replica: StreamReplica) -> StreamRoom:
        """What the replica can take now."""
        return StreamRoom(replica, self.lengths_of(replica), self.longest_beside(replica))


class BegunByPriority(BegunStreams):
    """Open leases by priority, in the order in which they began. Work: O(1) where one begins or
    ends."""

    def __init__(self) -> None:
        self._by_priority: dict[int, dict[StreamLease, None]] = {}

    def began(self, lease: StreamLease) -> None:
        """A lease was opened."""
        self._by_priority.setdefault(lease.rank[1], {})[lease] = None

    def ended(self, lease: StreamLease) -> None:
        """A lease has closed."""
        self._by_priority.get(lease.rank[1], {}).pop(lease, None)

    def priorities(self) -> list[int]:
        return [each for each, leases in self._by_priority.items() if leases]

    def last_begun(self, priority: int) -> StreamLease | None:
        """Of the leases of this priority that may be stopped, the one that began last; None where
        there is none among the latest few."""
        for tries, lease in enumerate(reversed(self._by_priority.get(priority, {}))):
            if tries == _TRIES:
                break
            if lease.may_stop():
                return lease
        return None

    def last_sent_at(self, priority: int) -> float:
        lease = self.last_begun(priority)
        return -inf if lease is None else lease.sent_at


def running_of(
    generations: Generations, replica: StreamReplica, row: Row, now: float
) -> RunningGeneration:
    """The generation that begins where the row is sent to this replica: its cached tokens and its
    first token are predicted."""
    plan, spec = plan_of(row), replica.spec
    cached = generations.placed(plan, spec.replica_id, spec.capacity)
    reads = float(plan.prompt - cached)
    is_long = reads > generations.settings.long_tokens
    token_s, ahead = generations.token_s(), replica.reading
    first_s = max(_MIN_S, replica.engine.first_token_s(ahead + reads))
    loads = bool(plan.adapter) and generations.adapters.sent(spec.replica_id, plan.adapter)
    if loads:
        first_s += generations.adapters.load_s
    return RunningGeneration(
        plan, token_s, cached, reads, ahead, is_long, at=now, first_s=first_s, loads=loads
    )
