"""What a replica can take now, and the batch that is formed for it: the content of a lease."""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.requests import FlowWork
from routers.estimates.groups import LengthRange, ReplicaGroup, ReplicaGroups
from routers.state.rows import Row


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
    lengths: LengthRange | None = None  # of rows that it may take; None: all
    longest_beside: int = 0  # the longest row that another running replica takes; 0: none runs
    starts_in_s: float = 0.0  # predicted seconds until its device is free
    others_idle: bool = False  # another replica of its group holds nothing
    groups: ReplicaGroups | None = None  # all of them, where there are several

    # Of a stream replica, tokens:
    whole: float = 0.0  # its capacity
    saved: float = 0.0  # room besides `room`, kept free for the row `saves_for`
    saves_for: Row | None = None
    reading_long: float = 0.0  # of long prompts, that it has yet to read

    def allows(self, row: Row) -> bool:
        """Whether the row may go to this replica. To the one that it avoids it goes only where no
        other replica runs that takes rows of its length."""
        if self.lengths is not None and row.edge not in self.lengths:
            return False
        return row.avoid != self.replica_id or row.edge > self.longest_beside

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
    paid: tuple[FlowWork, ...] = ()  # what accounts were charged; `charges`, if the order settles
    epoch: int = 0  # of the order under which it was charged, see `Flows`

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
