"""What a replica can take now, and the batch that is formed of that: what a lease is made of."""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.requests import FlowWork
from routers.estimates.groups import ReplicaGroup, ReplicaGroups
from routers.state.rows import Row


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica can take now.

    group: whose costs hold for it. room: units of capacity that are free (tokens, for a stream).
    idle: it holds nothing. trusted: it has answered before, so its costs are known. last_edge:
    bucket of the last batch it was sent, 0: none. alone: no other replica runs. starts_in_s:
    predicted seconds until its device is free. others_idle: another replica of its group holds
    nothing. groups: all of them, where there are several, else None. Of a stream replica: whole:
    its capacity; saved: room besides, kept for the row `saves_for`; reading_long: tokens of long
    prompts that it has yet to read."""

    replica_id: str
    group: ReplicaGroup
    streams: bool = False
    room: float = 1.0
    idle: bool = True
    trusted: bool = True
    last_edge: int = 0
    alone: bool = True
    starts_in_s: float = 0.0
    others_idle: bool = False
    groups: ReplicaGroups | None = None
    whole: float = 0.0
    saved: float = 0.0
    saves_for: Row | None = None
    reading_long: float = 0.0

    def allows(self, avoid: str) -> bool:
        """Whether a row that `avoid` has lost may go to this one: not there, while others run."""
        return self.alone or avoid != self.replica_id

    def fits(self, row: Row) -> bool:
        return not self.streams or self.has_room(row)

    def has_room(self, row: Row) -> bool:
        """Of a stream replica; an empty one has room for any one row that fits its cache."""
        plan = row.tracked.plan
        if plan is None:
            return self.idle or max(1, row.length) <= self.room
        own = self.idle or self.saves_for is row
        return plan.room <= self.room + (self.saved if own else 0.0)

    def reads(self, row: Row, long_tokens: float, most: float) -> bool:
        """Whether it may begin with this prompt beside the long ones that it is reading."""
        plan = row.tracked.plan
        if plan is None or not self.reading_long:
            return True
        reads = plan.prompt - plan.cached
        return reads <= long_tokens or self.reading_long + reads <= most

    def may_try(self, row: Row) -> bool:
        """Whether a retried row may go here: to a batch replica only when it holds nothing, so that
        a second loss has one possible cause."""
        return self.fits(row) if self.streams else self.idle


@dataclass(frozen=True, slots=True, eq=False)
class FormedBatch:
    """What a lease is made of: rows in order, the width they are predicted with (the longest row,
    or the mean where batches are packed), and the edge of the bucket that led. rank, predicted_s:
    see `api.actions.Dispatch`. charges: each flow's part of the predicted work. paid: what its
    account was charged, which is the same where the order settles accounts. speed: work, in seconds
    of the reference group, that a second of its replica is. epoch: see `Flows`."""

    rows: list[Row]
    width: int
    edge: int
    rank: tuple[int, int, float] = (0, 0, 0.0)
    predicted_s: float = 0.0
    charges: tuple[FlowWork, ...] = ()
    speed: float = 1.0
    paid: tuple[FlowWork, ...] = ()
    epoch: int = 0

    @property
    def work_s(self) -> float:
        """Predicted, in seconds of the reference group."""
        return self.predicted_s * self.speed

    def split(self, service_s: float) -> tuple[FlowWork, ...]:
        """Measured seconds by flow as work, as the predicted ones were charged; evenly if they
        were 0."""
        whole, even = self.predicted_s, self.speed / max(1, len(self.charges))
        return tuple(
            [
                (priority, tenant, service_s * (seconds / whole if whole > 0.0 else even))
                for priority, tenant, seconds in self.charges
            ]
        )
