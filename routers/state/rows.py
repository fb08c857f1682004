"""A request as the core keeps it, its rows, and the batch that is formed of rows for a replica.

Each row stands in exactly one place. Rows know where they stand by handles, because the classes of
buckets (`lanes`) and leases (`replica_state`) import this module. Times are seconds on the caller's
monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from routers.api.requests import FlowWork, Request
from routers.estimates.generations import GenerationPlan
from routers.estimates.groups import ReplicaGroup, ReplicaGroups
from routers.state.flows import Flow


class BucketHandle(Protocol):
    """What a row needs of the bucket in which it waits."""

    edge: int


class LeaseHandle(Protocol):
    """What a row needs of the lease in which it stands, so as to leave it."""

    lease_id: int
    live: int
    probe: bool
    aborted: bool

    @property
    def replica_id(self) -> str: ...

    @property
    def is_suspended(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Row:
    """One queued unit of a request.

    A row stands in exactly one place, recorded here: in a bucket (`queue`), in an open lease
    (`lease`, and `copy` while that lease is raced), or nowhere, when it is done. So leaving a queue
    needs no search, and a stale entry of a lazy heap is recognised by looking at its row.
    """

    tracked: TrackedRequest
    index: int  # of the row in its request
    length: int  # tokens
    order: int  # numbers rows by arrival, across all requests
    edge: int  # of its bucket
    cost_s: float = 0.0  # predicted service seconds, as of its arrival

    bucket: BucketHandle | None = None
    lease: LeaseHandle | None = None
    copy: LeaseHandle | None = None  # the lease that races `lease` for this row

    isolated: bool = False  # lost once, failed once, or a suspect from the start
    copied: bool = False  # stood in a copy once
    stopped: bool = False  # was stopped for more urgent work once, and will not be again
    failed: bool = False  # the model has failed on it once
    avoid: str = ""  # the replica that failed it, not used while another one runs; "": none
    held_until: float = -inf  # not tried before where its loss would leave no well replica
    losses: int = 0  # leases that were lost with it, failed on it, or that it was moved out of
    # Leases at silent replicas that it was moved out of. One that is answered after all answers it.
    moved_from: tuple[LeaseHandle, ...] = ()
    shown: bool = False  # its caller has had a part of its answer: it stays where it runs

    @property
    def is_retry(self) -> bool:
        """Whether it was lost with a replica, or failed on one, and runs once more; not a suspect
        that has yet to run."""
        return self.isolated and (self.losses > 0 or self.failed)

    def lost(self) -> None:
        """Its lease brought no answer."""
        self.losses += 1

    def fail(self, avoid: str) -> None:
        """The model failed on it at the replica `avoid`; it runs once more, alone."""
        self.failed = True
        self.go_alone(avoid)

    def go_alone(self, avoid: str = "") -> None:
        """It travels in a batch of its own and, while other replicas run, not to the replica
        `avoid` ("": to any)."""
        self.isolated, self.avoid = True, avoid

    def hold(self, until: float) -> None:
        """Until then, do not try it on a replica whose loss would leave no well replica."""
        self.held_until = until

    def move(self, avoid: str) -> None:
        """It is moved away from the silent replica `avoid`, on which it may still be running."""
        self.avoid = avoid
        self.losses += 1

    def show(self) -> None:
        """A piece of its answer has come, which a caller that streams gets at once."""
        self.shown = self.tracked.request.streams

    def stop(self) -> None:
        """It was taken back for more urgent work, which may happen once."""
        self.stopped = True


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """What the core keeps of a request while any of its rows is queued or leased."""

    request: Request
    flow: Flow
    queued_at: float
    latest_start: float  # its deadline less the usual turnaround of its bucket
    open: int  # rows queued or leased; 0: forgotten
    edge: int = 0  # of its first row's bucket
    cost_s: float = 0.0  # predicted service seconds of all its rows, as of its arrival
    queued: int = 0  # of the open rows, those that wait
    late: bool = False  # `latest_start` has passed: it is not expected to meet its deadline
    # Predicted queue wait, until that has proved true or false. None also for a request that came
    # late, or while no replica ran.
    forecast_s: float | None = None
    rows: tuple[Row, ...] = ()  # () until it may wait
    plan: GenerationPlan | None = None  # of a request that generates
    work_s: float = 0.0  # offered work, as `routers.state.flows` prices it

    def price(self, work_s: float) -> None:
        """Its offered work is known."""
        self.work_s = work_s

    def admit(self, rows: tuple[Row, ...]) -> None:
        """It may wait, with these rows."""
        self.rows = rows

    def expect_wait(self, forecast_s: float) -> None:
        self.forecast_s = forecast_s

    def end_forecast(self) -> None:
        """The forecast has proved true or false."""
        self.forecast_s = None

    def set_late(self, late: bool) -> None:
        """Only while none of its rows is queued."""
        self.late = late

    def count_queued(self, change: int) -> None:
        self.queued += change

    def row_answered(self) -> None:
        self.open -= 1

    def leave(self) -> None:
        """None of its rows waits or runs for it any more."""
        self.open = 0

    def drop_rows(self) -> None:
        """Else rows and request refer to each other until the garbage collector runs."""
        self.rows = ()


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica can take now, as batching policies are told it."""

    replica_id: str
    group: ReplicaGroup  # whose costs hold for it
    streams: bool = False
    room: float = 1.0  # free capacity: slots, or tokens of a stream replica
    idle: bool = True  # holds nothing
    trusted: bool = True  # its costs are known: it has answered, or was profiled
    last_edge: int = 0  # bucket of the last batch that it was sent; 0: none
    alone: bool = True  # no other replica runs
    starts_in_s: float = 0.0  # predicted seconds until its device is free
    others_idle: bool = False  # another replica of its group holds nothing
    groups: ReplicaGroups | None = None  # all of them, where there are several

    # Of a stream replica, tokens:
    whole: float = 0.0  # its capacity
    saved: float = 0.0  # room besides `room`, kept free for the row `saves_for`
    saves_for: Row | None = None
    reading_long: float = 0.0  # of long prompts, that it has yet to read

    def allows(self, avoid: str) -> bool:
        """Whether a row that avoids the replica `avoid` may go to this one: it goes there only
        where no other replica runs."""
        return self.alone or avoid != self.replica_id

    def fits(self, row: Row) -> bool:
        """Whether the row has room; on a batch replica every row has."""
        return not self.streams or self.has_room(row)

    def has_room(self, row: Row) -> bool:
        """Whether a stream replica has room for the row. An empty one has room for any one row that
        fits its cache."""
        plan = row.tracked.plan
        if plan is None:
            return self.idle or max(1, row.length) <= self.room
        own = self.idle or self.saves_for is row
        return plan.room <= self.room + (self.saved if own else 0.0)

    def reads(self, row: Row, long_tokens: float, most: float) -> bool:
        """Whether it may begin to read this prompt beside the long ones that it is reading: a
        prompt of over `long_tokens` not yet cached waits while more than `most` tokens would be
        read at once."""
        plan = row.tracked.plan
        if plan is None or not self.reading_long:
            return True
        reads = plan.prompt - plan.cached
        return reads <= long_tokens or self.reading_long + reads <= most

    def may_try(self, row: Row) -> bool:
        """Whether a row that travels alone may go here. A batch replica takes one only when it
        holds nothing, so that a loss of it has one possible cause."""
        return self.fits(row) if self.streams else self.idle


@dataclass(frozen=True, slots=True, eq=False)
class FormedBatch:
    """The content of a lease: rows in order, and what they are predicted to take."""

    rows: list[Row]
    width: int  # tokens a row that costs are predicted for: the longest row, or the mean if packed
    edge: int  # of the bucket that leads
    rank: tuple[int, int, float] = (0, 0, 0.0)  # see `api.actions.Dispatch`
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()  # each flow's part of the predicted work
    speed: float = 1.0  # seconds of the reference group that a second of its replica is worth

    @property
    def work_s(self) -> float:
        """Predicted work, in seconds of the reference group."""
        return self.predicted_s * self.speed

    def split(self, service_s: float) -> tuple[FlowWork, ...]:
        """The measured seconds as work (seconds of the reference group) of each flow, in the
        proportions in which the predicted work was charged; in equal parts if nothing was
        predicted."""
        whole, even = self.predicted_s, self.speed / max(1, len(self.charges))
        return tuple(
            [
                (priority, tenant, service_s * (seconds / whole if whole > 0.0 else even))
                for priority, tenant, seconds in self.charges
            ]
        )
