"""What a batching policy is shown, and what it answers: numbers, and no rows.

For each batch the core shows a replica and the flow whose turn it is (`BatchView`), and the policy
answers which bucket leads, or that nothing is sent yet (`Choice`). The core then takes rows in the
order of turns, charges their flows, and calls late or sheds requests on the way; if nothing was
left to send, it asks again. Where the batch has room left, the policy says which other rows ride
with it. Views change nothing, and last for one question.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import inf
from typing import Final

from routers.estimates.batch_size import Gaps
from routers.estimates.groups import ReplicaGroup, ReplicaGroups

MANY: Final = 1 << 62  # more rows than any batch has


class BucketView:
    """The rows of one flow and one length interval."""

    edge: int  # the longest length of the interval, tokens
    rows: int  # of all flows in that interval
    turn: float  # when it leads next among its flow's buckets, in seconds of full batches

    def __init__(self, edge: int, rows: int, turn: float) -> None:
        self.edge, self.rows, self.turn = edge, rows, turn

    @abstractmethod
    def since(self) -> float:
        """When its first row was queued."""

    @abstractmethod
    def deadline(self) -> float:
        """Of its first row."""

    @abstractmethod
    def rank(self) -> float:
        """Of its first row: the lowest goes first where the order compares rows."""


class LengthView:
    """The rows of all flows in one length interval."""

    edge: int  # as in `BucketView`
    rows: int
    tag: float  # of the flow whose turn it is there
    turn: float  # of that flow's bucket

    def __init__(self, edge: int, rows: int, tag: float, turn: float) -> None:
        self.edge, self.rows, self.tag, self.turn = edge, rows, tag, turn


class BatchView:
    """A replica that can take a batch now, and what waits for it in one lane (the on-time rows of
    one priority, or its late ones). Rows that the replica may not take are left out."""

    group: ReplicaGroup  # whose costs, sizes and settings hold for the replica
    groups: ReplicaGroups | None  # all of them, where there are several
    gaps: Mapping[int, Gaps]  # between arrivals, by edge
    by_share: bool  # flows have turns by their shares; else the order compares rows

    replica_id: str
    idle: bool  # it holds nothing
    others_idle: bool  # another replica of its group holds nothing
    trusted: bool  # its costs are known: it has answered, or was profiled
    last_edge: int  # bucket of the last batch that it was sent; 0: none
    starts_in_s: float  # predicted seconds until its device is free

    late: bool  # the lane holds late rows
    ahead_s: float  # where there are several groups: predicted work of this lane and those before
    buckets: list[BucketView]  # of the flow whose turn it is; at least one

    @abstractmethod
    def max_rows(self, edge: int) -> int:
        """Rows of this length interval that a batch for the replica may have, by number and
        predicted seconds; 1 while its costs are not known."""

    @abstractmethod
    def lengths(self) -> list[LengthView]:
        """All length intervals with rows in the lane; O(number of intervals)."""

    @abstractmethod
    def slack_used_at(self, edge: int, share: float) -> float:
        """When a row of this length interval has waited for this share of its slack (arrival to
        latest start), of the first rows of all flows; O(flows with such rows)."""

    def lowest(self) -> BucketView:
        """The bucket whose first row has the lowest rank."""
        return min(self.buckets, key=_rank)

    def in_turn(self) -> BucketView:
        """The bucket whose turn it is; where the order compares rows, that of the first row."""
        return min(self.buckets, key=_turn) if self.by_share else self.lowest()


class Choice:
    """How the next batch is filled. `edge`: of the bucket that leads; `ANY_LENGTH`: rows of all
    lengths, in the order of their flows. The shown flow leads if it has such rows, else the one
    whose turn it is among those that have. `hold` and `leave` answer that nothing is sent."""

    edge: int
    max_rows: int  # besides the bounds of rows, tokens and seconds, which always hold
    # On-time requests with a row that is due before this leave instead: they would be late.
    late_before: float
    # Of those, rows due from then on are left to another group, together with what is behind them.
    elsewhere_from: float
    max_guests: int  # rows after which flows far above their share are kept out

    hold_until: float | None  # nothing is sent until then; None: something is
    leaves: bool  # nothing is sent: what was shown is left to another group

    def __init__(
        self,
        edge: int,
        *,
        max_rows: int = MANY,
        late_before: float = -inf,
        elsewhere_from: float = inf,
        max_guests: int = MANY,
    ) -> None:
        self.edge, self.max_rows, self.max_guests = edge, max_rows, max_guests
        self.late_before, self.elsewhere_from = late_before, elsewhere_from
        self.hold_until, self.leaves = None, False


def hold(until: float) -> Choice:
    """Nothing is sent before that time, unless something changes earlier."""
    choice = Choice(0)
    choice.hold_until = until
    return choice


def leave(edge: int) -> Choice:
    """Nothing is sent: rows up to this length are left to another group."""
    choice = Choice(edge)
    choice.leaves = True
    return choice


class PartialBatch:
    """A batch with the rows that it has so far, in numbers."""

    group: ReplicaGroup  # of its replica
    replica_id: str
    edge: int  # of the bucket that leads
    room: int  # rows that it may still take, by number and predicted seconds
    size: int  # rows that it has
    longest: int  # tokens
    tokens: int  # of all rows
    guests_left: bool  # flows far above their share were kept out

    def __init__(self, group: ReplicaGroup, replica_id: str, edge: int, room: int) -> None:
        self.group, self.replica_id, self.edge, self.room = group, replica_id, edge, room
        self.size = self.longest = self.tokens = 0
        self.guests_left = False

    def width(self, rows: int, tokens: int) -> int:
        """Tokens that the device sees each row as: the longest row, the edge where shapes are
        fixed, or the mean where batches are packed."""
        sizes = self.group.sizes
        if sizes.fixed_shapes:
            return self.edge
        return self.longest if sizes.pads else -(-tokens // rows)

    def holds(self, length: int) -> bool:
        """Whether it keeps its bound in tokens with a row of this length too; the first row always
        does."""
        if not self.size:
            return True
        sizes = self.group.sizes
        if not sizes.pads:
            return self.tokens + length <= sizes.max_tokens
        width = length if length > self.longest else self.longest
        if sizes.fixed_shapes:
            width = self.edge
        return (self.size + 1) * width <= sizes.max_tokens

    def add(self, length: int) -> None:
        self.size += 1
        self.room -= 1
        self.tokens += length
        if length > self.longest:
            self.longest = length

    def predicted_s(self, more: int = 0, tokens: int = 0, quantile: float = 0.5) -> float:
        """Predicted seconds with `more` further rows of `tokens` in all, none longer than the
        longest row."""
        rows = self.size + more
        width = self.width(rows, self.tokens + tokens)
        return self.group.cost.predict(rows, width, self.replica_id, quantile)


class Batching:
    """Which rows form the next batch? A policy answers `choose`, and the other questions if it adds
    rows to batches that have room left."""

    @abstractmethod
    def choose(self, view: BatchView, now: float) -> Choice:
        """The batch that the shown flow leads, or none yet."""

    def riders(
        self, view: BatchView, batch: PartialBatch, edge: int, rows: int, tokens: int
    ) -> int:
        """How many rows of a shorter length interval ride with the batch: `rows`, of `tokens` in
        all, wait there. Asked once for each such interval, the longest first."""
        return 0

    def backfills(self, view: BatchView, batch: PartialBatch, load_s: float) -> bool:
        """Whether late rows of the batch's bucket ride with it, as long as none of its rows becomes
        late by them. `load_s`: predicted seconds of on-time work that waits, for each replica."""
        return False


def _rank(bucket: BucketView) -> float:
    return bucket.rank()


def _turn(bucket: BucketView) -> float:
    return bucket.turn
